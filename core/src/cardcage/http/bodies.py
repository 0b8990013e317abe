"""Request bodies that are waited for, though not longer than is allowed, and not when their client has left."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from quart.wrappers import Request
from werkzeug.exceptions import RequestTimeout

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["TimedRequest"]


class TimedRequest(Request):
    """A request whose handler ends when its client leaves, also where body and end of the connection come together.

    Quart waits for the body by `asyncio.wait_for`, which drops a cancellation that comes in the same turn of the loop as
    what it waits for (Python 3.11). The handler would go on, and the answer to nobody would take an instance.

    Attributes:
        arrival_seconds: Longest time for the body to arrive; None waits for ever.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.arrival_seconds: float | None = self.body_timeout
        self.body_timeout = None

    async def get_data(  # type: ignore[override]  # the overloads are the base class's
        self, cache: bool = True, as_text: bool = False, parse_form_data: bool = False
    ) -> str | bytes:
        """The body; see the base class.

        Raises:
            RequestTimeout: It did not arrive in time.
        """
        async with self._in_time():
            return await super().get_data(cache=cache, as_text=as_text, parse_form_data=parse_form_data)

    async def _load_form_data(self) -> None:
        async with self._in_time():
            await super()._load_form_data()

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self.arrival_seconds):
                yield
        except TimeoutError as error:
            raise RequestTimeout from error
