"""The one decision over every route: which socket, which host, which origin, which key."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from cardcage.access.listeners import Listener, ListenerTable, ServerAddress
from cardcage.access.origins import HostRules, OriginPatterns, is_own_origin
from cardcage.config import ListenEntry
from cardcage.http.ownership import PathOwners
from cardcage_sdk.dialect import Scope
from cardcage_sdk.errors import (
    AuthenticationError,
    ForbiddenError,
    InternalError,
    OriginNotAllowedError,
    RouteNotFoundError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from cardcage.access.keys import KeyRecord, KeyRing
    from cardcage.config import SecurityConfig
    from cardcage_sdk.dialect import Dialect

__all__ = ["CORE_OPEN_PATHS", "AccessPolicy", "Admission", "Place", "admission_of"]

CORE_OPEN_PATHS = frozenset({"/livez", "/readyz"})
"""Core's own paths that need no key, since whoever supervises the server has none. `/metrics` tells of models and traffic."""

SCOPE_KEY = "cardcage.admission"
"""Where an ASGI scope carries the `Admission` of its request."""

log = structlog.get_logger("cardcage.keys")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a request has come to.

    Attributes:
        listener: The socket.
        owners: The dialects that are served there, with core.
    """

    listener: Listener
    owners: PathOwners


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """By what right a request was let in.

    Attributes:
        listener: The socket that it came in by, as the configuration names it.
        keys_required: Whether requests need a key there.
        key: The key that it had; None where none is needed, or where the path is open and it had none that works.
    """

    listener: str
    keys_required: bool
    key: KeyRecord | None = None

    @property
    def is_trusted(self) -> bool:
        """Whether the caller may see what an open path does not tell everybody."""
        return self.key is not None or not self.keys_required


def admission_of(scope: Mapping[str, Any]) -> Admission:
    """How the request of this ASGI scope was let in.

    Raises:
        InternalError: It never passed the guard.
    """
    admission = scope.get(SCOPE_KEY)
    if not isinstance(admission, Admission):
        raise InternalError("A request reached a route without passing the access policy")
    return admission


class AccessPolicy:
    """Decides on every request and WebSocket of a server, in three steps; the guard calls them in order.

    All steps fail closed: what nobody claims needs a key like everything else, and a database that cannot be read admits
    nobody.
    """

    def __init__(
        self,
        *,
        dialects: Iterable[Dialect],
        keys: KeyRing,
        security: SecurityConfig,
        listeners: ListenerTable,
        accepts_other_sockets: bool = False,
        hosts: HostRules | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Take everything that decides.

        Args:
            dialects: All that are loaded.
            keys: The keys of the data directory.
            security: `[security]`.
            listeners: The sockets.
            accepts_other_sockets: Serve connections to other sockets as well, by the rules of one without an entry: someone
                else has bound them, and the configuration names none.
            hosts: Rules for `Host`; None makes them from `security`.
            clock: Unix time in seconds.
        """
        self._dialects = tuple(dialects)
        self._keys = keys
        self._require_keys = security.require_keys
        self._listeners = listeners
        self._accepts_other_sockets = accepts_other_sockets
        self._hosts = hosts if hosts is not None else HostRules(security.allowed_hosts)
        self._origins = OriginPatterns(security.allowed_origins)
        self._clock = clock
        self._owners: dict[frozenset[str] | None, PathOwners] = {}
        self._listener_origins = {
            listener.entry: OriginPatterns(listener.entry.origins) for listener in listeners.listeners
        }

    # --- first: where

    def place(self, server: ServerAddress, path: str) -> Place:
        """The socket that a request came in by, and who is served there.

        Raises:
            ForbiddenError: No entry of the configuration stands for this socket.
        """
        listener = self._listeners.find(server)
        if listener is None:
            if not self._accepts_other_sockets:
                raise ForbiddenError("No [[listen]] entry stands for the socket of this connection")
            address, port = server if server is not None and server[1] is not None else (None, None)
            listener = Listener(entry=ListenEntry(), address=address, port=port)
        return Place(listener=listener, owners=self._owners_for(listener.entry.dialects))

    def check_reach(self, place: Place, *, path: str, host: str) -> None:
        """Whether this host may be called, and this path is served on this socket.

        Raises:
            OriginNotAllowedError: The name is not one of this server's.
            RouteNotFoundError: The path belongs to a dialect that this socket does not serve.
        """
        listener = place.listener
        # No browser can call a Unix socket, and what its clients put into `Host` is arbitrary.
        if listener.address is not None and not self._hosts.allows(host, is_local_bind=listener.is_local):
            raise OriginNotAllowedError(host)
        owner = self._owners_for(None).owner(path)
        if owner is not None and place.owners.owner(path) is not owner:
            raise RouteNotFoundError(path)

    # --- second: which page

    def check_origin(self, place: Place, *, path: str, host: str, origin: str) -> bool:
        """Whether a page of this origin may call this path; returns whether pages of any origin may.

        Raises:
            OriginNotAllowedError: It may not.
        """
        listed = self._listener_origins.get(place.listener.entry)
        if place.owners.allows_any_origin(path) or self._origins.allows_any or (listed and listed.allows_any):
            return True
        if is_own_origin(origin, host, self._hosts) or self._origins.allows(origin):
            return False
        if listed is not None and listed.allows(origin):
            return False
        if OriginPatterns(place.owners.always_allowed_origins(path)).allows(origin):
            return False
        raise OriginNotAllowedError(origin)

    # --- third: which key

    async def admit(self, place: Place, *, method: str, path: str, credentials: Sequence[str]) -> Admission:
        """Whether the request may pass with the keys that it carries.

        A key that is not needed is not looked at: clients send dummies to servers that need none.

        Args:
            place: Where it came in.
            method: HTTP method; `GET` for a WebSocket.
            path: Its path.
            credentials: Every text that it shows as a key, from wherever.

        Raises:
            AuthenticationError: It needs a key and has none that works.
            ForbiddenError: Its key lacks the scope.
            ConfigError, InternalError: The database cannot be used.
        """
        setting = place.listener.entry.require_keys
        wanted = self._require_keys if setting is None else setting
        if wanted is False:
            return Admission(listener=place.listener.entry.label, keys_required=False)
        found = await self._keys.look_up(credentials)
        if wanted is None and not found.any_made:
            return Admission(listener=place.listener.entry.label, keys_required=False)
        now = self._clock()
        working = [key for key in found.matching if key.state(now) == "active"]
        if self._is_open(place, path):
            return Admission(
                listener=place.listener.entry.label, keys_required=True, key=working[0] if working else None
            )
        if not working:
            raise AuthenticationError(_why(found.matching, now=now, shown=bool(credentials)))
        scope = self._required_scope(place, method, path)
        fitting = next((key for key in working if scope is None or scope in key.scopes), None)
        if fitting is None:
            raise ForbiddenError(f"The API key '{working[0].name}' lacks the scope '{scope}'")
        return Admission(listener=place.listener.entry.label, keys_required=True, key=fitting)

    def _is_open(self, place: Place, path: str) -> bool:
        if path in CORE_OPEN_PATHS:
            return True
        # Only the owner opens a path: no dialect can open another's.
        owner = place.owners.owner(path)
        return owner is not None and path in owner.open_paths

    def _required_scope(self, place: Place, method: str, path: str) -> Scope | None:
        owner = place.owners.owner(path)
        if owner is None:
            return Scope.MODELS_READ if path == "/metrics" else None
        try:
            return Scope(owner.required_scope(method, path))
        except Exception as error:  # named boundary: a dialect that cannot say what is needed admits nobody
            log.exception("the dialect could not name the scope of a request", dialect=owner.name, path=path)
            raise InternalError from error

    def _owners_for(self, names: tuple[str, ...] | None) -> PathOwners:
        key = None if names is None else frozenset(names)
        if key not in self._owners:
            self._owners[key] = PathOwners(
                dialect for dialect in self._dialects if names is None or dialect.name in names
            )
        return self._owners[key]


def _why(matching: Sequence[KeyRecord], *, now: float, shown: bool) -> str:
    """What is wrong with the keys of a request. The state of a key is told only to who knows its secret."""
    if matching:
        end = "was revoked" if matching[0].state(now) == "revoked" else "has expired"
        return f"The API key '{matching[0].name}' {end}"
    return "The API key is not valid" if shown else "An API key is required"
