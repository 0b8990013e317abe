"""Start a server for a benchmark, load one model into it, and talk to it as a client would."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[1]
DEFAULT_MODEL = ROOT / ".cardcage/models/llamacpp/cpu/smollm2-135m"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server of our own with one model, `bench`."""

    url: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One streamed answer. Times are seconds since the request was sent."""

    tokens: int
    text: str
    first_seconds: float
    last_seconds: float


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def serving(model: Path, *, instances: int, options: dict[str, object] | None = None) -> Iterator[Server]:
    """Run `cardcage serve` on a free port with the model loaded, and end it afterwards."""
    port = free_port()
    with tempfile.TemporaryDirectory() as data:
        environment = {**os.environ, "CARDCAGE_DATA_DIR": data, "CARDCAGE_LOG_LEVEL": "warn"}
        process = subprocess.Popen([sys.executable, "-m", "cardcage", "serve", "--port", str(port)], env=environment)
        url = f"http://127.0.0.1:{port}"
        try:
            wait_for(url, process)
            load = {
                "model_id": "bench",
                "model_path": str(model),
                "instance_count": instances,
                "options": options or {},
            }
            answer = httpx.post(f"{url}/v1/models/load", json=load, timeout=300)
            if answer.status_code != 200:
                raise SystemExit(f"the model was not loaded: {answer.text}")
            yield Server(url=url, pid=process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    """Return when the server answers; give up when it ended or after a minute."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"the server ended with status {process.returncode}")
        try:
            if httpx.get(f"{url}/health", timeout=2).text == "ok":
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise SystemExit("the server did not answer within a minute")


def chat_body(prompt: str, max_tokens: int) -> dict[str, object]:
    """A greedy streaming chat request."""
    return {
        "model": "bench",
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def stream_chat(client: httpx.AsyncClient, url: str, body: dict[str, object]) -> Answer:
    """Send one request and read it to its end."""
    start = time.perf_counter()
    first = last = 0.0
    tokens, text = 0, []
    async with client.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=300) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk = json.loads(line[6:])
            if "error" in chunk:
                raise SystemExit(f"the server answered with an error: {chunk}")
            if chunk.get("usage"):
                tokens = chunk["usage"]["completion_tokens"]
            for choice in chunk["choices"]:
                piece = choice["delta"].get("content")
                if piece:
                    last = time.perf_counter() - start
                    first = first or last
                    text.append(piece)
    return Answer(tokens=tokens, text="".join(text), first_seconds=first, last_seconds=last)


def stream_bytes(url: str, prompt: str, max_tokens: int) -> int:
    """Read one answer as bytes and look into it only when it has ended, so that the client takes no core from the engine.

    Returns:
        The number of generated tokens.
    """
    host, _, port = url.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=300)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(chat_body(prompt, max_tokens)))
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    if response.status != 200 or not body.endswith(b"data: [DONE]\n\n"):
        raise SystemExit(f"the answer was not whole: {response.status} {body[-300:]!r}")
    chunks = [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: {")]
    return next(int(chunk["usage"]["completion_tokens"]) for chunk in reversed(chunks) if chunk.get("usage"))


def run_streams(url: str, prompts: list[str], max_tokens: int) -> list[Answer]:
    """Run all prompts at once, each on a connection of its own, and wait for all."""

    async def main() -> list[Answer]:
        async with httpx.AsyncClient(limits=httpx.Limits(max_connections=None)) as client:
            return await asyncio.gather(
                *(stream_chat(client, url, chat_body(prompt, max_tokens)) for prompt in prompts)
            )

    return asyncio.run(main())
