"""`cardcage key`, as a user types it, without a server."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cardcage.cli.keys import parse_expiry

NOW = datetime(2026, 12, 1, 12, 0, tzinfo=UTC).timestamp()
KEY = r"cage_[0-9a-f]{12}_[A-Za-z0-9_-]{43}"


@pytest.fixture
def key(tmp_path: Path, run_command):
    def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = run_command("key", *arguments, "--data-dir", str(tmp_path / "data"), check=False)
        assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    return run


def test_the_key_stands_alone_on_standard_output(key) -> None:
    made = key("create", "laptop")
    assert re.fullmatch(KEY + "\n", made.stdout)
    assert "only time" in made.stderr
    assert "from now on every request needs a key" in made.stderr
    assert "from now on" not in key("create", "phone").stderr


def test_everything_as_json(key) -> None:
    made = json.loads(
        key("create", "ci", "--scope", "inference", "--scope", "models:manage", "--expires", "4w", "--json").stdout
    )
    assert re.fullmatch(KEY, made.pop("key"))
    assert (made["name"], made["state"], made["scopes"]) == ("ci", "active", ["inference", "models:manage"])
    lifetime = datetime.fromisoformat(made["expires_at"]) - datetime.fromisoformat(made["created_at"])
    assert lifetime.days in {27, 28}
    assert json.loads(key("list", "--json").stdout) == [made]
    revoked = json.loads(key("revoke", made["id"], "--json").stdout)
    assert (revoked["state"], revoked["id"]) == ("revoked", made["id"])
    assert json.loads(key("list", "--json").stdout) == [revoked]


def test_a_list_shows_no_secret(key) -> None:
    secret = key("create", "laptop").stdout.strip()[-43:]
    shown = key("list")
    assert secret not in shown.stdout + shown.stderr
    assert re.search(r"laptop +[0-9a-f]{12} +active +inference, models:read, responses:read", shown.stdout)


def test_the_default_uses_models_and_all_changes_them(key) -> None:
    scopes = [
        json.loads(key("create", name, *more, "--json").stdout)["scopes"]
        for name, more in (("a", ()), ("b", ("--scope", "all")))
    ]
    assert scopes[0] == ["inference", "models:read", "responses:read"]
    assert len(scopes[1]) == 5


def test_revoking_the_last_key_says_that_access_stays_closed(key) -> None:
    key("create", "a")
    key("create", "b")
    assert "stays closed" not in key("revoke", "a").stderr
    assert "stays closed" in key("revoke", "b").stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("create",), 2, "Missing argument"),
        (("create", "a b"), 1, "is no name for a key"),
        (("create", "x", "--scope", "root"), 2, "'root' is none of models:read"),
        (("create", "x", "--expires", "soon"), 2, "neither a duration"),
        (("create", "x", "--expires", "2020-01-01"), 2, "has passed"),
        (("create", "taken"), 1, "already"),
        (("revoke", "nobody"), 1, "'nobody'"),
    ],
)
def test_what_is_refused(key, arguments: tuple[str, ...], code: int, message: str) -> None:
    key("create", "taken")
    assert message in re.sub(r"[\s│]+", " ", key(*arguments, code=code).stderr)


def test_a_database_of_a_newer_version_is_refused(key, tmp_path: Path) -> None:
    key("create", "a")
    with sqlite3.connect(tmp_path / "data" / "cardcage.db") as connection:
        connection.execute("INSERT INTO cardcage_migrations VALUES ('access', 99, 'time travel', 0)")
    connection.close()
    assert "newer version" in key("list", code=4).stderr


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30m", 1800),
        ("12h", 43200),
        ("90d", 90 * 86400),
        ("4w", 28 * 86400),
        ("2026-12-02", 43200),
        ("2026-12-01T13:00", 3600),
    ],
)
def test_expiries(text: str, seconds: float) -> None:
    assert parse_expiry(text, now=NOW) == NOW + seconds


def test_an_expiry_may_have_a_zone() -> None:
    assert parse_expiry("2026-12-01T13:00:00+02:00", now=NOW - 7200) == NOW - 3600


@pytest.mark.parametrize("text", ["", "0d", "-1d", "1y", "10", "d", "2026-13-01", "2026-12-01", "1 d", "1d2h"])
def test_what_is_no_expiry(text: str) -> None:
    with pytest.raises(ValueError, match=r"neither|passed"):
        parse_expiry(text, now=NOW)


def test_the_doctor_tells_of_keys_and_of_sockets_that_need_none(key, run_command, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[paths]\ndata_dir = "{tmp_path}/data"\n[[listen]]\naddress = "0.0.0.0"\nport = 0\n')

    def findings() -> dict[str, tuple[str, str]]:
        shown = run_command("doctor", "--json", "--config", str(file), check=False)
        found = json.loads(shown.stdout)["findings"]
        return {item["subject"]: (item["grade"], item["detail"]) for item in found if item["topic"] == "access"}

    before = findings()
    assert before["keys"] == ("ok", "0 of 0 work; requests need none")
    assert before["0.0.0.0:0"][0] == "warning"
    assert not (tmp_path / "data").exists()
    key("create", "a")
    assert findings() == {"keys": ("ok", "1 of 1 work; every request needs one")}
    key("revoke", "a")
    assert findings() == {"keys": ("warning", "0 of 1 work; every request needs one")}
    (tmp_path / "data" / "cardcage.db").write_bytes(b"junk" * 1000)
    assert findings()["keys"][0] == "fault"
