"""By which socket did a request come in, and what does the configuration say about it?"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from cardcage.config import ListenEntry, is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cardcage.config import Config

__all__ = ["Listener", "ListenerTable", "ServerAddress", "exposed"]

ServerAddress: TypeAlias = tuple[str, int | None] | None
"""`server` of an ASGI scope: the local end of the connection, None on a Unix socket (as hypercorn has it)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A socket of the server as it is bound.

    Attributes:
        entry: What the configuration says about it.
        address: IP address that is bound, `0.0.0.0` and `::` included; None on a Unix socket.
        port: The port that it really has, where the entry asks for a free one.
    """

    entry: ListenEntry
    address: str | None
    port: int | None

    @property
    def is_local(self) -> bool:
        """Whether only programs on this machine reach it."""
        return self.address is None or is_loopback(self.address)


class ListenerTable:
    """The bound sockets, looked up by the local end of a connection.

    A socket bound to one address names that address there; one bound to `0.0.0.0` or `::` names whichever of this
    machine's addresses the client called. So the exact address wins over the port's wildcard.
    """

    def __init__(self, listeners: Iterable[Listener]) -> None:
        self.listeners: tuple[Listener, ...] = tuple(listeners)
        self._exact: dict[tuple[str, int], Listener] = {}
        self._wildcards: dict[tuple[int, int], Listener] = {}
        self._unix: Listener | None = None
        for listener in self.listeners:
            if listener.address is None or listener.port is None:
                self._unix = listener
                continue
            address = ipaddress.ip_address(listener.address.partition("%")[0])
            if address.is_unspecified:
                self._wildcards[address.version, listener.port] = listener
            else:
                self._exact[_plain(str(address)), listener.port] = listener

    @classmethod
    def of(cls, config: Config) -> ListenerTable:
        """The table of a server that someone else binds (plain hypercorn): addresses as written, ports as given."""
        return cls(listener for entry in config.listeners for listener in _as_written(entry))

    def find(self, server: ServerAddress) -> Listener | None:
        """The socket that a connection came in by; None where none of ours has this address."""
        if server is None or server[1] is None:
            return self._unix
        address, port = _plain(server[0]), server[1]
        exact = self._exact.get((address, port))
        if exact is not None:
            return exact
        if "." in address and (4, port) in self._wildcards:
            return self._wildcards[4, port]
        # A socket bound to `::` takes IPv4 connections too.
        return self._wildcards.get((6, port))


def exposed(listeners: Sequence[Listener], *, require_keys: bool) -> list[Listener]:
    """The sockets by which other machines reach the server without a key."""
    return [
        listener
        for listener in listeners
        if not listener.is_local
        and not (listener.entry.require_keys if listener.entry.require_keys is not None else require_keys)
    ]


def _as_written(entry: ListenEntry) -> list[Listener]:
    if entry.unix is not None:
        return [Listener(entry=entry, address=None, port=None)]
    names = ["127.0.0.1", "::1"] if entry.address.rstrip(".").lower() == "localhost" else [entry.address.strip("[]")]
    found = []
    for name in names:
        try:
            ipaddress.ip_address(name.partition("%")[0])
        except ValueError:
            continue  # a host name that only binding it would resolve
        found.append(Listener(entry=entry, address=name, port=entry.port))
    return found


def _plain(address: str) -> str:
    """An address in one form: no scope id, IPv4 where IPv6 only wraps it."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address.lower()
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return str(parsed)
