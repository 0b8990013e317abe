"""What a worker prints: bounded, whole, never in the way."""

from __future__ import annotations

import asyncio
import os

from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from cardcage.workers.logs import LogPump, LogTail


def tail_of(*chunks: bytes, max_lines: int = 100, max_line_bytes: int = 80) -> LogTail:
    tail = LogTail(max_lines=max_lines, max_line_bytes=max_line_bytes)
    for chunk in chunks:
        tail.feed(chunk)
    return tail


def test_lines_are_kept_as_they_complete_and_the_rest_is_shown():
    tail = tail_of(b"one\ntw", b"o\nthree")
    assert tail.text == "one\ntwo\nthree"
    assert tail.finish() == ["three"]
    assert tail.text == "one\ntwo\nthree"


def test_only_the_last_lines_are_kept():
    assert tail_of(b"".join(b"%d\n" % number for number in range(10)), max_lines=3).text == "7\n8\n9"


def test_a_progress_bar_is_many_lines():
    assert tail_of(b"10%\r20%\r30%\n").text == "10%\n20%\n30%"


def test_bytes_that_are_no_text_are_shown_as_such():
    assert tail_of(b"a\xffb\n").text == "a�b"


@given(chunks=st.lists(st.binary(max_size=300), max_size=20))
def test_whatever_comes_the_tail_is_bounded(chunks):
    tail = tail_of(*chunks, max_lines=5, max_line_bytes=80)
    tail.finish()
    lines = tail.text.split("\n")
    assert len(lines) <= 5 or all(not line for line in lines)
    assert len(tail.text) <= 5 * 81


@given(data=st.text(alphabet="ab\n", max_size=200), cut=st.integers(0, 200))
def test_where_a_chunk_ends_makes_no_difference(data, cut):
    raw = data.encode()
    assert tail_of(raw[:cut], raw[cut:]).text == tail_of(raw).text


async def pump_of(data: bytes, **bounds: int) -> tuple[LogPump, int]:
    read_fd, write_fd = os.pipe()
    pump = LogPump(
        read_fd,
        model="m",
        worker=1,
        max_lines=bounds.get("lines", 50),
        max_line_bytes=200,
        lines_per_second=bounds.get("rate", 5),
    )
    os.write(write_fd, data)
    return pump, write_fd


async def test_a_noisy_worker_is_counted_not_logged():
    with capture_logs() as logs:
        pump, write_fd = await pump_of(b"".join(b"line %d\n" % number for number in range(100)))
        os.close(write_fd)
        await pump.wait_ended(timeout_seconds=30)
        pump.close()
    lines = [entry for entry in logs if entry["event"] == "worker output"]
    suppressed = sum(entry["lines"] for entry in logs if entry["event"] == "worker output suppressed")
    assert len(lines) in {5, 10}  # two seconds may meet in between
    assert len(lines) + suppressed == 100
    assert lines[0]["model"] == "m"
    assert pump.tail.endswith("line 98\nline 99")


async def test_closing_reads_what_is_there_though_somebody_holds_the_pipe():
    pump, write_fd = await pump_of(b"last words")
    await pump.wait_ended(timeout_seconds=0)
    pump.close()
    assert pump.tail == "last words"
    os.close(write_fd)


async def test_more_than_a_pipe_holds_does_not_block_the_writer():
    pump, write_fd = await pump_of(b"")
    await asyncio.to_thread(os.write, write_fd, b"x" * 99 + b"\n")
    block = b"y" * 1_000_000
    written = 0
    while written < len(block):
        written += await asyncio.to_thread(os.write, write_fd, block[written : written + 65_536])
    os.close(write_fd)
    await pump.wait_ended(timeout_seconds=30)
    pump.close()
    assert len(pump.tail) <= 50 * 201
