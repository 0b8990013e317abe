"""Editing a person's file: exactly the entry changes, whatever else the file holds."""

from __future__ import annotations

import difflib
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardcage.config.edit import add_model, remove_model, set_instance_count
from cardcage_sdk.errors import ConfigError

COMMENTED = """\
# My board. Do not touch!
[server]   # the service
port = 9265   # LlamaPi's port

  # indented on purpose
[defaults]
stop = ["</s>",   # a comment inside an array
        "[[models]]"]
temperature = 0.70

[[models]]
# the big one
model_id = "Qwen3"   # as clients call it
model_path = "/srv/qwen3"
[models.default_params]
temperature = 0.1

# about the small one
[[models]]
model_id = 'bge'
model_path = "/srv/bge"
instance_count = 2 # two

# what follows is about platforms
[platforms.npu]
note = '''
[[models]]
not an entry
'''
"""

ENTRY = {"model_id": "smollm2:135m@llamacpp-cpu", "model_path": '/srv/a "quoted" path'}


def changed(before: str, after: str) -> list[str]:
    return [line for line in difflib.unified_diff(before.splitlines(), after.splitlines(), n=0) if line[:1] in "+-"][2:]


def without_decoys(text: str) -> str:
    """Texts that look like entries inside of strings, taken out: the editor gives up on those rather than guess."""
    return text.replace('"[[models]]"', '"]"').replace("\n[[models]]\nnot an entry", "\nnot an entry")


FILES = [
    "",
    "# only a comment",
    "[server]\nport = 1\n",
    "[server]\nport = 1",
    "[server]\r\nport = 1\r\n",
    COMMENTED,
    without_decoys(COMMENTED),
]


@pytest.mark.parametrize("text", FILES)
def test_adding_adds_exactly_the_entry(text: str) -> None:
    after = add_model(text, ENTRY)
    assert after.startswith(text)
    assert changed(text, after) == [
        *(["+"] if text else []),
        "+[[models]]",
        '+model_id = "smollm2:135m@llamacpp-cpu"',
        '+model_path = "/srv/a \\"quoted\\" path"',
    ]
    assert tomllib.loads(after)["models"][-1] == ENTRY
    assert ("\r\n" in text) == ("\r\n" in after)
    assert after.count("\r\n") in {0, after.count("\n")}


@pytest.mark.parametrize("text", [text for text in FILES if text != COMMENTED and (not text or text.endswith("\n"))])
def test_removing_what_was_added_leaves_the_file_as_it_was(text: str) -> None:
    assert remove_model(add_model(text, ENTRY), str(ENTRY["model_id"])) == text


def test_removing_takes_the_entry_with_its_own_comments_and_no_others() -> None:
    text = without_decoys(COMMENTED)
    assert changed(text, remove_model(text, "Qwen3")) == [
        "-",
        "-[[models]]",
        "-# the big one",
        '-model_id = "Qwen3"   # as clients call it',
        '-model_path = "/srv/qwen3"',
        "-[models.default_params]",
        "-temperature = 0.1",
    ]
    rest = remove_model(text, "bge")
    assert "# what follows is about platforms\n[platforms.npu]" in rest
    assert [entry["model_id"] for entry in tomllib.loads(rest)["models"]] == ["Qwen3"]


def test_the_count_changes_in_its_place() -> None:
    text = without_decoys(COMMENTED)
    assert changed(text, set_instance_count(text, "bge", 3)) == [
        "-instance_count = 2 # two",
        "+instance_count = 3 # two",
    ]
    assert changed(text, set_instance_count(text, "Qwen3", 3)) == ["+instance_count = 3"]


@pytest.mark.parametrize(
    "text",
    [
        'models = [{model_id = "a", model_path = "/a"}]\n',
        COMMENTED,
    ],
)
def test_what_only_a_person_can_edit_is_left_alone(text: str) -> None:
    with pytest.raises(ConfigError, match="only a person"):
        remove_model(text, "a" if text.startswith("models") else "bge")


def test_a_list_in_one_line_takes_no_further_entry() -> None:
    with pytest.raises(ConfigError, match="only a person"):
        add_model('models = [{model_id = "a", model_path = "/a"}]\n', ENTRY)


def test_an_id_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="no \\[\\[models\\]\\] entry"):
        remove_model("[server]\n", "x")
    with pytest.raises(ConfigError, match="not valid TOML"):
        add_model("[server\n", ENTRY)


@given(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
)
def test_any_id_and_path_come_back(model_id: str, path: str) -> None:
    try:
        after = add_model("# file\n", {"model_id": model_id, "model_path": path})
    except ConfigError:
        return
    assert tomllib.loads(after)["models"] == [{"model_id": model_id, "model_path": path}]
    assert remove_model(after, model_id) == "# file\n"
