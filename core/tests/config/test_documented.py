"""The page that lists the configuration is complete and says the values of the code."""

import json
import re
from pathlib import Path

import pytest

from cardcage.config import ENVIRONMENT, PluginsConfig, SchedulingConfig, ServerConfig
from cardcage.config.tables import GenerationTable, ModelTable

PAGE = (Path(__file__).parents[3] / "docs/reference/configuration.md").read_text()


def section(title: str) -> str:
    start = PAGE.index(f"\n## {title}")
    end = PAGE.find("\n## ", start + 1)
    return PAGE[start : end if end > 0 else None]


def rows(title: str) -> dict[str, str]:
    return dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", section(title), flags=re.MULTILINE))


@pytest.mark.parametrize(
    ("title", "table"),
    [("`[server]`", ServerConfig), ("`[scheduling]`", SchedulingConfig), ("`[plugins]`", PluginsConfig)],
)
def test_every_key_with_its_default(title, table):
    documented = rows(title)
    assert set(documented) == set(table.model_fields)
    for key, field in table.model_fields.items():
        shown = documented[key].strip("`")
        if field.default is None:
            assert shown == "none"
        elif isinstance(field.default, str):
            assert shown == field.default
        else:
            value = list(field.default) if isinstance(field.default, tuple) else field.default
            assert json.loads(shown) == value


def test_every_key_of_models_and_defaults():
    text = section("`[defaults]`")
    assert set(rows("`[defaults]`")) == {*ModelTable.model_fields, "default_params", "options"}
    for key in GenerationTable.model_fields:
        assert f"`{key}`" in text


def test_every_variable():
    text = section("Environment")
    for variable, key in ENVIRONMENT.items():
        assert f"`{variable}`" in text
        assert f"`{key}`" in text
