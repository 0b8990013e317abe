"""Keys, origins, hosts and sockets, at a real server process."""

from __future__ import annotations

import base64
import json
import socket
import stat
import time
from pathlib import Path

import httpx
import pytest

CHAT = {"model": "nobody", "messages": [{"role": "user", "content": "hello"}]}


def raw(url: str, request: bytes) -> bytes:
    """What a server answers to these bytes, up to the end of the connection."""
    parts = httpx.URL(url)
    with socket.create_connection((parts.host, parts.port), timeout=20) as connection:
        connection.sendall(request)
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
        return answer


@pytest.fixture(scope="module")
def closed(shared_start):
    """A server with keys."""
    server = shared_start()
    server.key = server.make_key("all", "--scope", "all")
    server.reader = server.make_key("reader", "--scope", "models:read")
    return server


@pytest.fixture(scope="module")
def opened(shared_start):
    """A server without keys."""
    return shared_start()


# --- life of keys


def test_access_is_open_until_the_first_key_and_closed_from_then_on(start_server) -> None:
    server = start_server()
    with server.client() as client:
        assert client.get("/v1/models").status_code == 200
        key = server.make_key("first")
        assert client.get("/v1/models").status_code == 401
        assert client.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code == 200
        server.command("key", "revoke", "first")
        answer = client.get("/v1/models", headers={"Authorization": f"Bearer {key}"})
        assert answer.status_code == 401
        assert "'first' was revoked" in answer.json()["error"]["message"]
        assert client.get("/v1/models").status_code == 401


def test_an_expired_key_is_told_so(start_server) -> None:
    server = start_server("[security]\nrequire_keys = true\n")
    made = server.command("key", "create", "brief", "--expires", "30m", "--json")
    key = json.loads(made.stdout)["key"]
    with server.client(key) as client:
        assert client.get("/v1/models").status_code == 200
        import sqlite3

        with sqlite3.connect(server.data_dir / "cardcage.db") as connection:
            connection.execute("UPDATE access_keys SET expires_at = ?", (time.time() - 1,))
        connection.close()
        answer = client.get("/v1/models")
        assert answer.status_code == 401
        assert "'brief' has expired" in answer.json()["error"]["message"]


def test_keys_may_be_required_before_there_is_one(start_server) -> None:
    server = start_server("[security]\nrequire_keys = true\n")
    with server.client("sk-dummy") as client:
        assert client.get("/v1/models").status_code == 401
    assert [event["level"] for event in server.events("every request needs a key, and there is none yet")] == [
        "warning"
    ]


def test_keys_may_be_switched_off_though_there_are_some(start_server) -> None:
    server = start_server("[security]\nrequire_keys = false\n")
    server.make_key("idle")
    with server.client() as client:
        assert client.get("/v1/models").status_code == 200


def test_a_key_that_is_not_needed_is_not_looked_at(opened) -> None:
    with opened.client("sk-no-key-required") as client:
        assert client.get("/v1/models").status_code == 200
    assert not (opened.data_dir / "cardcage.db").exists()


def test_a_damaged_database_stops_the_start(start_server) -> None:
    first = start_server()
    first.stop()
    (first.data_dir / "cardcage.db").write_bytes(b"junk" * 1000)
    process = first.command("serve", "--log-format", "json", check=False)
    assert process.returncode == 4
    assert "cardcage.db' cannot be used" in process.stderr
    assert "Traceback" not in process.stderr


def test_a_database_that_breaks_while_serving_admits_nobody(start_server) -> None:
    server = start_server()
    with server.client() as client:
        assert client.get("/v1/models").status_code == 200
        # Made after the start, so that it is opened by the request.
        (server.data_dir / "cardcage.db").write_bytes(b"junk" * 1000)
        answer = client.get("/v1/models")
        assert answer.status_code == 500
        assert client.get("/livez").status_code in {200, 500}


# --- how a key is shown


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer {key}"},
        {"Authorization": "bearer   {key}"},
        {"x-api-key": "{key}"},
        {"X-API-Key": "{key}"},
        {"Authorization": "Bearer sk-dummy", "x-api-key": "{key}"},
        {"Authorization": "Basic abc", "x-api-key": "{key}"},
    ],
)
def test_ways_to_show_a_key(closed, headers: dict[str, str]) -> None:
    shown = {name: value.format(key=closed.key) for name, value in headers.items()}
    with closed.client() as client:
        assert client.get("/v1/models", headers=shown).status_code == 200


@pytest.mark.parametrize(
    "query", ["api_key={key}", "a=1&api_key={key}&b=2", "api%5Fkey={key}", "api_key=x&api_key={key}"]
)
def test_a_key_in_the_query_works_and_goes_no_further(closed, query: str) -> None:
    with closed.client() as client:
        answer = client.get(f"/probe/own?{query.format(key=closed.key)}")
        assert answer.status_code == 200
        assert "api_key" not in answer.text
        assert closed.key not in answer.text
        if "a=1" in query:
            assert answer.json() == {"query": "a=1&b=2", "args": {"a": "1", "b": "2"}}


@pytest.mark.parametrize(
    "headers",
    [{"Authorization": "{key}"}, {"Authorization": "Token {key}"}, {"Authorization": "Bearer"}, {"Cookie": "{key}"}],
)
def test_what_is_no_way_to_show_a_key(closed, headers: dict[str, str]) -> None:
    with closed.client() as client:
        shown = {name: value.format(key=closed.key) for name, value in headers.items()}
        assert client.get("/v1/models", headers=shown).status_code == 401


def test_no_key_ever_reaches_a_log(start_server) -> None:
    server = start_server('[server]\nport = 0\nlog_level = "trace"\n')
    key = server.make_key("secret", "--scope", "all")
    secret = key[-43:]
    with server.client() as client:
        for path in ("/v1/models", "/probe/own", "/nothing", "/v1/chat/completions", "/probe/broken"):
            assert client.get(f"{path}?api_key={key}").status_code in {200, 404, 405, 500}
            client.get(f"{path}?api_key={key}x")
            client.get(path, headers={"Authorization": f"Bearer {key}"})
            client.get(path, headers={"x-api-key": key})
            client.post(path, json={**CHAT, "api_key": "in-a-body"}, headers={"x-api-key": key})
        with client.stream("GET", f"/probe/socket?api_key={key}", headers=UPGRADE) as response:
            assert response.status_code == 101
    server.stop()
    log = server.log()
    assert secret not in log
    assert '"key": "secret"' in log


UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": base64.b64encode(b"sixteen bytes...").decode(),
}


def test_a_websocket_is_refused_with_a_status_and_a_body(closed) -> None:
    with closed.client() as client:
        answer = client.get("/probe/socket", headers=UPGRADE)
        assert answer.status_code == 401
        assert answer.json()["form"] == "probe"
        assert client.get("/probe/socket", headers={**UPGRADE, "Origin": "https://evil.example"}).status_code == 403


# --- no way round


@pytest.mark.parametrize(
    "target",
    [
        "/v1/models",
        "http://127.0.0.1/v1/models",
        "http://localhost:9265/v1/models",
        "//v1/models",
        "/v1//models",
        "/v1/models/",
        "/v1/./models",
        "/livez/../v1/models",
        "/%76%31/models",
        "/probe/open/../own",
        "/probe/open/",
        "/probe/open%00",
        "/livez%2f..%2fv1%2fmodels",
        "/LIVEZ",
        "*",
        "/",
    ],
)
def test_no_spelling_of_a_path_gets_round_the_guard(closed, target: str) -> None:
    head = f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    status = raw(closed.url, head.encode()).split(b" ", 2)[1]
    assert status == b"401", target


@pytest.mark.parametrize(
    "target",
    [
        "/probe/manage/7",
        "http://x/probe/manage/7",
        "http://x/probe/manage/7?a=1",
        "//probe/manage/7",
        "////probe/manage/7",
        "http://x//probe/manage/7",
        "/%2fprobe/manage/7",
    ],
)
def test_every_spelling_of_a_path_needs_its_scope(closed, target: str) -> None:
    lines = [
        f"POST {target} HTTP/1.1",
        "Host: localhost",
        f"x-api-key: {closed.reader}",
        "Content-Length: 0",
        "Connection: close",
    ]
    answer = raw(closed.url, "\r\n".join([*lines, "", ""]).encode())
    assert answer.split(b" ", 2)[1] == b"403", target
    assert b"models:manage" in answer


def test_a_connection_that_was_refused_an_upgrade_is_told_to_close(closed) -> None:
    with closed.client() as client:
        for _ in range(20):
            refused = client.get("/probe/socket", headers=UPGRADE)
            assert (refused.status_code, refused.headers["connection"]) == (401, "close")


def test_a_refusal_of_a_large_body_reaches_the_client(closed) -> None:
    with closed.client() as client:
        answer = client.post("/v1/chat/completions", content=b"x" * (20 << 20))
    assert answer.status_code == 401


# --- what open paths tell


def test_supervisors_need_no_key_and_learn_no_details(closed) -> None:
    with closed.client() as client:
        assert client.get("/livez").status_code == 200
        stranger = client.get("/readyz")
        assert stranger.status_code in {200, 503}
        assert (stranger.json()["models"], stranger.json()["platforms"], stranger.json()["plugins"]) == ([], [], [])
        friend = client.get("/readyz", headers={"x-api-key": closed.reader}).json()
        assert {platform["id"] for platform in friend["platforms"]} >= {"scripted", "faulty"}
        assert client.get("/metrics").status_code == 401
        assert client.get("/metrics", headers={"x-api-key": closed.reader}).status_code == 200


def test_the_command_line_uses_the_key_of_its_environment(closed, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = closed.command("ps", check=False)
    assert refused.returncode == 1
    assert "CARDCAGE_API_KEY" in refused.stderr
    monkeypatch.setenv("CARDCAGE_API_KEY", closed.reader)
    assert closed.command("ps").returncode == 0


# --- pages and hosts


def test_a_preflight_needs_no_key_and_a_refusal_can_be_read(closed) -> None:
    with closed.client() as client:
        asked = {
            "Origin": "https://evil.example",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization, content-type, x-stainless-os",
            "Access-Control-Request-Private-Network": "true",
        }
        answer = client.options("/v1/chat/completions", headers=asked)
        assert answer.status_code == 204
        assert answer.headers["access-control-allow-origin"] == "*"
        assert answer.headers["access-control-allow-headers"] == "authorization, content-type, x-stainless-os"
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert answer.headers["access-control-allow-private-network"] == "true"
        refused = client.post("/v1/chat/completions", json=CHAT, headers={"Origin": "https://evil.example"})
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, "*")
        # Not a preflight: a request like any other.
        assert client.options("/v1/chat/completions").status_code == 401


@pytest.mark.parametrize(
    ("path", "origin", "allowed"),
    [
        ("/probe/any", "https://evil.example", "*"),
        ("/probe/any", "null", "*"),
        ("/probe/own", "https://evil.example", None),
        ("/probe/own", "null", None),
        ("/probe/own", "http://localhost:5173", "http://localhost:5173"),
        ("/probe/own", "http://127.0.0.1", "http://127.0.0.1"),
        ("/probe/deep/any", "https://evil.example", None),
        ("/livez", "https://evil.example", None),
        ("/metrics", "https://evil.example", None),
        ("/nothing", "https://evil.example", None),
    ],
)
def test_origins(opened, path: str, origin: str, allowed: str | None) -> None:
    with opened.client() as client:
        answer = client.get(path, headers={"Origin": origin})
        assert answer.headers.get("access-control-allow-origin") == allowed
        assert (answer.status_code == 403) == (allowed is None)
        preflight = client.options(path, headers={"Origin": origin, "Access-Control-Request-Method": "POST"})
        assert preflight.status_code == (403 if allowed is None else 204)
        if allowed not in {None, "*"}:
            assert answer.headers["vary"] == "Origin"


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:9265", 200), ("127.0.0.1", 200), ("[::1]:1", 200), ("evil.example:9265", 403), ("10.0.0.1", 403)],
)
def test_a_loopback_socket_answers_to_loopback_names_only(opened, host: str, status: int) -> None:
    with opened.client() as client:
        assert client.get("/v1/models", headers={"Host": host}).status_code == status


def test_configured_origins_and_hosts(start_server) -> None:
    server = start_server(
        '[security]\nallowed_origins = ["https://*.chat.example"]\nallowed_hosts = ["cage.example"]\n'
    )
    with server.client() as client:
        for origin, status in (("https://a.chat.example", 200), ("https://chat.example.evil", 403)):
            assert client.get("/v1/models", headers={"Origin": origin}).status_code == status
        for host, status in (("cage.example", 200), ("other.example", 403)):
            assert client.get("/v1/models", headers={"Host": host}).status_code == status


# --- sockets


def test_each_socket_has_rules_of_its_own(start_server) -> None:
    server = start_server(
        """
        [[listen]]
        port = 0
        require_keys = false
        [[listen]]
        address = "0.0.0.0"
        port = 0
        dialects = ["probe"]
        origins = ["https://chat.example"]
        [[listen]]
        unix = "cage.sock"
        dialects = ["openai"]
        require_keys = false
        """
    )
    key = server.make_key("lan", "--scope", "all")
    loopback, wide = (url for url in server.urls if url.startswith("http://"))
    with httpx.Client(trust_env=False) as client:
        assert client.get(f"{loopback}/v1/models").status_code == 200
        assert client.get(f"{loopback}/probe/own").status_code == 200
        assert client.get(f"{loopback}/probe/own", headers={"Origin": "https://chat.example"}).status_code == 403
        shown = {"x-api-key": key}
        assert client.get(f"{wide}/probe/own").status_code == 401
        assert client.get(f"{wide}/probe/own", headers=shown).status_code == 200
        assert client.get(f"{wide}/probe/own", headers={**shown, "Origin": "https://chat.example"}).status_code == 200
        assert client.get(f"{wide}/probe/own", headers={**shown, "Host": "any.name.example"}).status_code == 200
        not_served = client.get(f"{wide}/v1/models", headers=shown)
        assert (not_served.status_code, not_served.json()["error"]["code"]) == (404, "not_found")
        for spelling in ("//v1/models", "http://x///v1/models"):
            head = f"GET {spelling} HTTP/1.1\r\nHost: x\r\nx-api-key: {key}\r\nConnection: close\r\n\r\n"
            assert raw(wide, head.encode()).split(b" ", 2)[1] == b"404", spelling
        # The deep dialect is not served either: its path is answered in the form of who owns the rest here.
        deep = client.get(f"{wide}/probe/deep/own", headers=shown)
        assert (deep.status_code, deep.json()["form"]) == (404, "probe")
        assert client.get(f"{wide}/livez").status_code == 200
    path = server.config_file.parent / "cage.sock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://any.name") as client:
        assert client.get("/v1/models").status_code == 200
        assert client.get("/probe/own").status_code == 404
    assert server.stop() == 0
    assert not path.exists()


def test_a_wide_socket_warns_unless_it_needs_keys(start_server) -> None:
    wide = '[[listen]]\naddress = "0.0.0.0"\nport = 0\n'
    text = (
        "listening beyond this machine without any key: everyone who reaches this address can use and manage the models"
    )
    assert [event["level"] for event in start_server(wide).events(text)] == ["warning"]
    assert start_server(f"{wide}require_keys = true\n").events(text) == []
    assert start_server('[[listen]]\naddress = "::1"\nport = 0\n').events(text) == [] if socket.has_ipv6 else True
    server = start_server(wide)
    server.make_key("lan")
    server.stop()
    with httpx.Client(trust_env=False):
        assert "without any key" in server.log()


def test_a_busy_optional_socket_warns_and_a_busy_needed_one_stops_the_start(start_server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        busy = f"[[listen]]\nport = {port}\n"
        server = start_server(f"[[listen]]\nport = 0\n{busy}optional = true\n")
        assert len(server.urls) == 1
        left_out = server.events("an optional socket is left out")
        assert [(event["level"], event["listen"]) for event in left_out] == [("warning", f"127.0.0.1:{port}")]
        stopped = start_server(f"[[listen]]\nport = 0\n{busy}", ready=False)
        assert stopped.process.returncode == 5
        assert f"Port {port} of 127.0.0.1 is in use" in stopped.log()
        alone = start_server(f"{busy}optional = true\n", ready=False)
        assert alone.process.returncode == 4
        assert "Cannot listen anywhere" in alone.log()


def test_the_socket_file_of_a_dead_server_is_replaced_and_that_of_a_live_one_is_not(start_server) -> None:
    listen = '[[listen]]\nport = 0\n[[listen]]\nunix = "cage.sock"\n'
    first = start_server(listen)
    path = first.config_file.parent / "cage.sock"
    elsewhere = f'[[listen]]\nport = 0\n[[listen]]\nunix = "{path}"\n'
    assert start_server(elsewhere, ready=False).process.returncode == 5
    first.process.kill()
    first.process.wait(timeout=10)
    assert path.is_socket()
    second = start_server(elsewhere)
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://x") as client:
        assert client.get("/livez").status_code == 200
    assert second.stop() == 0


def test_a_file_in_the_way_of_a_socket_is_not_removed(start_server, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    server = start_server(f'[[listen]]\nunix = "{tmp_path}/precious"\n', ready=False)
    assert server.process.returncode != 0
    assert (tmp_path / "precious").read_text() == "data"


# --- files that a request may name


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_model_paths(start_server, tmp_path: Path, address: str) -> None:
    roots = tmp_path / "roots"
    roots.mkdir()
    server = start_server(f'[[listen]]\naddress = "{address}"\nport = 0\n')
    outside = tmp_path / "hello.scripted.json"
    outside.write_text("{}")
    inside = server.config_file.parent / "models" / "inside.scripted.json"
    inside.write_text("{}")
    link = server.config_file.parent / "models" / "link.scripted.json"
    link.symlink_to(outside)
    expected = 200 if address == "127.0.0.1" else 403
    with server.client() as client:
        for number, (path, status) in enumerate([(outside, expected), (inside, 200), (link, expected)]):
            answer = client.post("/v1/models/load", json={"model_id": f"m{number}", "model_path": str(path)})
            assert answer.status_code == status, answer.text
            if status == 403:
                assert answer.json()["error"]["code"] == "path_not_allowed"


def test_a_configured_root_widens_a_wide_socket_and_narrows_a_loopback_one(start_server, tmp_path: Path) -> None:
    roots = tmp_path / "roots"
    roots.mkdir()
    for name in (tmp_path / "out.scripted.json", roots / "in.scripted.json"):
        name.write_text("{}")
    for address in ("127.0.0.1", "0.0.0.0"):
        server = start_server(f'[security]\nallowed_roots = ["{roots}"]\n[[listen]]\naddress = "{address}"\nport = 0\n')
        with server.client() as client:
            body = {"model_id": "in", "model_path": str(roots / "in.scripted.json")}
            assert client.post("/v1/models/load", json=body).status_code == 200
            body = {"model_id": "out", "model_path": str(tmp_path / "out.scripted.json")}
            assert client.post("/v1/models/load", json=body).status_code == 403
