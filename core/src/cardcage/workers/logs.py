"""What a worker, or vendor code in it, prints: read always, logged within reason, its tail kept for error reports."""

from __future__ import annotations

import asyncio
import os
from collections import deque

import structlog

__all__ = ["LogPump", "LogTail"]

_READ_BYTES = 65_536


class LogTail:
    """The last lines of a stream of bytes, bounded in lines and in the length of a line.

    Pure: no I/O. Bytes that are not UTF-8 are shown as U+FFFD; a carriage return ends a line as a newline does, so that a
    progress bar is many short lines instead of one endless one.
    """

    def __init__(self, *, max_lines: int, max_line_bytes: int) -> None:
        self._lines: deque[str] = deque(maxlen=max_lines)
        self._max_line_bytes = max_line_bytes
        self._partial = b""

    def feed(self, data: bytes) -> list[str]:
        """Take bytes as they came; returns the non-empty lines that they completed."""
        pieces = (self._partial + data).replace(b"\r", b"\n").split(b"\n")
        self._partial = pieces.pop()
        complete: list[str] = []
        for piece in pieces:
            complete.extend(self._cut(piece))
        while len(self._partial) > self._max_line_bytes:
            head, self._partial = self._partial[: self._max_line_bytes], self._partial[self._max_line_bytes :]
            complete.extend(self._cut(head))
        self._lines.extend(complete)
        return complete

    def finish(self) -> list[str]:
        """The stream has ended: the unfinished line counts as one."""
        rest, self._partial = self._partial, b""
        complete = self._cut(rest)
        self._lines.extend(complete)
        return complete

    @property
    def text(self) -> str:
        """The kept lines, joined by newlines, with what has come of the line that is not finished."""
        lines = [*self._lines, *self._cut(self._partial)]
        return "\n".join(lines)

    def _cut(self, line: bytes) -> list[str]:
        width = self._max_line_bytes
        pieces = (line[start : start + width] for start in range(0, len(line), width))
        return [text for piece in pieces if (text := piece.decode("utf-8", "replace").rstrip())]


class LogPump:
    """Reads the pipe that a worker's descriptors 1 and 2 lead to, in the event loop.

    It reads whatever comes, so that a worker never blocks on printing, and logs at most so many lines a second, so that a
    noisy one drowns nobody.
    """

    def __init__(
        self, fd: int, *, model: str, worker: int, max_lines: int, max_line_bytes: int, lines_per_second: int
    ) -> None:
        """Own `fd`, the reading end of the pipe, and begin to read it in the running loop."""
        self._loop = asyncio.get_running_loop()
        self._fd: int | None = fd
        self._tail = LogTail(max_lines=max_lines, max_line_bytes=max_line_bytes)
        self._log = structlog.get_logger("cardcage.worker").bind(model=model, worker=worker)
        self._lines_per_second = lines_per_second
        self._second = 0
        self._logged_this_second = 0
        self._suppressed = 0
        self._ended = self._loop.create_future()
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._read)

    @property
    def tail(self) -> str:
        """The last lines."""
        return self._tail.text

    async def wait_ended(self, *, timeout_seconds: float) -> None:
        """Return when every writer of the pipe is gone, or after the time-out: a grandchild may hold it for ever."""
        await asyncio.wait([self._ended], timeout=timeout_seconds)

    def close(self) -> None:
        """Read what is there without waiting, then let the pipe go."""
        while self._fd is not None and self._read():
            pass
        self._end()

    def _read(self) -> bool:
        """Read once; False where nothing more is to be had now."""
        if self._fd is None:
            return False
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._end()
            return False
        self._emit(self._tail.feed(data))
        return True

    def _end(self) -> None:
        if self._fd is None:
            return
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self._fd = None
        self._emit(self._tail.finish())
        self._tell_suppressed()
        if not self._ended.done():
            self._ended.set_result(None)

    def _emit(self, lines: list[str]) -> None:
        second = int(self._loop.time())
        if second != self._second:
            self._tell_suppressed()
            self._second, self._logged_this_second = second, 0
        for line in lines:
            if self._logged_this_second >= self._lines_per_second:
                self._suppressed += 1
            else:
                self._logged_this_second += 1
                self._log.info("worker output", line=line)

    def _tell_suppressed(self) -> None:
        if self._suppressed:
            self._log.warning("worker output suppressed", lines=self._suppressed)
            self._suppressed = 0
