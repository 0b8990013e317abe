"""The server's end of the pipe against an other end that does as the test says, on a real socket pair."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from cardcage_sdk.chat import ChatRequest
from cardcage_sdk.embeddings import EmbedRequest
from cardcage_sdk.errors import EngineFailedError, InvalidRequestError, WorkerProtocolError
from cardcage_sdk.events import Accepted, Failed, Finished, TextDelta
from cardcage_sdk.hookspecs import CONTRACT_VERSION
from cardcage_sdk.ipc.client import WorkerConnection, WorkerLostError
from cardcage_sdk.ipc.frames import (
    AcceptedReply,
    Cancel,
    ErrorReply,
    Frame,
    FrameBuffer,
    Hello,
    Prepare,
    Released,
    Start,
    Step,
    encode_frame,
)

HELLO = Hello(contract=CONTRACT_VERSION, pid=1)


class OtherEnd:
    """A worker's end, by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._buffer = FrameBuffer()
        self._frames: list[Frame] = []

    async def next(self) -> Frame:
        while not self._frames:
            self._frames += self._buffer.feed(await self._reader.read(65536))
        return self._frames.pop(0)

    def send(self, *frames: Frame) -> None:
        self.writer.write(b"".join(map(encode_frame, frames)))


@asynccontextmanager
async def pair(hello: Frame | None = HELLO) -> AsyncIterator[tuple[WorkerConnection, OtherEnd]]:
    ours, theirs = socket.socketpair()
    lost = asyncio.Event()
    connection = WorkerConnection(ours, on_lost=lost.set)
    other = OtherEnd(*await asyncio.open_connection(sock=theirs))
    if hello is not None:
        other.send(hello)
    try:
        yield connection, other
    finally:
        connection.abort()
        other.writer.close()
        await lost.wait()


def request(request_id: str = "r1", **fields: object) -> ChatRequest:
    return ChatRequest(id=request_id, model="m", **fields)  # type: ignore[arg-type]


async def test_hellos() -> None:
    async with pair() as (connection, other):
        assert await connection.open(timeout_seconds=5) == 1
        hello = await other.next()
        assert isinstance(hello, Hello)
        assert hello.contract == CONTRACT_VERSION


async def test_another_contract_version() -> None:
    async with pair(Hello(contract=(9, 9), pid=1)) as (connection, _):
        with pytest.raises(WorkerProtocolError, match=r"contract 9\.9 there"):
            await connection.open(timeout_seconds=5)


async def test_no_hello_in_time() -> None:
    async with pair(None) as (connection, _):
        with pytest.raises(WorkerProtocolError, match="did not say hello"):
            await connection.open(timeout_seconds=0.01)


async def test_death_before_the_hello() -> None:
    async with pair(None) as (connection, other):
        other.writer.close()
        with pytest.raises(WorkerLostError):
            await connection.open(timeout_seconds=5)


async def test_an_answer() -> None:
    async with pair() as (connection, other):
        await connection.open(timeout_seconds=5)
        await other.next()
        answer = asyncio.ensure_future(_collect(connection, request(n=2), Accepted(prompt_tokens=4)))
        start = await other.next()
        assert start == Start(request=request(n=2), accepted=Accepted(prompt_tokens=4))
        other.send(
            Step(events=(("r1", TextDelta("a")), ("r1", TextDelta("b", 1)), ("nobody", TextDelta("x")))),
            Step(events=(("r1", Finished(reason="stop")),)),
            Step(events=(("r1", Finished(reason="length", choice=1)),), released=("r1",)),
        )
        assert await answer == [
            TextDelta("a"),
            TextDelta("b", 1),
            Finished(reason="stop"),
            Finished(reason="length", choice=1),
        ]
        await connection.released("r1")


async def test_leaving_writes_a_cancel_and_waits_for_the_release() -> None:
    async with pair() as (connection, other):
        await connection.open(timeout_seconds=5)
        await other.next()
        stream = connection.chat(request())
        first = asyncio.ensure_future(anext(stream))
        await other.next()
        other.send(Step(events=(("r1", TextDelta("a")),)))
        await first
        await stream.aclose()
        assert await other.next() == Cancel(request_id="r1")
        released = asyncio.ensure_future(connection.released("r1"))
        with pytest.raises(ValueError, match="runs already"):
            await anext(connection.chat(request()))
        assert not released.done()
        other.send(Step(events=(("r1", TextDelta("late")),)), Released(request_id="r1"))
        await released


async def test_an_answer_to_its_end_writes_no_cancel() -> None:
    async with pair() as (connection, other):
        await connection.open(timeout_seconds=5)
        await other.next()
        stream = connection.chat(request())
        first = asyncio.ensure_future(anext(stream))
        await other.next()
        other.send(Step(events=(("r1", Finished(reason="stop")),), released=("r1",)))
        await first
        await stream.aclose()
        await connection.set_cpu_threads(3)
        assert type(await other.next()).__name__ == "Threads"


async def test_a_generator_that_was_never_started_sends_nothing() -> None:
    async with pair() as (connection, other):
        await connection.open(timeout_seconds=5)
        await other.next()
        await connection.chat(request()).aclose()
        await connection.released("r1")
        await connection.set_cpu_threads(3)
        assert type(await other.next()).__name__ == "Threads"


async def test_a_failure_of_one_request() -> None:
    async with pair() as (connection, other):
        await connection.open(timeout_seconds=5)
        await other.next()
        chat = asyncio.ensure_future(_collect(connection, request()))
        embed = asyncio.ensure_future(connection.embed(EmbedRequest(id="e", model="m", inputs=("x",))))
        await other.next()
        await other.next()
        failure = Failed(error=EngineFailedError("no"))
        other.send(Step(events=(("r1", failure), ("e", failure)), released=("r1", "e")))
        for call in (chat, embed):
            with pytest.raises(EngineFailedError, match="no"):
                await call


async def test_prepare_answered_refused_and_left() -> None:
    async with pair() as (connection, other):
        await connection.open(timeout_seconds=5)
        await other.next()
        calls = [asyncio.ensure_future(connection.prepare(request(name))) for name in ("a", "b", "c")]
        for _ in calls:
            assert isinstance(await other.next(), Prepare)
        other.send(
            AcceptedReply(request_id="a", accepted=Accepted(prompt_tokens=1)),
            ErrorReply(about="prepare", request_id="b", error=InvalidRequestError("bad")),
        )
        assert await calls[0] == Accepted(prompt_tokens=1)
        with pytest.raises(InvalidRequestError, match="bad"):
            await calls[1]
        calls[2].cancel()
        with pytest.raises(asyncio.CancelledError):
            await calls[2]
        assert await other.next() == Cancel(request_id="c")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\xff\xff\xff\xff", "over the limit"),
        (b"\x01\x00\x00\x00\xc1", "Malformed frame"),
        (encode_frame(Prepare(request=request())), "A worker must not send Prepare"),
    ],
    ids=["too large", "no msgpack", "out of place"],
)
async def test_a_frame_that_cannot_be_taken_fails_every_call(data: bytes, words: str) -> None:
    async with pair() as (connection, other):
        await connection.open(timeout_seconds=5)
        calls = [
            asyncio.ensure_future(_collect(connection, request())),
            asyncio.ensure_future(connection.prepare(request("p"))),
            asyncio.ensure_future(connection.ping()),
            asyncio.ensure_future(connection.resize(2)),
            asyncio.ensure_future(connection.embed(EmbedRequest(id="e", model="m", inputs=("x",)))),
        ]
        for _ in range(6):
            await other.next()
        calls.append(asyncio.ensure_future(connection.released("r1")))
        other.writer.write(data)
        for call in calls:
            with pytest.raises(WorkerProtocolError, match=words):
                await call
        with pytest.raises(WorkerProtocolError, match=words):
            await connection.ping()


async def test_the_end_of_the_pipe_fails_every_call() -> None:
    async with pair() as (connection, other):
        await connection.open(timeout_seconds=5)
        calls = [asyncio.ensure_future(_collect(connection, request())), asyncio.ensure_future(connection.ping())]
        for _ in range(3):
            await other.next()
        other.writer.write(encode_frame(Step(events=(("r1", TextDelta("a")),)))[:-3])
        other.writer.close()
        for call in calls:
            with pytest.raises(WorkerLostError):
                await call
        await connection.shutdown()


async def test_a_request_that_no_frame_can_carry_is_the_client_s_fault() -> None:
    deep: list[object] = []
    for _ in range(2000):
        deep = [deep]
    async with pair() as (connection, _):
        await connection.open(timeout_seconds=5)
        with pytest.raises(InvalidRequestError, match="too large or too deep"):
            await connection.prepare(request(template_arguments={"deep": deep}))
        with pytest.raises(InvalidRequestError, match="too large or too deep"):
            await anext(connection.chat(request(template_arguments={"deep": deep})))
        await connection.released("r1")


async def _collect(connection: WorkerConnection, chat: ChatRequest, accepted: Accepted | None = None) -> list[object]:
    return [event async for event in connection.chat(chat, accepted=accepted)]
