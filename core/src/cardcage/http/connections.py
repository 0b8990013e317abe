"""Connections that end with their client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import hypercorn.asyncio.run
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.events import Updated

if TYPE_CHECKING:
    from hypercorn.events import Event

__all__ = ["use_closing_connections"]


class _ClosingConnection(TCPServer):
    """Hypercorn's connection, which closes its socket when the client has closed its own.

    Hypercorn 0.18 goes on waiting for the idle time-out of a connection that nothing more can come from. With a time-out
    that suits pooled clients, every client that asks once and leaves would hold a descriptor for that long.
    """

    _is_read_out = False

    async def protocol_send(self, event: Event) -> None:
        """As hypercorn, but what ends after its client left makes the connection wait for nothing."""
        if not (self._is_read_out and isinstance(event, Updated)):
            await super().protocol_send(event)

    async def _read_data(self) -> None:
        try:
            await super()._read_data()
        finally:
            self._is_read_out = True
            await self.idle_task.stop()


def use_closing_connections() -> None:
    """Have hypercorn serve this process's connections so; it has no setting for the class that it uses."""
    hypercorn.asyncio.run.TCPServer = _ClosingConnection  # type: ignore[attr-defined]
