"""Who may import whom, and that importing anything changes nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from workspace import ROOT, Member, member_id, members

ALLOWED_IN_A_PLATFORM_DECLARATION = {
    "cardcage_sdk": "the contract",
    "pluggy": "the sdk's hook markers",
    "msgpack": "the sdk's pipe",
    "pydantic": "option models, through cardcage_sdk.options",
    "pydantic_core": "pydantic",
    "annotated_types": "pydantic",
    "typing_extensions": "pydantic",
    "typing_inspection": "pydantic",
}


START_UP = {
    name.partition(".")[0]
    for name in sys.modules
    if name.startswith(("__editable__", "_distutils_hack", "sitecustomize"))
}

MODULES = [name for member in members() for name in member.modules()]
WORKER_PACKAGES = ["cardcage_sdk", "cardcage_sdk.worker", "cardcage_sdk.ipc", "cardcage_sdk.text"]
PLATFORMS = [member for member in members() if member.path.parent.name == "platforms"]


def declaration(member: Member) -> str:
    (module,) = member.metadata["project"]["entry-points"]["cardcage.platforms"].values()
    return str(module)


def import_in_forks(forks: list[str]) -> dict[str, dict[str, Any]]:
    """What importing each module did, by its name; see `import_probe`."""
    probe = Path(__file__).with_name("import_probe.py")
    run = subprocess.run([sys.executable, probe, *forks], capture_output=True, text=True, timeout=280, check=False)
    assert run.returncode == 0, run.stderr
    results = [json.loads(line) for line in run.stdout.splitlines()]
    return {result["name"]: result for result in results}


@pytest.fixture(scope="module")
def imported() -> dict[str, dict[str, Any]]:
    """Every module of the workspace, one process for each distribution."""
    return import_in_forks([",".join(member.modules()) for member in members()])


@pytest.fixture(scope="module")
def imported_alone() -> dict[str, dict[str, Any]]:
    """What a worker imports and how platforms declare themselves, each in a process of its own."""
    return import_in_forks(["cardcage_sdk.errors", *WORKER_PACKAGES, *map(declaration, PLATFORMS)])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", MODULES)
def test_importing_a_module_has_no_side_effect(name: str, imported: dict[str, dict[str, Any]]) -> None:
    result = imported[name]
    assert result["error"] == ""
    assert result["printed"] == 0
    changed = {what for what in result["changed"] if not (what == "descriptors" and loads_a_runtime(name, result))}
    assert changed == set(), {what: result["changed"][what] for what in changed}


def loads_a_runtime(name: str, result: dict[str, Any]) -> bool:
    """Whether this is the engine side of a platform, which a worker imports; native runtimes open files when they load."""
    package = name.partition(".")[0]
    return package.startswith("cardcage_platform_") and bool(strangers_of(package, result))


def strangers_of(package: str, result: dict[str, Any]) -> set[str]:
    """Top-level packages that an import brought in, besides the standard library, `package` and what a declaration may use."""
    loaded = {module.partition(".")[0] for module in result["modules"]}
    loaded = {module for module in loaded if not module.startswith("_sysconfigdata_")}
    return loaded - set(sys.stdlib_module_names) - {package, "__main__", *ALLOWED_IN_A_PLATFORM_DECLARATION} - START_UP


@pytest.mark.parametrize("member", PLATFORMS, ids=member_id)
def test_a_platform_declares_itself_without_its_runtime(
    member: Member, imported_alone: dict[str, dict[str, Any]]
) -> None:
    strangers = strangers_of(member.package.name, imported_alone[declaration(member)])
    assert strangers == set(), f"{member.name} imports {strangers}; the engine's imports belong into the worker"


@pytest.mark.parametrize("name", WORKER_PACKAGES)
def test_what_a_worker_imports_costs_no_pydantic(name: str, imported_alone: dict[str, dict[str, Any]]) -> None:
    assert not {"pydantic", "quart"} & set(imported_alone[name]["modules"])


def test_import_contracts_hold() -> None:
    run = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_core_holds_no_platform_name() -> None:
    names = {
        name
        for m in members()
        if m.path.parent.name == "platforms"
        for name in m.metadata["project"]["entry-points"]["cardcage.platforms"]
    }
    assert names, "the workspace has platforms"
    for file in (ROOT / "core/src").rglob("*.py"):
        found = {name for name in names if name in file.read_text().lower()}
        assert not found, f"{file.relative_to(ROOT)} names the platform {found}"
