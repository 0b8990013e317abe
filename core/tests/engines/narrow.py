"""Engines on terms that a test sets with load options. Loaded from this file."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from cardcage_sdk.chat import ChatRequest
from cardcage_sdk.engine import BatchEngine, BatchOutput, Engine, Request
from cardcage_sdk.errors import OutOfMemoryError
from cardcage_sdk.events import EngineOutput, Finished, Text
from cardcage_sdk.models import LoadOptions, ModelArtifact, ModelInfo


class NarrowEngine(Engine):
    """One request at a time and process. Says `threads=<n>` for `threads`, and else what it was asked, word by word."""

    def load(self, artifact: ModelArtifact, options: LoadOptions) -> ModelInfo:
        """Fail, sleep, die or start a grandchild first, as the options say."""
        wanted = options.options
        self._threads = options.cpu_threads
        self._delay = float(wanted.get("delay_seconds") or 0)
        if wanted.get("count_file"):
            # Each load takes a number; only the first so many succeed.
            with Path(wanted["count_file"]).open("a+") as file:
                file.write("x")
                file.flush()
                if file.tell() > int(wanted["succeed"]):
                    raise OutOfMemoryError(required_bytes=2000, free_bytes=1000)
        while wanted.get("gate_file") and not Path(wanted["gate_file"]).exists():
            time.sleep(0.005)
        if wanted.get("die_by"):
            os.kill(os.getpid(), getattr(signal, wanted["die_by"]))
            signal.pause()
        if wanted.get("grandchild_file"):
            child = subprocess.Popen(["sleep", "3600"])
            Path(wanted["grandchild_file"]).write_text(str(child.pid))
        return ModelInfo(context_tokens=4096)

    def set_cpu_threads(self, threads: int) -> None:
        """Remember it."""
        self._threads = threads

    def chat(self, request: ChatRequest) -> Iterator[EngineOutput]:
        """Answer."""
        text = f"threads={self._threads}" if request.last_user_text == "threads" else request.last_user_text
        for word in text.split(" "):
            time.sleep(self._delay)
            yield Text(word + " ")
        yield Finished(reason="stop")


class SilentEngine(BatchEngine):
    """Steps for `delay_seconds` each, ten times without a word, then answers; at `stuck` it steps once and then no more."""

    def load(self, artifact: ModelArtifact, options: LoadOptions) -> ModelInfo:
        """Take the delay."""
        self._delay = float(options.options.get("delay_seconds") or 0)
        self._left: dict[str, int] = {}
        return ModelInfo(context_tokens=4096)

    def add(self, request: Request) -> None:
        """Begin."""
        self._left[request.id] = 10
        self._is_stuck = isinstance(request, ChatRequest) and request.last_user_text == "stuck"

    def step(self) -> Sequence[tuple[str, BatchOutput]]:
        """Say nothing but at the end."""
        time.sleep(self._delay)
        outputs: list[tuple[str, BatchOutput]] = []
        for request_id in list(self._left):
            self._left[request_id] -= 1
            while self._is_stuck and self._left[request_id] < 9:
                time.sleep(1)
            if self._left[request_id] == 0:
                del self._left[request_id]
                outputs += [(request_id, Text("at last")), (request_id, Finished(reason="stop"))]
        return outputs

    def cancel(self, request_id: str, choice: int | None = None) -> None:
        """Forget it."""
        self._left.pop(request_id, None)
