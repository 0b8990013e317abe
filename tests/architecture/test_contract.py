"""The contract's own promises: the error tree, the exports, frozen values, documented hooks."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re

import pytest
from workspace import ROOT

from cardcage_sdk import errors, hookspecs

CONTRACT_MODULES = [
    "capabilities",
    "chat",
    "dialect",
    "embeddings",
    "engine",
    "errors",
    "events",
    "hookspecs",
    "library",
    "models",
    "options",
    "platform",
    "service",
    "sources",
]
POSITIONAL_ALLOWED = {
    "TextPart": "one field, named like the class",
    "Text": "yielded once a token by every engine",
    "TextDelta": "made once a token by the text pipeline",
    "ReasoningDelta": "made once a token by the text pipeline",
}


def modules():
    return [importlib.import_module(f"cardcage_sdk.{name}") for name in CONTRACT_MODULES]


def test_the_error_tree_in_the_docstring_is_the_tree() -> None:
    drawn = re.findall(r"[│ ]*[├└]── (\w+)", errors.__doc__ or "")
    assert drawn == [cls.__name__ for cls in errors.error_classes()[1:]]


@pytest.mark.parametrize("cls", errors.error_classes(), ids=lambda cls: cls.__name__)
def test_every_error_is_documented_and_crosses_the_pipe(cls: type[errors.CardcageError]) -> None:
    assert (cls.__doc__ or "").strip().split("\n")[0].endswith((".", "!"))
    assert re.fullmatch(r"[a-z_]+", cls.code)
    fields = {name: f"value of {name}" for name in cls.FIELDS}
    rebuilt = errors.from_wire({"class": cls.__name__, "message": "what happened", "param": "p", "fields": fields})
    assert type(rebuilt) is cls
    assert (rebuilt.message, rebuilt.param, rebuilt.fields, str(rebuilt)) == (
        "what happened",
        "p",
        fields,
        "what happened",
    )
    assert rebuilt.to_wire() == {"class": cls.__name__, "message": "what happened", "param": "p", "fields": fields}


def test_an_unknown_error_class_is_an_engine_failure_and_keeps_its_words() -> None:
    rebuilt = errors.from_wire({"class": "FutureError", "message": "new kind", "param": None, "fields": {"x": 1}})
    assert type(rebuilt) is errors.EngineFailedError
    assert rebuilt.message == "new kind"


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.__name__)
def test_exports_are_the_public_names_sorted(module) -> None:
    assert sorted(module.__all__) == sorted(set(module.__all__))
    defined = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and getattr(value, "__module__", None) == module.__name__
        and (inspect.isclass(value) or inspect.isfunction(value))
    }
    assert defined - set(module.__all__) <= hook_names(), (
        f"{module.__name__} does not export {defined - set(module.__all__)}"
    )
    for name in module.__all__:
        assert hasattr(module, name)


def hook_names() -> set[str]:
    return {name for name, value in vars(hookspecs).items() if hasattr(value, "cardcage_spec")}


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.__name__)
def test_neutral_values_are_frozen_and_keyword_only(module) -> None:
    for value in vars(module).values():
        if not (inspect.isclass(value) and dataclasses.is_dataclass(value) and value.__module__ == module.__name__):
            continue
        assert value.__dataclass_params__.frozen, value
        if value.__name__ not in POSITIONAL_ALLOWED:
            assert all(field.kw_only for field in dataclasses.fields(value)), value


def test_every_hook_is_documented_with_its_arguments() -> None:
    assert hook_names() == {"register_platforms", "register_dialects", "register_sources"}
    headings = set(re.findall(r"^### `(.+)`$", (ROOT / "docs/reference/hooks.md").read_text(), re.MULTILINE))
    for name in hook_names():
        arguments = ", ".join(inspect.signature(getattr(hookspecs, name)).parameters)
        assert f"{name}({arguments})" in headings
