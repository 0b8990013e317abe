"""Names and folders of the store: nothing that comes from outside leads anywhere else."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardcage.catalog.manifest import read_manifest
from cardcage.downloads.placing import (
    Naming,
    check_file_name,
    manifest_text,
    move_into_store,
    remove_from_store,
    store_folder,
)
from cardcage.names import check_model_id, default_model_id
from cardcage_sdk.errors import CorruptDownloadError, InvalidRequestError
from cardcage_sdk.models import ModelArtifact, ModelFile

STORE = Path("/store")


@pytest.mark.parametrize(
    ("platform", "chip", "name", "size", "folder"),
    [
        ("llm", "RK3588", "qwen3", "4b", "llm/rk3588/qwen3-4b"),
        ("llm", None, "qwen3", "", "llm/any/qwen3"),
        ("llm", "cpu", "qwen2.5-instruct", "0.5b-q4_k_m", "llm/cpu/qwen2.5-instruct-0.5b-q4_k_m"),
    ],
)
def test_folder(platform: str, chip: str | None, name: str, size: str, folder: str) -> None:
    assert store_folder(STORE, platform=platform, chip=chip, naming=Naming(name=name, size=size)) == STORE / folder


@given(st.text(), st.text(), st.text(), st.text())
def test_a_folder_is_always_three_below_the_store_and_never_hidden(
    platform: str, chip: str, name: str, size: str
) -> None:
    folder = store_folder(STORE, platform=platform, chip=chip, naming=Naming(name=name, size=size))
    parts = folder.relative_to(STORE).parts
    assert len(parts) == 3
    assert all(part not in {".", ".."} and not part.startswith(".") and part.isascii() for part in parts)


def test_names_of_other_scripts_do_not_share_a_folder() -> None:
    folders = {
        store_folder(STORE, platform="p", chip="c", naming=Naming(name=name, size=""))
        for name in ("小助手", "助手", "小")
    }
    assert len(folders) == 3


@pytest.mark.parametrize("text", ["", ":4b", "a b", "a/b", "a:b:c", "a@b", "a(b)", "x" * 81, "a\n"])
def test_a_name_that_a_caller_cannot_give(text: str) -> None:
    if text == "a\n":
        assert Naming.chosen(text) == Naming(name="a", size="")
        return
    with pytest.raises(InvalidRequestError):
        Naming.chosen(text)


@pytest.mark.parametrize(
    "name", ["..", "../x", "/x", "a/../b", ".x", "a/.x", "a//b", "a\\b", "a\x00b", "", "model.toml", "x" * 600, "a\nb"]
)
def test_file_names_that_a_source_may_not_list(name: str) -> None:
    with pytest.raises(CorruptDownloadError):
        check_file_name(name)


@given(
    st.text(alphabet=st.characters(codec="utf-8")),
    st.dictionaries(st.text(min_size=1, max_size=9), st.integers() | st.text() | st.booleans()),
)
def test_what_is_written_is_toml_with_the_known_facts_untouched(text: str, document: dict[str, object]) -> None:
    written = manifest_text(
        naming=Naming(name="n", size="s"),
        platform="p",
        chips=["c"],
        source=text,
        files=[ModelFile(name="m.bin", size_bytes=3, sha256="0" * 64)],
        document={"name": "evil", "files": [], "schema": 9, **document},
    )
    table = tomllib.loads(written)
    assert (table["schema"], table["name"], table["size"], table["source"]) == (1, "n", "s", text)
    assert table["files"] == [{"name": "m.bin", "size_bytes": 3, "sha256": "0" * 64}]


def test_a_manifest_with_tables_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / "model.toml"
    file.write_text(
        manifest_text(
            naming=Naming(name="n", size=""),
            platform="alpha",
            chips=[],
            source="s",
            files=[],
            document={
                "alpha": {"pooling": "mean"},
                "default_params": {"temperature": 0.5},
                "license": None,
                "kind": "chat",
            },
        )
    )
    manifest = read_manifest(file)
    assert (manifest.extra, manifest.table.kind, manifest.defaults.sampling.temperature) == (
        {"pooling": "mean"},
        "chat",
        0.5,
    )


def test_replacing_and_removing_leave_nothing_behind(tmp_path: Path) -> None:
    target = tmp_path / "store/p/c/m"
    for content in ("one", "two"):
        complete = tmp_path / "store/.partial"
        complete.mkdir(parents=True)
        (complete / "m.bin").write_text(content)
        move_into_store(complete, target)
    assert (target / "m.bin").read_text() == "two"
    assert [path.name for path in target.parent.iterdir()] == ["m"]
    remove_from_store(target, tmp_path / "store")
    assert list((tmp_path / "store").iterdir()) == []


def test_a_model_that_is_a_link_is_unlinked_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "m.bin").write_text("mine")
    link = tmp_path / "store/p/c/m"
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere)
    remove_from_store(link, tmp_path / "store")
    assert (elsewhere / "m.bin").read_text() == "mine"
    assert not link.is_symlink()


def test_what_a_source_calls_a_model_becomes_a_name_that_can_be_shown() -> None:
    assert Naming.of_source("a\x1b[31m b", "\u202e4b/x") == Naming(name="a-[31m-b", size="4b-x")
    assert Naming.of_source("\x1b", "\x1b") == Naming(name="model", size="")


def test_every_name_makes_an_id_that_a_model_can_be_loaded_under() -> None:
    naming = Naming.of_source("n" * 200, "s" * 200)
    artifact = ModelArtifact(
        path=Path("/m"), name=naming.name, size=naming.size, platform="llamacpp", chips=("cpu",), files=()
    )
    check_model_id(default_model_id(artifact))
    with pytest.raises(InvalidRequestError, match="together"):
        Naming.chosen(f"{'n' * 80}:{'s' * 80}")
