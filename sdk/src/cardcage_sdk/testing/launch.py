"""One real worker process for a test, a benchmark or `doctor`: no server, no pool, no queue."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import inspect
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cardcage_sdk.errors import LoadFailedError
from cardcage_sdk.ipc.client import EngineTarget, WorkerConnection, WorkerLostError
from cardcage_sdk.models import LoadOptions, ModelArtifact, ModelFile
from cardcage_sdk.options import validate_options

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from cardcage_sdk.capabilities import Capabilities
    from cardcage_sdk.chat import JsonValue
    from cardcage_sdk.models import ModelInfo
    from cardcage_sdk.platform import Platform

__all__ = ["LaunchedWorker", "engine_target", "launch", "model_artifact", "start_worker"]

_HELLO_SECONDS = 30.0
_EXIT_SECONDS = 10.0
_LOG_LINES = 400


class LaunchedWorker:
    """A worker process with its connection and its log.

    Attributes:
        connection: To call the engine through.
        process: The process; it leads a session of its own.
        info: What the engine said when it had loaded; set by `launch`.
        lost: Set when the pipe has ended.
    """

    info: ModelInfo

    def __init__(self, process: subprocess.Popen[bytes], sock: socket.socket) -> None:
        self.process = process
        self.lost = asyncio.Event()
        self.connection = WorkerConnection(sock, on_lost=self.lost.set)
        self._lines: deque[str] = deque(maxlen=_LOG_LINES)
        self._reader = threading.Thread(target=self._read_log, name="worker-log", daemon=True)
        self._reader.start()

    @property
    def log(self) -> str:
        """The last lines that the worker and vendor code in it printed."""
        return "\n".join(self._lines)

    async def exit_status(self) -> int:
        """Wait for the process to end and its log to be read; a negative number is the signal that ended it."""
        status = await asyncio.to_thread(self.process.wait)
        await asyncio.to_thread(self._reader.join)
        return status

    async def end(self) -> int:
        """Close the engine if it lets itself be closed, kill the process otherwise; returns the exit status."""
        try:
            async with asyncio.timeout(_EXIT_SECONDS):
                await self.connection.shutdown()
                return await self.exit_status()
        except TimeoutError:
            self.kill()
            return await self.exit_status()
        finally:
            self.connection.abort()

    def kill(self) -> None:
        """End the process and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def _read_log(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            for line in stream:
                self._lines.append(line.decode("utf-8", "replace").rstrip("\n"))


def start_worker(*, python: str = sys.executable, environment: Mapping[str, str] | None = None) -> LaunchedWorker:
    """Start a worker process with an engine yet to load. Call it from the event loop's thread.

    The process is killed by the kernel when the *thread* that started it ends, so never start one from a helper thread.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [python, "-P", "-m", "cardcage_sdk.worker", "--fd", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    return LaunchedWorker(process, ours)


def model_artifact(path: str | Path, *, kind: str | None = None) -> ModelArtifact:
    """Describe a model file or directory that has no `model.toml`.

    Raises:
        FileNotFoundError: There is nothing at `path`.
    """
    path = Path(path).resolve()
    if not path.exists():
        raise FileNotFoundError(f"no model at '{path}'")
    found = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    base = path if path.is_dir() else path.parent
    files = tuple(ModelFile(name=file.relative_to(base).as_posix(), size_bytes=file.stat().st_size) for file in found)
    return ModelArtifact(path=path, name=path.name.split(".", 1)[0], kind=kind, files=files)


def engine_target(platform: Platform) -> EngineTarget:
    """Where a worker finds the platform's engine; the platform's own file where that is not installed as a package."""
    module = platform.engine.partition(":")[0]
    source = inspect.getsourcefile(type(platform))
    if module == type(platform).__module__ and source is not None and not _is_importable(module, source):
        return EngineTarget(path=platform.engine, plugin_file=os.path.abspath(source))
    return EngineTarget(path=platform.engine)


def _is_importable(module: str, source: str) -> bool:
    """A fresh interpreter finds the same file under this name; one that only pytest put in place does not count."""
    code = (
        "import importlib.util, sys; spec = importlib.util.find_spec(sys.argv[1]); print(spec.origin if spec else '')"
    )
    if importlib.util.find_spec(module) is None:
        return False
    answer = subprocess.run(
        [sys.executable, "-P", "-c", code, module], capture_output=True, text=True, check=False
    ).stdout.strip()
    return bool(answer) and Path(answer) == Path(source)


@asynccontextmanager
async def launch(
    platform: Platform,
    model: str | Path | ModelArtifact,
    *,
    options: Mapping[str, JsonValue] | None = None,
    load_options: LoadOptions | None = None,
    capabilities: Capabilities | None = None,
) -> AsyncGenerator[LaunchedWorker, None]:
    """Load a model of a platform in a worker of its own, as core does, and end the worker afterwards.

    Args:
        platform: Its option model, environment and interpreter are used.
        model: Path of a file or directory, or the artifact.
        options: Load options of the platform.
        load_options: Slots, context and threads; its `options` are replaced by `options`.
        capabilities: Instead of the platform's declaration.

    Raises:
        CardcageError: The load failed.
        LoadFailedError: The worker died before it was ready; its log is in the error.
    """
    checked = validate_options(platform, options or {})
    artifact = model if isinstance(model, ModelArtifact) else model_artifact(model)
    wanted = load_options or LoadOptions()
    wanted = LoadOptions(
        slots=wanted.slots,
        max_slots=max(wanted.slots, wanted.max_slots),
        context_tokens=wanted.context_tokens,
        cpu_threads=wanted.cpu_threads,
        options=checked,
    )
    worker = start_worker(python=platform.worker_python(), environment=platform.worker_environment(checked))
    try:
        try:
            await worker.connection.open(timeout_seconds=_HELLO_SECONDS)
            worker.info = await worker.connection.load(
                engine_target(platform), artifact, wanted, capabilities or platform.capabilities
            )
        except WorkerLostError as error:
            status = await worker.end()
            how = signal.Signals(-status).name if status < 0 else None
            raise LoadFailedError(
                f"The worker died before it was ready, {f'by {how}' if how else f'with exit status {status}'}",
                signal=how,
                exit_code=None if how else status,
                log_tail=worker.log,
            ) from error
        yield worker
    finally:
        await worker.end()
