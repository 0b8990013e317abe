"""`[[listen]]` and `[security] require_keys` as they are written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cardcage.config import Config, ListenEntry, SecurityConfig, load_config
from cardcage_sdk.errors import ConfigError

PAGE = Path(__file__).parents[3] / "docs/reference/configuration.md"


def load(tmp_path: Path, text: str, *, environ: dict[str, str] | None = None, **overrides: object) -> Config:
    file = tmp_path / "config.toml"
    file.write_text(text)
    return load_config(file=file, environ=environ or {}, overrides={f"server.{k}": v for k, v in overrides.items()})


def test_every_key_of_an_entry(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """
        [security]
        require_keys = true
        [[listen]]
        address = "192.168.1.5"
        port = 9000
        dialects = ["openai"]
        require_keys = false
        origins = ["https://chat.example"]
        optional = true
        [[listen]]
        unix = "run/cage.sock"
        [[listen]]
        """,
    )
    first, second, third = config.listeners
    assert first.model_dump() == {
        "address": "192.168.1.5",
        "port": 9000,
        "unix": None,
        "dialects": ("openai",),
        "require_keys": False,
        "origins": ("https://chat.example",),
        "optional": True,
    }
    assert (second.label, second.is_local) == (f"unix:{tmp_path}/run/cage.sock", True)
    assert (third.label, third.dialects, third.require_keys, third.optional) == ("127.0.0.1:9265", None, None, False)
    assert config.security.require_keys is True


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[listen]\nport = 1", r"\[\[listen\]\] entries"),
        ("listen = [1]", r"\[\[listen\]\] entries"),
        ("[[listen]]\nprot = 1", r"entry 1: unknown key 'prot'; did you mean 'port'"),
        ("[[listen]]\nport = 99999", "entry 1: port: "),
        ("[[listen]]\nport = '1'", "entry 1: port: "),
        ("[[listen]]\naddress = ''", "entry 1: address: "),
        ("[[listen]]\nunix = '/x'\nport = 1", "entry 1: unix stands instead of address and port"),
        ("[[listen]]\nunix = '/x'\n[[listen]]\nunix = '/y'", "entry 2: only one entry"),
        ("[[listen]]\n[[listen]]\nport = 9265", "entry 2: 127.0.0.1:9265 is listed twice"),
        ("[server]\nport = 1\n[[listen]]", "host and port stand for one socket"),
        ("[security]\nrequire_keys = 'yes'", "require_keys"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, text)


def test_several_free_ports_are_several_sockets(tmp_path: Path) -> None:
    assert len(load(tmp_path, "[[listen]]\nport = 0\n[[listen]]\nport = 0").listeners) == 2


def test_a_stronger_layer_replaces_the_table(tmp_path: Path) -> None:
    text = "[[listen]]\nport = 1\n[[listen]]\nport = 2"
    assert [entry.label for entry in load(tmp_path, text, port=7).listeners] == ["127.0.0.1:7"]
    environ = {"CARDCAGE_HOST": "0.0.0.0"}
    assert [entry.label for entry in load(tmp_path, text, environ=environ).listeners] == ["0.0.0.0:9265"]


@pytest.mark.parametrize(("heading", "table"), [("[[listen]]", ListenEntry), ("[security]", SecurityConfig)])
def test_the_documentation_lists_exactly_the_keys(heading: str, table: type[ListenEntry | SecurityConfig]) -> None:
    section = PAGE.read_text().partition(f"## `{heading}`")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(table.model_fields)
