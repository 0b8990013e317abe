"""What every dialect gets from the frame, over real sockets: ids, forms of errors, limits, logs, health."""

import json
import re
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path

import httpx
import pytest

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def server(shared_start, talk_site):
    return shared_start(
        f"[server]\nport = 0\nmax_body_bytes = {MIB}\nbody_timeout_seconds = 1.0\n",
        environ={"PYTHONPATH": str(talk_site)},
    )


def logged(server, event, request_id, count=1):
    """The log lines of a request; its last one is written just after the client has its answer."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        entries = [entry for entry in server.events(event) if entry.get("request_id") == request_id]
        if len(entries) >= count:
            return entries
        time.sleep(0.02)
    raise AssertionError(f"no '{event}' of {request_id} in {server.log()}")


@pytest.fixture
def client(server):
    with server.client() as client:
        yield client


@pytest.mark.parametrize("given", ["abc", "a" * 64, "A-1.b_2:c"])
def test_a_sane_request_id_is_kept_and_reaches_the_route(client, given):
    answer = client.post("/talk/echo", content=b"x", headers={"x-request-id": given})
    assert answer.headers["x-request-id"] == given
    assert answer.json()["request_id"] == given


@pytest.mark.parametrize("given", ["", "a" * 65, "two words", 'quote"', "-start", "ümlaut".encode().decode("latin-1")])
def test_an_odd_request_id_is_replaced(client, given):
    answer = client.post("/talk/echo", content=b"x", headers={"x-request-id": given.encode("latin-1")})
    made = answer.headers["x-request-id"]
    assert made != given
    assert re.fullmatch(r"[0-9a-f]{32}", made)
    assert answer.json()["request_id"] == made


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/talk/none", 404, "not_found"),
        ("GET", "/talk", 404, "not_found"),
        ("GET", "/talk/echo", 405, "method_not_allowed"),
        ("DELETE", "/talk/fault", 405, "method_not_allowed"),
        ("GET", "/talk/fault", 500, "internal_error"),
        ("GET", "/talk/abort/404", 404, "not_found"),
        ("GET", "/talk/abort/418", 400, "invalid_request"),
        ("GET", "/talk/abort/503", 500, "internal_error"),
        ("POST", "/talk/chat/nobody", 404, "model_not_found"),
    ],
)
def test_errors_under_a_prefix_have_its_owners_form(client, method, path, status, code):
    answer = client.request(method, path)
    assert answer.status_code == status
    assert answer.json()["talk"] == code
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    assert "secret detail" not in answer.text


@pytest.mark.parametrize(
    ("path", "status"), [("/talk/fault", 400), ("/talk/none", 404), ("/livez", 400), ("/nobody", 404)]
)
def test_a_websocket_to_no_websocket_route_is_refused_in_the_owners_form(server, client, path, status):
    upgrade = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    answer = client.get(path, headers=upgrade)
    assert (answer.status_code, answer.headers["connection"]) == (status, "close")
    assert ("talk" in answer.json()) == path.startswith("/talk/")
    assert server.events("Error in ASGI Framework") == []


@pytest.mark.parametrize("path", ["/nobody", "/talking", "/livez/x", "/"])
def test_errors_that_nobody_owns_have_cores_form(client, path):
    answer = client.get(path)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"


def test_cores_own_routes_know_their_methods(client):
    answer = client.post("/livez")
    assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")
    assert "GET" in answer.headers["allow"]


def test_a_dialect_that_cannot_render_an_error_does_not_hide_it(server, client):
    answer = client.get("/talk/unrenderable")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"
    assert server.events("the dialect could not render an error")


def test_a_fault_is_in_the_log_under_its_request_id(server, client):
    answer = client.get("/talk/fault", headers={"x-request-id": "find-me"})
    assert answer.status_code == 500
    (entry,) = logged(server, "unhandled exception", "find-me")
    assert "secret detail of a fault" in entry["exception"]


def test_a_body_of_exactly_the_limit_is_taken(client):
    answer = client.post("/talk/echo", content=b"x" * MIB)
    assert (answer.status_code, answer.json()["bytes"]) == (200, MIB)


@pytest.mark.parametrize("size", [MIB + 1, 3 * MIB])
def test_a_body_over_the_limit_is_told_so_to_httpx(client, size):
    answer = client.post("/talk/echo", content=b"x" * size)
    assert (answer.status_code, answer.json()["talk"]) == (413, "payload_too_large")


def test_a_body_over_the_limit_is_told_so_to_urllib(server):
    request = urllib.request.Request(f"{server.url}/talk/echo", data=b"x" * (3 * MIB))
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=20)
    with caught.value:
        assert caught.value.code == 413
        assert json.load(caught.value)["talk"] == "payload_too_large"


def test_a_body_without_length_is_counted_as_it_comes(client):
    answer = client.post("/talk/echo", content=(b"x" * 65536 for _ in range(20)))
    assert (answer.status_code, answer.json()["talk"]) == (413, "payload_too_large")


def test_a_body_over_the_limit_that_nobody_owns_has_cores_form(client):
    answer = client.post("/nobody", content=b"x" * (2 * MIB))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "payload_too_large")


def test_a_body_that_does_not_come_ends_with_408(server):
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as sock:
        sock.sendall(f"POST /talk/echo HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 100\r\n\r\nabc".encode())
        answer = b""
        while not answer.endswith(b"}") and (more := sock.recv(65536)):  # head and body may come apart
            answer += more
    assert answer.startswith(b"HTTP/1.1 408")
    assert b'"request_timeout"' in answer


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts descriptors in /proc")
@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /livez HTTP/1.1\r\nHo",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /talk/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nabc",
        (
            b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\n"
            b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
        ),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
    ids=["nothing", "half a head", "a request", "half a body", "upgrade to HTTP/2", "HTTP/2"],
)
def test_a_client_that_closes_its_connection_leaves_no_descriptor(server, sent):
    host, port = server.url.removeprefix("http://").split(":")
    descriptors = Path(f"/proc/{server.process.pid}/fd")
    before = len(list(descriptors.iterdir()))
    for _ in range(40):
        with socket.create_connection((host, int(port)), timeout=20) as sock:
            if sent:
                sock.sendall(sent)
            if sent.startswith((b"GET", b"PRI")) and sent.endswith(b"\r\n\r\n"):
                assert sock.recv(65536)
    httpx.get(f"{server.url}/livez", trust_env=False)  # by now the earlier connections are accepted, too
    deadline = time.monotonic() + 20  # far below the time-out of idle connections
    while len(list(descriptors.iterdir())) > before + 5:
        assert time.monotonic() < deadline, "connections of clients that left are still open"
        time.sleep(0.02)


def test_a_client_that_leaves_together_with_its_body_is_not_served(server):
    """The body and the end of the connection are there in one turn of the loop."""
    host, port = server.url.removeprefix("http://").split(":")
    ids = [f"gone-{number}" for number in range(20)]
    for request_id in ids:
        head = (
            f"POST /talk/linger HTTP/1.1\r\nHost: localhost\r\nx-request-id: {request_id}\r\nContent-Length: 1\r\n\r\n"
        )
        with socket.create_connection((host, int(port)), timeout=20) as sock:
            sock.sendall(f"{head}x".encode())
    entries = [logged(server, "request", request_id)[0] for request_id in ids]
    assert [entry.get("client_left") for entry in entries] == [True] * len(ids)


def test_no_query_and_no_key_reaches_the_log(server, client):
    secret = "sk-very-secret-0001"
    headers = {"authorization": f"Bearer {secret}", "x-request-id": "with-secret"}
    client.get("/talk/none", params={"api_key": secret, "other": secret}, headers=headers)
    client.get("/talk/fault", params={"api_key": secret}, headers=headers)
    entries = logged(server, "request", "with-secret", count=2)
    assert [(entry["path"], entry["status"]) for entry in entries] == [("/talk/none", 404), ("/talk/fault", 500)]
    assert secret not in server.log()


def test_the_access_log_tells_what_happened(server, client):
    client.post("/talk/echo", content=b"x", headers={"x-request-id": "told"})
    (entry,) = logged(server, "request", "told")
    assert (entry["method"], entry["path"], entry["status"]) == ("POST", "/talk/echo", 200)
    assert entry["client"] == "127.0.0.1"
    assert entry["duration_ms"] >= 0
    assert entry["level"] == "info"


def test_a_page_of_any_origin_may_ask_for_an_open_path(client):
    headers = {
        "origin": "https://page.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type, authorization",
    }
    answer = client.options("/talk/echo", headers=headers)
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == "*"
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["access-control-allow-headers"] == "content-type, authorization"
    refused = client.options("/talk/chat/m", headers=headers)
    assert refused.status_code == 403
    assert "access-control-allow-origin" not in refused.headers


def test_livez_and_readyz(client):
    assert client.get("/livez").text == "ok\n"
    answer = client.get("/readyz")
    body = answer.json()
    assert (answer.status_code, body["ready"], body["reasons"]) == (200, True, [])
    assert {plugin["name"] for plugin in body["plugins"]} >= {"talk", "scripted"}
    assert all(
        set(plugin) == {"name", "kind", "distribution", "version", "state", "reason"} for plugin in body["plugins"]
    )


def test_head_has_no_body(client):
    answer = client.head("/livez")
    assert (answer.status_code, answer.content) == (200, b"")


def test_readyz_waits_for_the_configured_models(start_server, talk_site, tmp_path):
    """Broken ones only: not ready, with the state of each; the HTTP service runs all the same."""
    config = f'[[models]]\nmodel_id = "gone"\nmodel_path = "{tmp_path}/none.scripted.json"\n'
    server = start_server(config, environ={"PYTHONPATH": str(talk_site)})
    answer = httpx.get(f"{server.url}/readyz", trust_env=False)
    assert answer.status_code == 503
    assert "gone" in answer.json()["reasons"][0]
    assert httpx.get(f"{server.url}/livez", trust_env=False).status_code == 200
    assert server.stop() == 0


@pytest.mark.parametrize(
    ("setting", "state", "words"),
    [
        ("broken", "failed", "RuntimeError: no routes today"),
        ("elsewhere", "refused", "route '/other/place' lies outside"),
        ("nothing", "refused", "not a quart.Blueprint"),
    ],
)
def test_a_dialect_without_routes_is_a_recorded_failure(start_server, talk_site, setting, state, words):
    server = start_server(f"[dialects.talk]\n{setting} = true\n", environ={"PYTHONPATH": str(talk_site)})
    with server.client() as client:
        plugins = {plugin["name"]: plugin for plugin in client.get("/readyz").json()["plugins"]}
        assert plugins["talk"]["state"] == state
        assert words in plugins["talk"]["reason"]
        assert client.get("/talk/none").json()["error"]["code"] == "not_found"
        assert client.get("/other/place").status_code == 404
        assert client.get("/probe/open").status_code == 200


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("[dialects.talk]\nbad = true\n", "[dialects.talk] bad: is not known"),
        ('required = ["talk"]\n[dialects.talk]\nbroken = true\n', "'talk' is required"),
        ('required = ["nobody"]\n', "'nobody' is required"),
        ("[platforms.scripted]\nnope = 1\n", "[platforms.scripted] nope: "),
    ],
)
def test_what_refuses_the_start_is_one_line_and_exit_code_4(start_server, talk_site, config, words):
    server = start_server(config, environ={"PYTHONPATH": str(talk_site)}, ready=False)
    assert server.process.returncode == 4
    last = server.log().strip().splitlines()[-1]
    assert last.startswith("cardcage: error: ")
    assert words in last
