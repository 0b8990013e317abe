"""Served by someone else's hypercorn: the same policy, though nobody tells which sockets are bound."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

BOARDS = Path(__file__).parents[1] / "boards.py"


@contextmanager
def hypercorn(home: Path, config: str = "", *, bind: str = "127.0.0.1:0") -> Iterator[tuple[str, Path]]:
    """A server with an access log that shows queries; yields its URL and its log."""
    home.mkdir()
    file, log_file = home / "config.toml", home / "log"
    file.write_text(f'[paths]\ndata_dir = "{home / "data"}"\n[plugins]\nfiles = ["{BOARDS}"]\n{config}')
    command = [
        sys.executable,
        "-m",
        "hypercorn",
        "--bind",
        bind,
        "--access-logfile",
        "-",
        "--error-logfile",
        "-",
    ]
    command += ["--access-logformat", "ACCESS %(R)s %(Uq)s %(q)s %(s)s", "cardcage.asgi:create()"]
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, "CARDCAGE_CONFIG": str(file)}, start_new_session=True
        )
    try:
        yield _url(process, log_file), log_file
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=20)


def _url(process: subprocess.Popen[bytes], log_file: Path) -> str:
    """Hypercorn writes no line-buffered pipe; so the log is read until it says where it listens."""
    for _ in range(600):
        running = re.search(r"Running on (http://\S+)", log_file.read_text())
        if running is not None:
            return running[1]
        try:
            process.wait(timeout=0.1)
        except subprocess.TimeoutExpired:
            continue
        break
    raise AssertionError(f"it did not start: {log_file.read_text()}")


def test_keys_hosts_and_logs(tmp_path: Path, run_command) -> None:
    with hypercorn(tmp_path / "home") as (url, log_file), httpx.Client(base_url=url, trust_env=False) as client:
        assert client.get("/v1/models").status_code == 200
        made = run_command("key", "create", "all", "--scope", "all", "--data-dir", str(tmp_path / "home/data"))
        key = made.stdout.strip()
        assert client.get("/v1/models").status_code == 401
        answer = client.get(f"/probe/own?a=1&api_key={key}")
        assert answer.json() == {"query": "a=1", "args": {"a": "1"}}
        assert client.get("/v1/models", headers={"Host": "evil.example", "x-api-key": key}).status_code == 403
    log = log_file.read_text()
    assert "ACCESS GET /probe/own?a=1" in log
    assert key[-43:] not in log


def test_a_unix_socket_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "cage.sock"
    with hypercorn(tmp_path / "home", bind=f"unix:{path}"):
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://any.name") as client:
            assert client.get("/v1/models").status_code == 200


def test_a_socket_that_no_entry_stands_for_serves_nothing(tmp_path: Path) -> None:
    listen = "[[listen]]\nport = 1\n"
    with hypercorn(tmp_path / "home", listen) as (url, _), httpx.Client(base_url=url, trust_env=False) as client:
        for path in ("/v1/models", "/livez", "/probe/open"):
            answer = client.get(path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")


@pytest.mark.parametrize("key_is_sent", [True, False])
def test_http2_is_guarded_alike(tmp_path: Path, run_command, key_is_sent: bool) -> None:
    pytest.importorskip("h2")
    import socket

    import h2.connection
    import h2.events

    with hypercorn(tmp_path / "home", "[security]\nrequire_keys = true\n") as (url, _):
        made = run_command("key", "create", "all", "--data-dir", str(tmp_path / "home/data"))
        target = httpx.URL(url)
        headers = [(":method", "GET"), (":path", "/v1/models"), (":scheme", "http"), (":authority", "localhost")]
        if key_is_sent:
            headers.append(("x-api-key", made.stdout.strip()))
        with socket.create_connection((target.host, target.port), timeout=20) as sock:
            connection = h2.connection.H2Connection()
            connection.initiate_connection()
            connection.send_headers(1, headers, end_stream=True)
            sock.sendall(connection.data_to_send())
            seen: list[h2.events.Event] = []
            while not any(isinstance(event, h2.events.StreamEnded | h2.events.StreamReset) for event in seen):
                data = sock.recv(65536)
                assert data, "the connection ended"
                seen += connection.receive_data(data)
                sock.sendall(connection.data_to_send())
        (response,) = [event for event in seen if isinstance(event, h2.events.ResponseReceived)]
        assert dict(response.headers)[b":status"] == (b"200" if key_is_sent else b"401")
