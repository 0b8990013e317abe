"""Fixtures: the real model, and real worker processes with this platform's engine. Nothing here imports llama.cpp."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from cardcage_platform_llamacpp.plugin import LlamaCppPlatform
from cardcage_sdk.chat import ChatRequest, Message, Sampling, TextPart
from cardcage_sdk.events import Finished, TextDelta, ToolCallDelta
from cardcage_sdk.ipc.client import EngineTarget, WorkerConnection
from cardcage_sdk.models import LoadOptions, ModelArtifact, ModelFile, ModelInfo
from cardcage_sdk.options import validate_options

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cardcage_sdk.events import ChatEvent

PLATFORM = LlamaCppPlatform()
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def missing(what: str) -> None:
    """Skip, but never in CI: a check that silently does not run there is worth nothing."""
    if os.environ.get("CI", "").lower() in {"1", "true"}:
        pytest.fail(what)
    pytest.skip(what)


@pytest.fixture(scope="session")
def model_path() -> Path:
    """SmolLM2's GGUF file in the test store."""
    default = Path(__file__).parents[3] / ".cardcage" / "models"
    store = Path(os.environ.get("CARDCAGE_TEST_STORE") or default)
    path = store / "llamacpp" / "cpu" / "smollm2-135m" / MODEL_FILE
    if not path.is_file():
        missing(f"SmolLM2 is not in {store}: run `make model`")
    report = PLATFORM.probe()
    if not report.is_available:
        missing(report.reason)
    return path


def artifact_of(path: Path, **fields: Any) -> ModelArtifact:
    """A model of one file."""
    size = path.stat().st_size
    values: dict[str, Any] = {
        "path": path,
        "name": path.stem,
        "files": (ModelFile(name=path.name, size_bytes=size),),
        "context_tokens": 1024,
    }
    return ModelArtifact(**{**values, **fields})


@dataclass
class Answer:
    """What one request came to."""

    events: list[ChatEvent] = field(default_factory=list)

    def text(self, choice: int = 0) -> str:
        return "".join(event.text for event in self.events if isinstance(event, TextDelta) and event.choice == choice)

    def finished(self, choice: int = 0) -> Finished:
        return next(event for event in self.events if isinstance(event, Finished) and event.choice == choice)

    @property
    def calls(self) -> list[tuple[str, str]]:
        """Tool calls as name and arguments."""
        names: dict[int, str] = {}
        arguments: dict[int, str] = {}
        for event in self.events:
            if isinstance(event, ToolCallDelta):
                names.setdefault(event.index, event.name or "")
                arguments[event.index] = arguments.get(event.index, "") + event.arguments
        return [(names[index], arguments[index]) for index in sorted(names)]


_number = 0


def chat(text: str, **fields: Any) -> ChatRequest:
    """A request with one user message: greedy and short unless it says otherwise."""
    global _number  # noqa: PLW0603  Ids must differ over all requests of a worker.
    _number += 1
    sampling = {"temperature": 0.0, "max_tokens": 24, **fields.pop("sampling", {})}
    if "prompt" not in fields and "messages" not in fields:
        # Without a system message SmolLM2's template adds its own, and the model then chats on instead of answering.
        system = Message(role="system", content=(TextPart("Answer in one short sentence."),))
        fields["messages"] = (system, Message(role="user", content=(TextPart(text),)))
    return ChatRequest(id=f"r{_number}", model="m", sampling=Sampling(**sampling), **fields)


@dataclass
class Worker:
    """A worker process with a loaded model."""

    process: subprocess.Popen[bytes]
    connection: WorkerConnection
    log: Path
    info: ModelInfo | None = None

    async def run(self, request: ChatRequest) -> Answer:
        """Run a request to its end."""
        answer = Answer()
        async with contextlib.aclosing(self.connection.chat(request)) as events:
            async for event in events:
                answer.events.append(event)
        return answer

    async def ask(self, text: str, **fields: Any) -> Answer:
        """Run one user message."""
        return await self.run(chat(text, **fields))


@contextlib.asynccontextmanager
async def running_worker(log: Path, options: dict[str, Any] | None = None) -> AsyncIterator[Worker]:
    """A worker process that has loaded nothing yet."""
    ours, theirs = socket.socketpair()
    environment = {**os.environ, **PLATFORM.worker_environment(options or {})}
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: ASYNC220  Starting it takes a millisecond; its pipe is asynchronous.
            [sys.executable, "-m", "cardcage_sdk.worker", "--fd", str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
        )
    theirs.close()
    connection = WorkerConnection(ours, on_lost=lambda: None)
    try:
        await connection.open(timeout_seconds=20)
        yield Worker(process, connection, log)
        with contextlib.suppress(ConnectionError):
            await connection.shutdown()
    finally:
        connection.abort()
        if process.poll() is None:
            process.kill()
        process.wait()


async def load(worker: Worker, artifact: ModelArtifact, *, slots: int = 4, **options: Any) -> ModelInfo:
    """Load with two threads at most, so that timing does not depend on the machine's size."""
    validated = validate_options(PLATFORM, options)
    load_options = LoadOptions(slots=slots, max_slots=slots, cpu_threads=2, options=validated)
    worker.info = await worker.connection.load(
        EngineTarget(path=PLATFORM.engine), artifact, load_options, PLATFORM.capabilities
    )
    return worker.info


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Worker]:
    """SmolLM2 with four slots, shared by a module's tests."""
    async with running_worker(tmp_path_factory.mktemp("worker") / "log") as running:
        await load(running, artifact_of(model_path))
        yield running


@pytest_asyncio.fixture
async def fresh_worker(tmp_path: Path) -> AsyncIterator[Worker]:
    """A worker of one test's own, nothing loaded."""
    async with running_worker(tmp_path / "log") as running:
        yield running


class Kit:
    """The functions above for test modules, which cannot import a conftest."""

    platform = PLATFORM
    chat = staticmethod(chat)
    artifact_of = staticmethod(artifact_of)
    running_worker = staticmethod(running_worker)
    load = staticmethod(load)
    missing = staticmethod(missing)


@pytest.fixture(scope="session")
def kit() -> type[Kit]:
    """See `Kit`."""
    return Kit
