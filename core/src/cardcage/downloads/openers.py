"""Open an address at a byte: over HTTP, or a file of this machine. What the answer was is decided by the caller."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import unquote, urlsplit

import certifi
import httpx

from cardcage_sdk.errors import CorruptDownloadError, ModelNotFoundError, PathNotAllowedError, SourceUnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

__all__ = ["CHUNK_BYTES", "Opened", "Openers", "local_path"]

CHUNK_BYTES = 1 << 20

CONNECT_SECONDS = 3.0
READ_SECONDS = 30.0
"""Silence after which a connection counts as lost; the transfer then goes on where it stood."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """An answer with bytes to come.

    Attributes:
        status: HTTP status; 206 where the bytes start at `start_byte`.
        start_byte: Where in the file the bytes start.
        total_bytes: Size of the whole file, where the answer tells.
        etag: Strong validator of the content, or None.
        retry_after_seconds: What the answer says about coming again.
    """

    status: int
    start_byte: int
    total_bytes: int | None
    etag: str | None
    retry_after_seconds: float | None
    chunks: AsyncIterator[bytes]


class Openers:
    """Opens `https:`, `http:` and `file:` addresses. Used in the event loop only; holds pooled connections."""

    def __init__(self, *, allows_path: Callable[[Path], bool], user_agent: str) -> None:
        self._allows_path = allows_path
        self._user_agent = user_agent
        self._client: httpx.AsyncClient | None = None

    @contextlib.asynccontextmanager
    async def open(
        self, url: str, *, headers: Mapping[str, str], start_byte: int, etag: str | None
    ) -> AsyncIterator[Opened]:
        """Ask for the bytes of `url` from `start_byte` on.

        Args:
            url: The address.
            headers: Sent to its own origin only.
            start_byte: 0 asks for all.
            etag: The range is wanted only if the content still has this validator; else all comes.

        Raises:
            SourceUnavailableError: No connection, or it broke.
            CorruptDownloadError: An encrypted address leads to a plain one, or the bytes come in another form.
            ModelNotFoundError, PathNotAllowedError: A file that is not there, or that this server may not read.
        """
        if url.lower().startswith("file:"):
            async with self._open_file(local_path(url), start_byte, etag) as opened:
                yield opened
            return
        async with self._open_http(url, headers, start_byte, etag) as opened:
            yield opened

    async def close(self) -> None:
        """Close pooled connections."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.aclose()

    def _http(self) -> httpx.AsyncClient:
        if self._client is None:
            context = ssl.create_default_context()
            # A minimal container has no certificates of its own.
            context.load_verify_locations(certifi.where())
            self._client = httpx.AsyncClient(
                verify=context,
                follow_redirects=True,
                max_redirects=10,
                timeout=httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS),
                # The bytes on the wire are the bytes of the file: sizes and ranges count them.
                headers={"user-agent": self._user_agent, "accept-encoding": "identity"},
            )
        return self._client

    @contextlib.asynccontextmanager
    async def _open_http(
        self, url: str, headers: Mapping[str, str], start_byte: int, etag: str | None
    ) -> AsyncIterator[Opened]:
        asked = dict(headers)
        if start_byte:
            asked["range"] = f"bytes={start_byte}-"
            if etag is not None:
                asked["if-range"] = etag
        host = urlsplit(url).hostname or url
        try:
            async with self._http().stream("GET", url, headers=asked) as response:
                _check_redirects(response, host)
                if response.status_code in {200, 206}:
                    _check_encoding(response, host)
                yield Opened(
                    status=response.status_code,
                    start_byte=_start_of(response),
                    total_bytes=_total_of(response),
                    etag=_strong_etag(response),
                    retry_after_seconds=_retry_after(response),
                    chunks=_chunks(response, host),
                )
        except httpx.TooManyRedirects as error:
            raise CorruptDownloadError(host, reason="the address is redirected without end") from error
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            # The last is what a host's name that cannot be one raises.
            raise _broken(host, error) from error

    @contextlib.asynccontextmanager
    async def _open_file(self, path: Path, start_byte: int, etag: str | None) -> AsyncIterator[Opened]:
        if not self._allows_path(path):
            raise PathNotAllowedError(str(path), param="model")
        try:
            file = await asyncio.to_thread(_open_plain, path)
        except OSError as error:
            raise ModelNotFoundError(str(path), message=f"'{path}' cannot be read: {error.strerror}") from error
        state = os.fstat(file.fileno())
        current = f'"{state.st_size}-{state.st_mtime_ns}"'
        if etag is not None and etag != current:
            start_byte = 0  # as a server does with `if-range`

        async def chunks() -> AsyncIterator[bytes]:
            await asyncio.to_thread(file.seek, start_byte)
            while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
                yield chunk

        try:
            yield Opened(
                status=206 if start_byte else 200,
                start_byte=start_byte,
                total_bytes=state.st_size,
                etag=current,
                retry_after_seconds=None,
                chunks=chunks(),
            )
        finally:
            file.close()


async def _chunks(response: httpx.Response, host: str) -> AsyncIterator[bytes]:
    try:
        async for chunk in response.aiter_raw():
            yield chunk
    except httpx.HTTPError as error:
        raise _broken(host, error) from error


def _open_plain(path: Path) -> BinaryIO:
    """Open a file for reading; a pipe or device, which could keep a thread for ever, is refused."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no plain file")
    return os.fdopen(descriptor, "rb")


def _broken(host: str, error: httpx.HTTPError | httpx.InvalidURL | UnicodeError) -> SourceUnavailableError:
    reason = str(error) or type(error).__name__
    return SourceUnavailableError(host, reason=f"the connection failed: {reason}")


def local_path(url: str) -> Path:
    """The path of a `file:` address; it is no name of a model, and is checked against the allowed roots."""
    return Path(unquote(urlsplit(url).path))


def _check_redirects(response: httpx.Response, host: str) -> None:
    schemes = [hop.url.scheme for hop in (*response.history, response)]
    if "https" in schemes and schemes[schemes.index("https") :].count("http"):
        raise CorruptDownloadError(host, reason="an encrypted address is redirected to a plain one")


def _check_encoding(response: httpx.Response, host: str) -> None:
    """Sizes, ranges and hashes are those of the file itself, and `identity` was asked for."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in {"", "identity"}:
        raise CorruptDownloadError(host, reason=f"it is sent as '{encoding}', which nobody asked for")


def _start_of(response: httpx.Response) -> int:
    if response.status_code != 206:
        return 0
    unit, _, rest = response.headers.get("content-range", "").partition(" ")
    first = rest.partition("-")[0]
    return int(first) if unit.lower() == "bytes" and first.isdecimal() else -1


def _total_of(response: httpx.Response) -> int | None:
    if response.status_code == 206:
        total = response.headers.get("content-range", "").rpartition("/")[2]
    else:
        total = response.headers.get("content-length", "")
    return int(total) if total.isdecimal() else None


def _strong_etag(response: httpx.Response) -> str | None:
    etag = response.headers.get("etag", "")
    return etag if etag.startswith('"') else None


def _retry_after(response: httpx.Response) -> float | None:
    text = response.headers.get("retry-after", "")
    return float(text) if text.isdecimal() else None
