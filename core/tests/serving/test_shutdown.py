"""The order of a shutdown, seen from its clients, and what only one server can have."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest

WORDS = " ".join(f"word{number}" for number in range(200))


def wait_until(condition, seconds=20.0):
    """Poll what another process will make true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def is_ready(server) -> bool:
    return httpx.get(f"{server.url}/readyz", trust_env=False).status_code == 200


def start(start_server, talk_site, models, *, seconds=10.0):
    server = start_server(
        f"[server]\nport = 0\nshutdown_seconds = {seconds}\n{models}", environ={"PYTHONPATH": str(talk_site)}
    )
    wait_until(lambda: is_ready(server))
    return server


class Stream:
    """One open stream, read on a thread."""

    def __init__(self, server, text="hello"):
        self.lines = []
        self.failure = None
        self.started = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(server.url, text))
        self._thread.start()
        assert self.started.wait(20)

    def _read(self, url, text):
        try:
            with httpx.stream("POST", f"{url}/talk/chat/m", content=text, timeout=60, trust_env=False) as response:
                for line in response.iter_lines():
                    self.lines.append(json.loads(line))
                    self.started.set()
        except httpx.HTTPError as error:
            self.failure = error
            self.started.set()

    def result(self):
        self._thread.join(60)
        assert not self._thread.is_alive()
        assert self.failure is None, f"the stream was cut: {self.failure!r} after {self.lines[-3:]}"
        return self.lines


def worker_pids(server):
    return [event["pid"] for event in server.events("worker started")]


def is_gone(pid) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_running_streams_end_whole_while_new_ones_are_refused(start_server, talk_site, scripted):
    server = start(start_server, talk_site, scripted(answer=" ".join(["w"] * 40), delay_seconds=0.05))
    stream = Stream(server)
    server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: server.events("draining"))
    with server.client() as client:
        refused = client.post("/talk/chat/m", content="hello")
        ready = client.get("/readyz")
        live = client.get("/livez")
    assert (refused.status_code, refused.json()["talk"]) == (503, "draining")
    assert int(refused.headers["retry-after"]) >= 1
    assert (ready.status_code, ready.json()["draining"]) == (503, True)
    assert live.status_code == 200
    lines = stream.result()
    assert lines[-1] == {"done": True}
    assert "".join(line["text"] for line in lines[:-1]) == " ".join(["w"] * 40)
    assert server.process.wait(timeout=20) == 0
    assert all(is_gone(pid) for pid in worker_pids(server))


def test_a_stream_past_the_time_gets_a_final_error_and_the_exit_is_clean(start_server, talk_site, scripted):
    server = start(start_server, talk_site, scripted(answer=WORDS, delay_seconds=0.2), seconds=0.5)
    stream = Stream(server)
    server.process.send_signal(signal.SIGTERM)
    lines = stream.result()
    assert lines[-1] == {"error": "draining"}
    assert 0 < len(lines) < 100
    assert server.process.wait(timeout=20) == 0
    assert all(is_gone(pid) for pid in worker_pids(server))


def test_a_second_signal_ends_the_waiting(start_server, talk_site, scripted):
    server = start(start_server, talk_site, scripted(answer=WORDS, delay_seconds=0.2), seconds=300)
    stream = Stream(server)
    server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: server.events("draining"))
    server.process.send_signal(signal.SIGTERM)
    assert stream.result()[-1] == {"error": "draining"}
    assert server.process.wait(timeout=20) == 0


def test_idle_connections_do_not_hold_the_server_up(start_server, talk_site):
    server = start_server(environ={"PYTHONPATH": str(talk_site)})
    with server.client() as client:
        client.get("/livez")
        started = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - started < 10


def test_a_silent_client_with_an_open_stream_does_not_hold_the_server_up(start_server, talk_site, scripted):
    """It reads nothing, so that the server's socket is full when the end comes."""
    server = start(start_server, talk_site, scripted(answer="x" * 200_000, piece_bytes=4096), seconds=0.2)
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as sock:
        sock.sendall(f"POST /talk/chat/m HTTP/1.1\r\nHost: {host}\r\nContent-Length: 2\r\n\r\nhi".encode())
        assert sock.recv(1)
        assert server.stop() == 0


def test_killing_the_server_ends_its_workers(start_server, talk_site, scripted):
    server = start(start_server, talk_site, scripted(answer="x"))
    (pid,) = worker_pids(server)
    server.process.kill()
    server.process.wait(timeout=20)
    wait_until(lambda: is_gone(pid))


def test_one_server_for_a_data_directory(start_server, talk_site):
    server = start_server()
    second = server.command("serve", "--port", "0", check=False)
    assert second.returncode == 5
    (line,) = second.stderr.strip().splitlines()
    assert f"process {server.process.pid}" in line
    assert server.url in line
    assert str(server.data_dir) in line
    assert server.stop() == 0
    # The lock went with the process.
    third = start_server()
    assert third.stop() == 0


def test_a_lock_left_by_a_killed_server_is_free(start_server):
    server = start_server()
    server.process.kill()
    server.process.wait(timeout=20)
    again = subprocess.Popen(
        [sys.executable, "-m", "cardcage", "serve", "--config", str(server.config_file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert again.stdout is not None
        assert again.stdout.readline().startswith("Cardcage listens on ")
    finally:
        again.terminate()
        assert again.wait(timeout=20) == 0
        again.stdout.close()


def test_a_busy_port_is_one_line(start_server, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = start_server(f"[server]\nport = {port}\n", ready=False)
    assert server.process.returncode == 5
    (line,) = server.log().strip().splitlines()
    assert line == f"cardcage: error: Port {port} of 127.0.0.1 is in use by another program; stop it or choose --port"


def test_systemd_is_told(start_server, tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(str(tmp_path / "notify"))
        notified.settimeout(20)
        server = start_server(environ={"NOTIFY_SOCKET": str(tmp_path / "notify")})
        assert notified.recv(100) == b"READY=1"
        assert server.stop() == 0
        assert notified.recv(100) == b"STOPPING=1"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def hypercorn(start_server, tmp_path):
    """Plain hypercorn on the factory; everything that it says, on one stream."""
    running = []

    def run(*arguments: str):
        config = tmp_path / "config.toml"
        config.write_text(f'[paths]\ndata_dir = "{tmp_path / "data"}"\n[server]\nlog_format = "json"\n')
        process = subprocess.Popen(
            [sys.executable, "-m", "hypercorn", "cardcage.asgi:create()", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "CARDCAGE_CONFIG": str(config)},
            start_new_session=True,
        )
        running.append(process)
        return process

    yield run
    for process in running:
        if process.poll() is None:
            process.terminate()
            process.wait(timeout=20)
        process.stdout.close()


def test_plain_hypercorn_serves_the_factory(hypercorn):
    port = free_port()
    process = hypercorn("--bind", f"127.0.0.1:{port}")

    def answers() -> bool:
        assert process.poll() is None, process.stdout.read()
        try:
            return httpx.get(f"http://127.0.0.1:{port}/livez", trust_env=False).status_code == 200
        except httpx.ConnectError:
            return False

    wait_until(answers)
    process.terminate()
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 0, output
    assert "all workers have ended" in output


def test_several_hypercorn_workers_are_refused_with_the_reason(hypercorn):
    process = hypercorn("--bind", f"127.0.0.1:{free_port()}", "--workers", "2")
    seen = []
    for line in process.stdout:
        seen.append(line)
        if "exactly one worker" in line:
            break
    assert any("exactly one worker" in line for line in seen), "".join(seen)
