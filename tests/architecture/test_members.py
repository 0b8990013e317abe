"""Every distribution has the same shape, and its metadata says what it needs."""

from __future__ import annotations

import re

import pytest
from workspace import ROOT, Member, member_id, members

FORBIDDEN_MODULE_NAMES = {"utils", "helpers", "common", "misc", "manager"}
MAX_LINES = 700
LONG_BY_NATURE = {"errors.py": "one tree of one-sentence classes, printed at its top"}


@pytest.mark.parametrize("member", members(), ids=member_id)
class TestMember:
    def test_is_typed_and_described(self, member: Member) -> None:
        assert (member.package / "py.typed").exists()
        assert len((member.path / "README.md").read_text().split()) > 20
        assert list((member.path / "tests").glob("**/test_*.py"))

    def test_holds_metadata_only(self, member: Member) -> None:
        assert set(member.metadata) <= {"build-system", "project", "tool"}
        assert set(member.metadata.get("tool", {})) <= {"hatch"}
        assert member.metadata["build-system"]["build-backend"] == "hatchling.build"
        assert member.metadata["project"]["requires-python"] == ">=3.11"
        assert member.metadata["project"]["license"] == "Apache-2.0"

    def test_bounds_its_range_on_the_sdk(self, member: Member) -> None:
        if member.name == "cardcage-sdk":
            assert [re.match(r"[a-z0-9]+", line).group() for line in member.metadata["project"]["dependencies"]] == [
                "pluggy",
                "msgpack",
            ]
            return
        (requirement,) = [
            line for line in member.metadata["project"]["dependencies"] if line.startswith("cardcage-sdk")
        ]
        assert ">=" in requirement
        assert "<" in requirement

    def test_names_its_modules_by_what_they_are(self, member: Member) -> None:
        for file in member.package.rglob("*.py"):
            assert not FORBIDDEN_MODULE_NAMES & set(file.relative_to(member.package).with_suffix("").parts), file

    def test_keeps_modules_readable(self, member: Member) -> None:
        for file in member.package.rglob("*.py"):
            lines = 0 if file.name in LONG_BY_NATURE else len(file.read_text().splitlines())
            assert lines <= MAX_LINES, f"{file.relative_to(ROOT)} has {lines} lines: cut it by concern"


# A folder of plugins that is no dialect: one distribution with several plugins of one kind, and the kind's group.
NO_DIALECTS = {"sources": "cardcage.sources"}


def dialects() -> list[Member]:
    return [m for m in members() if m.path.parent.name == "plugins" and m.path.name not in NO_DIALECTS]


def test_dialects_and_platforms_are_named_by_rule() -> None:
    for member in members():
        if member.path.parent.name == "plugins" and member.path.name in NO_DIALECTS:
            continue
        kind = {"plugins": "dialect", "platforms": "platform"}.get(member.path.parent.name)
        if kind is None:
            continue
        short = member.path.name
        assert member.name == f"cardcage-{kind}-{short}"
        assert member.package.name == f"cardcage_{kind}_{short}"
        assert member.metadata["project"]["entry-points"][f"cardcage.{kind}s"] == {
            short: f"{member.package.name}.plugin"
        }


@pytest.mark.parametrize(("folder", "group"), NO_DIALECTS.items())
def test_a_distribution_of_several_plugins_names_a_module_for_each(folder: str, group: str) -> None:
    (member,) = [m for m in members() if m.path.parent.name == "plugins" and m.path.name == folder]
    assert (member.name, member.package.name) == (f"cardcage-{folder}", f"cardcage_{folder}")
    assert set(member.metadata["project"]["entry-points"]) == {group}
    for name, module in member.metadata["project"]["entry-points"][group].items():
        assert module == f"{member.package.name}.{name}"
        assert (member.package / f"{name}.py").exists()


@pytest.mark.parametrize("member", dialects(), ids=member_id)
def test_every_dialect_has_the_same_files(member: Member) -> None:
    for name in ("plugin.py", "routes/__init__.py", "wire/__init__.py", "decode.py", "encode.py", "errors.py"):
        assert (member.package / name).exists(), name


@pytest.mark.parametrize("member", [m for m in members() if m.path.parent.name == "platforms"], ids=member_id)
def test_every_platform_has_the_same_files(member: Member) -> None:
    for name in ("plugin.py", "options.py", "engine.py"):
        assert (member.package / name).exists(), name
