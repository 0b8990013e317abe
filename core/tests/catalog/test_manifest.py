"""`model.toml`, schema 1: every key, and every way in which it can be wrong."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cardcage.catalog import Catalog
from cardcage_sdk.errors import InvalidModelError

HEAD = 'schema = 1\nname = "m"\n'


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "m"
    directory.mkdir()
    (directory / "w.bin").write_bytes(b"12345")
    (directory / "t.jinja").write_text("{{ messages }}")
    return directory


def read(model: Path, text: str):
    (model / "model.toml").write_text(text)
    return Catalog(model.parent / "store").artifact(model)


def test_every_key_reaches_the_artifact(model):
    text = f"""
        schema = 1
        name = "qwen3"
        size = "4b"
        kind = "chat"
        platform = "some"
        chips = ["rk3588", "rk3576"]
        license = "Apache-2.0"
        source = "hub:x/y"
        context_tokens = 4096
        chat_template_file = "t.jinja"
        tool_format = "hermes"
        reasoning_tags = ["<a>", "</a>"]
        [[files]]
        name = "w.bin"
        size_bytes = 5
        sha256 = "{"AB" * 32}"
        [default_params]
        temperature = 0.3
        max_context_len = 2048
        stop = ["x"]
        [some]
        runtime = "1.2"
        nested = {{ a = 1 }}
        [other]
        ignored = true
    """
    artifact = read(model, text)
    assert (artifact.name, artifact.size, artifact.kind, artifact.platform) == ("qwen3", "4b", "chat", "some")
    assert artifact.chips == ("rk3588", "rk3576")
    assert (artifact.license, artifact.source, artifact.context_tokens) == ("Apache-2.0", "hub:x/y", 4096)
    assert artifact.chat_template == "{{ messages }}"
    assert (artifact.tool_format, artifact.reasoning_tags) == ("hermes", ("<a>", "</a>"))
    (file,) = artifact.files
    assert (file.name, file.size_bytes, file.sha256) == ("w.bin", 5, "ab" * 32)
    assert artifact.extra == {"runtime": "1.2", "nested": {"a": 1}}
    defaults = Catalog(model.parent).defaults(artifact)
    assert defaults.sampling.temperature == 0.3
    assert defaults.sampling.stop == ("x",)
    assert defaults.max_context_len == 2048


def test_without_files_every_file_beside_it_counts(model):
    artifact = read(model, HEAD)
    assert [file.name for file in artifact.files] == ["t.jinja", "w.bin"]
    defaults = Catalog(model.parent).defaults(artifact)
    assert defaults.sampling.temperature is None


def test_a_model_without_model_toml_has_silent_defaults(model):
    artifact = Catalog(model.parent).artifact(model / "w.bin")
    assert Catalog(model.parent).defaults(artifact).max_context_len is None


def test_unknown_keys_warn_and_are_left_alone(model):
    with capture_logs() as logs:
        read(
            model,
            HEAD + "flavour = 1\n[default_params]\nwarmth = 2\n[future]\na = 1\n[[files]]\nname='w.bin'\nmd5='x'\n",
        )
    keys = {entry["key"] for entry in logs}
    assert keys == {"flavour", "default_params.warmth", "files.md5"}
    assert all(entry["log_level"] == "warning" for entry in logs)


@pytest.mark.parametrize(
    "name",
    [
        "../w.bin",
        "a/../../w.bin",
        "/etc/passwd",
        "..",
        ".",
        "",
        "./w.bin",
        "a//b",
        "~/w.bin",
        "..\\\\w.bin",
        "C:\\\\w.bin",
        "w\\u0000.bin",
    ],
)
@pytest.mark.parametrize("key", ["files", "chat_template_file"])
def test_no_file_name_leads_out_of_the_directory(model, name, key):
    line = f'[[files]]\nname = "{name}"\n' if key == "files" else f'chat_template_file = "{name}"\n'
    with pytest.raises(InvalidModelError, match="relative path inside the model directory"):
        read(model, HEAD + line)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["'schema' is missing"]),
        ("schema = 1", ["'name' is missing"]),
        ("schema = 2\nname = 'm'", ["schema 2", "upgrade cardcage"]),
        ("schema = '1'\nname = 'm'", ["schema", "whole number"]),
        ("schema = true\nname = 'm'", ["schema", "whole number"]),
        ("schema = 0\nname = 'm'", ["schema"]),
        ("schema = 1\nname = 5", ["name", "string"]),
        ("schema = 1\nname = ''", ["name"]),
        ("schema = 1\nname = 'a b'", ["name", "white space"]),
        ("schema = 1\nname = 'a/b'", ["name"]),
        ('schema = 1\nname = "a\\u001b[31m"', ["name", "cannot be shown"]),
        (HEAD + "size = 4", ["size"]),
        (HEAD + "kind = 'poem'", ["kind", "'chat'"]),
        (HEAD + "platform = 'Up/Per'", ["platform"]),
        (HEAD + "chips = 'cpu'", ["chips"]),
        (HEAD + "context_tokens = 0", ["context_tokens"]),
        (HEAD + "context_tokens = true", ["context_tokens"]),
        (HEAD + "reasoning_tags = ['<a>']", ["reasoning_tags"]),
        (HEAD + "reasoning_tags = ['<a>', '']", ["reasoning_tags"]),
        (HEAD + "chat_template = 'x'\nchat_template_file = 't.jinja'", ["exclude each other"]),
        (HEAD + "chat_template_file = 'none.jinja'", ["none.jinja", "cannot be read"]),
        (HEAD + "[[files]]\nname = 'none.bin'", ["'none.bin' is missing"]),
        (HEAD + "[[files]]\nname = 'w.bin'\nsize_bytes = 6", ["5 bytes instead of 6"]),
        (HEAD + "[[files]]\nname = 'w.bin'\nsha256 = 'abc'", ["sha256"]),
        (HEAD + "[[files]]\nsize_bytes = 5", ["name"]),
        (HEAD + "files = 'w.bin'", ["files"]),
        (HEAD + "[default_params]\ntemperature = 'hot'", ["default_params.temperature"]),
        (HEAD + "default_params = 3", ["[default_params]"]),
        (HEAD + "platform = 'some'\nsome = 1", ["[some]"]),
        ("schema = 1\nname = x", ["line 2"]),
    ],
)
def test_what_is_wrong_is_said_in_one_line(model, text, words):
    with pytest.raises(InvalidModelError) as caught:
        read(model, text)
    message = caught.value.message
    assert str(model / "model.toml") in message
    assert "\n" not in message
    for word in words:
        assert word in message


def test_a_file_that_shrank_is_refused_at_the_next_look(model):
    artifact = read(model, HEAD + "[[files]]\nname = 'w.bin'\nsize_bytes = 5\n")
    (model / "w.bin").write_bytes(b"123")
    with pytest.raises(InvalidModelError, match="incomplete"):
        Catalog(model.parent).artifact(artifact.path)
