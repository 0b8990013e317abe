"""An engine for one request at a time and process, on terms that a test sets with load options. Loaded from this file."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from cardcage_sdk.chat import ChatRequest
from cardcage_sdk.engine import Engine
from cardcage_sdk.errors import OutOfMemoryError
from cardcage_sdk.events import EngineOutput, Finished, Text
from cardcage_sdk.models import LoadOptions, ModelArtifact, ModelInfo


class NarrowEngine(Engine):
    """Says `threads=<n>` for every `threads`, and what it was asked otherwise, word by word."""

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
