"""Fixtures: the real model, and real worker processes with this platform's engine. Nothing here imports llama.cpp."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import pytest_asyncio

from cardcage_platform_llamacpp import build_wheel
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


# --- an embedding model of random weights --------------------------------------------------------------------------

BERT_WIDTH = 64
BERT_WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
BERT_WORDS += [f"\u2581{word}" for word in ("cat", "dog", "the", "sits", "runs", "on", "mat")]


def _array(kind: int, items: list[bytes]) -> bytes:
    return struct.pack("<IIQ", 9, kind, len(items)) + b"".join(items)


def write_bert(path: Path) -> None:
    """The writer of the smoke model knows no arrays, so these come ready made."""
    rng = random.Random(1)
    heads, inner = 4, 128

    def weights(*shape: int) -> tuple[tuple[int, ...], bytes]:
        count = int(np.prod(shape))
        return shape, struct.pack(f"<{count}f", *(rng.gauss(0, 0.3) for _ in range(count)))

    tensors = {
        "token_embd.weight": weights(BERT_WIDTH, len(BERT_WORDS)),
        "position_embd.weight": weights(BERT_WIDTH, 64),
        "token_types.weight": weights(BERT_WIDTH, 2),
        "token_embd_norm.weight": weights(BERT_WIDTH),
        "token_embd_norm.bias": weights(BERT_WIDTH),
    }
    square = (BERT_WIDTH, BERT_WIDTH)
    shapes = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), square)
    for name, shape in {**shapes, "ffn_up": (BERT_WIDTH, inner), "ffn_down": (inner, BERT_WIDTH)}.items():
        tensors[f"blk.0.{name}.weight"] = weights(*shape)
        tensors[f"blk.0.{name}.bias"] = weights(shape[1])
    for name in ("attn_output_norm", "layer_output_norm"):
        tensors[f"blk.0.{name}.weight"] = weights(BERT_WIDTH)
        tensors[f"blk.0.{name}.bias"] = weights(BERT_WIDTH)

    class Raw(bytes):
        pass

    metadata: dict[str, object] = {
        "general.architecture": "bert",
        "bert.context_length": 64, "bert.embedding_length": BERT_WIDTH, "bert.feed_forward_length": inner,
        "bert.block_count": 1, "bert.attention.head_count": heads, "bert.attention.layer_norm_epsilon": 1e-12,
        "bert.attention.causal": False, "bert.pooling_type": 1,
        "tokenizer.ggml.model": "bert", "tokenizer.ggml.token_type_count": 2,
        "tokenizer.ggml.bos_token_id": 2, "tokenizer.ggml.cls_token_id": 2,
        "tokenizer.ggml.eos_token_id": 3, "tokenizer.ggml.seperator_token_id": 3,
        "tokenizer.ggml.unknown_token_id": 1, "tokenizer.ggml.padding_token_id": 0, "tokenizer.ggml.mask_token_id": 4,
        "tokenizer.ggml.tokens": Raw(_array(8, [build_wheel._string(word) for word in BERT_WORDS])),
        "tokenizer.ggml.token_type": Raw(_array(5, [struct.pack("<i", 3 if word[0] == "[" else 1) for word in BERT_WORDS])),
    }  # fmt: skip
    original = build_wheel._value
    try:
        build_wheel._value = lambda value: bytes(value) if isinstance(value, Raw) else original(value)
        build_wheel.write_gguf(path, metadata, [(name, 0, shape, data) for name, (shape, data) in tensors.items()])
    finally:
        build_wheel._value = original


@pytest.fixture(scope="session")
def bert_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not PLATFORM.probe().is_available:
        missing(PLATFORM.probe().reason)
    path = tmp_path_factory.mktemp("bert") / "bert.gguf"
    write_bert(path)
    return path
