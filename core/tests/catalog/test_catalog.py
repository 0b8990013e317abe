"""Models on disk: the store, directories and files outside it, and what is wrong with them."""

from pathlib import Path

import pytest

from cardcage.catalog import Catalog, default_model_id
from cardcage_sdk.errors import InvalidModelError, ModelNotFoundError


def make_model(
    store: Path, where: str = "alpha/cpu/tiny-1m", text: str | None = None, weights: bytes = b"12345"
) -> Path:
    directory = store / where
    directory.mkdir(parents=True)
    (directory / "w.bin").write_bytes(weights)
    platform, chip, _ = where.split("/")
    (directory / "model.toml").write_text(
        text
        if text is not None
        else f'schema = 1\nname = "tiny"\nsize = "1m"\nkind = "chat"\nplatform = "{platform}"\nchips = ["{chip}"]\n'
        '[[files]]\nname = "w.bin"\nsize_bytes = 5\n'
    )
    return directory


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(tmp_path / "store")


def test_a_store_that_is_not_there_is_empty(catalog):
    assert catalog.entries() == []
    with pytest.raises(ModelNotFoundError):
        catalog.find("tiny")


@pytest.mark.parametrize(
    "name",
    ["tiny", "tiny:1m", "TINY:1M", "tiny-1m", "tiny:1m@alpha-cpu", "tiny:1m(alpha/cpu)", " tiny "],
)
def test_a_model_is_found_by_each_form_of_its_name(catalog, name):
    directory = make_model(catalog.store)
    artifact = catalog.find(name)
    assert artifact.path == directory
    assert artifact.files[0].name == "w.bin"
    assert artifact.size_bytes == 5
    assert default_model_id(artifact) == "tiny:1m@alpha-cpu"


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../store/alpha/cpu/tiny-1m",
        "alpha/cpu/tiny-1m",
        "/etc/passwd",
        "tiny:1m/../../x",
        "tiny\0",
        "tin",
        "tiny:2m",
        "tiny:1m@beta-cpu",
        "*",
        "tiny" * 1000,
    ],
)
def test_a_name_is_never_a_path(catalog, name):
    make_model(catalog.store)
    with pytest.raises(ModelNotFoundError):
        catalog.find(name)


def test_an_absolute_path_that_exists_is_no_name(catalog):
    directory = make_model(catalog.store)
    with pytest.raises(ModelNotFoundError):
        catalog.find(str(directory))


def test_several_variants_are_named_and_can_be_told_apart(catalog):
    make_model(catalog.store)
    other = make_model(catalog.store, "beta/npu/tiny-1m")
    with pytest.raises(ModelNotFoundError) as caught:
        catalog.find("tiny")
    assert "tiny:1m@alpha-cpu" in caught.value.message
    assert "tiny:1m@beta-npu" in caught.value.message
    assert catalog.find("tiny", platform="beta").path == other
    assert catalog.find("tiny", chip="npu").path == other
    assert catalog.find("tiny:1m@beta-npu").path == other


def test_a_model_that_was_just_put_there_is_found(catalog):
    make_model(catalog.store)
    assert len(catalog.entries()) == 1
    make_model(catalog.store, "beta/npu/tiny-1m")
    assert len(catalog.entries()) == 2


def test_partial_downloads_are_not_listed(catalog):
    directory = make_model(catalog.store)
    directory.rename(directory.with_name(".tiny-1m.partial"))
    assert catalog.scan() == ([], [])


def test_a_broken_model_is_a_problem_of_its_own(catalog):
    make_model(catalog.store)
    broken = make_model(catalog.store, "alpha/cpu/broken-1m", text="schema = 1\nname = 'broken'\nsize = 3\n")
    artifacts, problems = catalog.scan()
    assert [artifact.name for artifact in artifacts] == ["tiny"]
    assert [problem.path for problem in problems] == [broken]
    assert "size" in problems[0].reason
    with pytest.raises(InvalidModelError, match="size"):
        catalog.find("broken:1m")


def test_what_cannot_be_looked_at_hides_nothing_else(catalog):
    make_model(catalog.store)
    # As a directory of another user or on a disk that is gone: looking at it fails.
    for folder in (catalog.store, catalog.store / "alpha", catalog.store / "alpha/cpu"):
        (folder / "a-closed").symlink_to("x" * 300)
    artifacts, problems = catalog.scan()
    assert [artifact.name for artifact in artifacts] == ["tiny"]
    assert [problem.path for problem in problems] == [catalog.store / "alpha/cpu/a-closed"]


def test_a_directory_without_model_toml_is_a_model(tmp_path, catalog):
    directory = tmp_path / "My Model 2"
    (directory / "sub").mkdir(parents=True)
    (directory / "a.gguf").write_bytes(b"123")
    (directory / "sub" / "b.json").write_bytes(b"{}")
    (directory / ".cache").write_bytes(b"x")
    artifact = catalog.artifact(directory)
    assert artifact.name == "My-Model-2"
    assert artifact.platform is None
    assert [(file.name, file.size_bytes) for file in artifact.files] == [("a.gguf", 3), ("sub/b.json", 2)]
    assert default_model_id(artifact) == "My-Model-2"
    assert default_model_id(artifact, platform="p") == "My-Model-2@p"


def test_a_single_file_is_a_model(tmp_path, catalog):
    file = tmp_path / "some.Q4_0.gguf"
    file.write_bytes(b"123")
    artifact = catalog.artifact(file)
    assert (artifact.path, artifact.name, artifact.directory) == (file, "some.Q4_0", tmp_path)
    assert [entry.name for entry in artifact.files] == ["some.Q4_0.gguf"]


def test_relative_paths_become_absolute(tmp_path, catalog, monkeypatch):
    (tmp_path / "m.bin").write_bytes(b"1")
    monkeypatch.chdir(tmp_path)
    assert catalog.artifact(Path("m.bin")).path == tmp_path / "m.bin"


@pytest.mark.parametrize("where", ["none", "empty"])
def test_what_is_no_model_is_refused(tmp_path, catalog, where):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidModelError):
        catalog.artifact(tmp_path / where)
