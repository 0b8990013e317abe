"""Plugins found by real metadata of real (tiny) distributions, and every way in which one can fail."""

import sys
import textwrap
from pathlib import Path

import pytest

from cardcage.config import Config, PluginsConfig
from cardcage.plugins import PluginRegistry
from cardcage_sdk import hookspecs
from cardcage_sdk.errors import PluginConflictError, PluginLoadError

PLATFORM = """
    from cardcage_sdk import Capabilities, MemoryEstimate, Platform, ProbeReport, Task, hookimpl

    class P(Platform):
        name = "{name}"
        engine = "{engine}"
        capabilities = Capabilities(tasks={{Task.CHAT}})

        def probe(self):
            return ProbeReport.available(devices=())

        def claims(self, artifact):
            return False

        def estimate(self, artifact, options):
            return MemoryEstimate(device_bytes=0, host_bytes=0)

    @hookimpl
    def register_platforms():
        return [P]
"""

DIALECT = """
    from cardcage_sdk import hookimpl
    from cardcage_sdk.dialect import Dialect, Reply

    class D(Dialect):
        name = "{name}"
        prefixes = {prefixes!r}

        def blueprint(self, service, settings):
            raise NotImplementedError

        def error_reply(self, error, path):
            return Reply(status=500, body=b"")

    @hookimpl
    def register_dialects():
        return [D]
"""


def platform_code(name: str = "one", engine: str = "somewhere.engine:Engine") -> str:
    return textwrap.dedent(PLATFORM).format(name=name, engine=engine)


def dialect_code(name: str, *prefixes: str) -> str:
    return textwrap.dedent(DIALECT).format(name=name, prefixes=tuple(prefixes))


class Site:
    """A directory on `sys.path` that distributions are installed to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.modules: list[str] = []

    def install(
        self,
        distribution: str,
        code: str,
        *,
        name: str = "one",
        kind: str = "platform",
        requires: str = "cardcage-sdk>=0.1,<0.2",
        version: str = "1.2.3",
    ) -> None:
        module = f"tiny_{distribution.replace('-', '_')}"
        self.modules.append(module)
        (self.path / f"{module}.py").write_text(code)
        info = self.path / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        needed = f"Requires-Dist: {requires}\n" if requires else ""
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n{needed}")
        (info / "entry_points.txt").write_text(f"[{hookspecs.ENTRY_POINT_GROUPS[kind]}]\n{name} = {module}\n")


@pytest.fixture
def site(tmp_path, monkeypatch):
    path = tmp_path / "site"
    path.mkdir()
    site = Site(path)
    monkeypatch.syspath_prepend(str(path))
    yield site
    for module in [*site.modules, *(name for name in sys.modules if name.startswith("cardcage_plugin_"))]:
        sys.modules.pop(module, None)


@pytest.fixture
def discover(tmp_path):
    def run(*, strict: bool = False, **plugins) -> PluginRegistry:
        config = Config(store=tmp_path / "m", data_dir=tmp_path, plugins=PluginsConfig(**plugins))
        return PluginRegistry.discover(config, strict=strict)

    return run


def record_of(registry: PluginRegistry, distribution: str):
    (record,) = [record for record in registry.records if record.distribution == distribution]
    return record


def test_a_plugin_is_found_by_its_entry_point(site, discover):
    site.install("tiny-one", platform_code())
    registry = discover(strict=True)
    plugin = registry.platforms["one"]
    assert (plugin.distribution, plugin.version, plugin.plugin_file) == ("tiny-one", "1.2.3", None)
    record = record_of(registry, "tiny-one")
    assert (record.name, record.kind, record.state, record.reason) == ("one", "platform", "loaded", "")


@pytest.mark.parametrize(
    ("code", "state", "words"),
    [
        ("import no_such_runtime", "failed", ["import raised ModuleNotFoundError", "no_such_runtime"]),
        ("raise RuntimeError('the driver\\nis old')", "failed", ["import raised RuntimeError: the driver is old"]),
        ("raise SystemExit(3)", "failed", ["import raised SystemExit: 3"]),
        ("def broken(:", "failed", ["import raised SyntaxError"]),
        ("x = 1", "refused", ["implements no hook register_platforms"]),
        (
            platform_code().replace("def register_platforms", "def register_platfroms"),
            "refused",
            ["register_platfroms"],
        ),
        (platform_code().replace("def register_platforms()", "def register_platforms(app)"), "refused", ["app"]),
        (platform_code().replace("def register_platforms", "async def register_platforms"), "refused", ["not async"]),
        (platform_code().replace("return [P]", "return P"), "refused", ["must return a list"]),
        (platform_code().replace("return [P]", "return [P()]"), "refused", ["no subclass of Platform"]),
        (platform_code().replace("return [P]", "return [dict]"), "refused", ["no subclass of Platform"]),
        (platform_code().replace("return [P]", "return []"), "refused", ["implements no hook"]),
        (
            platform_code().replace("return [P]", "raise OSError('no device')"),
            "failed",
            ["register_platforms raised OSError"],
        ),
        (platform_code().replace("def probe(self)", "def prob(self)"), "refused", ["P does not implement probe"]),
        (platform_code("other"), "refused", ["P.name is 'other'", "entry point is named 'one'"]),
        (platform_code("One"), "refused", ["lower-case"]),
        (platform_code(engine="no colon"), "refused", ["P.engine must be 'package.module:Class'"]),
        (platform_code().replace("Capabilities(tasks={Task.CHAT})", "{}"), "refused", ["P.capabilities"]),
        (
            platform_code().replace("def probe", "def __init__(self):\n        1 / 0\n\n    def probe"),
            "failed",
            ["P() raised ZeroDivisionError"],
        ),
        (
            "CARDCAGE_CONTRACT = (0, 9)\n" + platform_code(),
            "refused",
            ["contract 0.9", "upgrade cardcage and cardcage-sdk"],
        ),
        ("CARDCAGE_CONTRACT = (0, 0)\n" + platform_code(), "refused", ["contract 0.0", "upgrade tiny-bad"]),
        ("CARDCAGE_CONTRACT = '0.1'\n" + platform_code(), "refused", ["pair of numbers"]),
    ],
)
def test_a_plugin_that_fails_is_a_record_and_stops_nothing(site, discover, code, state, words):
    site.install("tiny-bad", code)
    site.install("tiny-good", platform_code("good"), name="good")
    registry = discover(strict=True)
    record = record_of(registry, "tiny-bad")
    assert record.state == state
    for word in words:
        assert word in record.reason
    assert "\n" not in record.reason
    assert "one" not in registry.platforms
    assert "good" in registry.platforms


@pytest.mark.parametrize(
    ("requires", "words"),
    [
        ("cardcage-sdk>=0.2,<0.3", ["cardcage-sdk<0.3,>=0.2", "upgrade cardcage and cardcage-sdk"]),
        ("Cardcage_SDK[options]<0.1", ["upgrade tiny-one"]),
        ("cardcage-sdk==0.0.9", ["upgrade tiny-one"]),
    ],
)
def test_another_contract_in_the_metadata_is_refused_before_import(site, discover, requires, words):
    site.install("tiny-one", "raise RuntimeError('imported')", requires=requires)
    record = record_of(discover(), "tiny-one")
    assert record.state == "refused"
    for word in words:
        assert word in record.reason


@pytest.mark.parametrize(
    "requires", ["", "cardcage-sdk", "cardcage-sdk>=0.1,<0.2", "numpy>=1", "cardcage-sdk<0.1; python_version<'3'"]
)
def test_a_fitting_or_silent_range_is_taken(site, discover, requires):
    site.install("tiny-one", platform_code(), requires=requires)
    assert record_of(discover(), "tiny-one").state == "loaded"


def test_two_distributions_with_one_name_are_both_named(site, discover):
    site.install("tiny-a", platform_code())
    site.install("tiny-b", platform_code(), version="2.0")
    with pytest.raises(PluginConflictError) as caught:
        discover(strict=True)
    assert "tiny-a 1.2.3" in caught.value.message
    assert "tiny-b 2.0" in caught.value.message
    assert [record_of(discover(), name).state for name in ("tiny-a", "tiny-b")] == ["loaded", "refused"]


def test_one_name_may_be_a_platform_and_a_dialect(site, discover):
    site.install("tiny-a", platform_code())
    site.install("tiny-b", dialect_code("one", "/one"), kind="dialect")
    registry = discover(strict=True)
    assert "one" in registry.platforms
    assert "one" in registry.dialects


@pytest.mark.parametrize("prefix", ["/same", "/same/"])
def test_a_route_claimed_twice_names_both(site, discover, prefix):
    site.install("tiny-a", dialect_code("a", "/a", "/same"), name="a", kind="dialect")
    site.install("tiny-b", dialect_code("b", prefix), name="b", kind="dialect")
    with pytest.raises(PluginConflictError) as caught:
        discover(strict=True)
    assert "/same" in caught.value.message
    assert "tiny-a 1.2.3" in caught.value.message
    assert "tiny-b 1.2.3" in caught.value.message


def test_longer_prefixes_below_anothers_are_no_conflict(site, discover):
    site.install("tiny-a", dialect_code("a", "/a"), name="a", kind="dialect")
    site.install("tiny-b", dialect_code("b", "/a/b", "/"), name="b", kind="dialect")
    assert {"a", "b"} <= set(discover(strict=True, disabled=("dialect:ollama",)).dialects)


@pytest.mark.parametrize("prefix", ["/metrics", "/readyz", "/livez/"])
def test_cores_own_routes_cannot_be_claimed(site, discover, prefix):
    site.install("tiny-a", dialect_code("a", prefix), name="a", kind="dialect")
    with pytest.raises(PluginConflictError, match="cardcage itself"):
        discover(strict=True)


@pytest.mark.parametrize("prefixes", ["()", "'/a'", "('a',)", "(1,)"])
def test_prefixes_must_be_paths(site, discover, prefixes):
    code = dialect_code("one", "/x").replace("('/x',)", prefixes)
    site.install("tiny-a", code, kind="dialect")
    record = record_of(discover(), "tiny-a")
    assert record.state == "refused"
    assert "prefixes" in record.reason


@pytest.mark.parametrize("wanted", ["one", "platform:one"])
def test_a_required_plugin_that_fails_refuses_the_start(site, discover, wanted):
    site.install("tiny-bad", "import no_such_runtime")
    with pytest.raises(PluginLoadError) as caught:
        discover(strict=True, required=(wanted,))
    assert wanted in caught.value.message
    assert "no_such_runtime" in caught.value.message


@pytest.mark.parametrize(("wanted", "why"), [("nobody", "not installed"), ("dialect:one", "not installed")])
def test_a_required_plugin_that_is_missing_refuses_the_start(site, discover, wanted, why):
    site.install("tiny-one", platform_code())
    with pytest.raises(PluginLoadError, match=why):
        discover(strict=True, required=(wanted,))


def test_a_required_plugin_that_is_disabled_refuses_the_start(site, discover):
    site.install("tiny-one", platform_code())
    with pytest.raises(PluginLoadError, match="disabled"):
        discover(strict=True, required=("one",), disabled=("one",))


def test_a_disabled_plugin_is_not_imported(site, discover):
    site.install("tiny-one", "raise RuntimeError('imported')")
    record = record_of(discover(strict=True, disabled=("one",)), "tiny-one")
    assert record.state == "disabled"


def test_a_file_brings_platforms_and_dialects(site, tmp_path, discover):
    file = tmp_path / "mine.py"
    file.write_text(platform_code("mine", engine="mine:Engine") + dialect_code("talk", "/talk"))
    registry = discover(strict=True, files=(file,))
    plugin = registry.platforms["mine"]
    assert (plugin.distribution, plugin.plugin_file) == (str(file), str(file))
    assert "talk" in registry.dialects


@pytest.mark.parametrize(
    ("engine", "from_file"),
    [
        ("mine:Engine", True),
        ("cardcage_plugin_mine:Engine", True),
        ("cardcage_platform_not_installed_yet.engine:Engine", True),
        ("cardcage_sdk.testing.scripted:ScriptedEngine", False),
    ],
)
def test_a_worker_gets_the_file_unless_the_engine_is_installed(site, tmp_path, discover, engine, from_file):
    file = tmp_path / "mine.py"
    file.write_text(platform_code("mine", engine=engine))
    plugin = discover(strict=True, files=(file,)).platforms["mine"]
    assert plugin.plugin_file == (str(file) if from_file else None)


@pytest.mark.parametrize("text", [None, "1 / 0", "x = 1"])
def test_a_file_that_does_not_load_refuses_the_start(site, tmp_path, discover, text):
    file = tmp_path / "mine.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(PluginLoadError, match=str(file)):
        discover(strict=True, files=(file,))


def test_a_file_conflicts_with_an_installed_plugin_of_its_name(site, tmp_path, discover):
    site.install("tiny-one", platform_code())
    file = tmp_path / "mine.py"
    file.write_text(platform_code())
    with pytest.raises(PluginConflictError) as caught:
        discover(strict=True, files=(file,))
    assert str(file) in caught.value.message
    assert "tiny-one 1.2.3" in caught.value.message


def test_instances_make_a_registry_and_conflict_like_plugins(site, tmp_path, discover):
    file = tmp_path / "mine.py"
    file.write_text(platform_code("mine") + dialect_code("talk", "/talk"))
    found = discover(strict=True, files=(file,))
    platform, dialect = found.platforms["mine"].platform, found.dialects["talk"].dialect
    registry = PluginRegistry.of(platform, dialect)
    assert registry.platforms["mine"].platform is platform
    assert registry.dialects["talk"].dialect is dialect
    with pytest.raises(PluginConflictError):
        PluginRegistry.of(platform, platform)
