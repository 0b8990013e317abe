"""Serve with hypercorn in this process, and own the order of the shutdown."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

import hypercorn.asyncio
import structlog
from hypercorn.config import Config as HypercornConfig
from hypercorn.utils import LifespanFailureError, LifespanTimeoutError

from cardcage.access import KeyRing, Listener, ListenerTable, exposed
from cardcage.app import create_app, lifecycle_of, store_of
from cardcage.http.connections import use_closing_connections
from cardcage.lock import DataDirLock, PortInUseError
from cardcage_sdk.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from cardcage.config import Config, ListenEntry
    from cardcage.plugins import PluginRegistry

__all__ = ["STARTUP_ERRORS", "BoundListener", "bind_listeners", "bind_socket", "serve", "server_url"]

log = structlog.get_logger("cardcage.serve")

KEEP_ALIVE_SECONDS = 75.0
"""Longer than the pools of the usual clients keep a connection, so that none sends into a closing one."""

GRACEFUL_SECONDS = 3.0
"""After the drain, for final events to reach their clients."""

HEADER_BYTES = 64 * 1024
WEBSOCKET_MESSAGE_BYTES = 64 * 1024 * 1024

BACKLOG = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundListener:
    """A socket that listens, and what the configuration says about it."""

    listener: Listener
    sock: socket.socket


def bind_socket(host: str, port: int) -> socket.socket:
    """Bind and listen, so that a taken port is known before anything is loaded, and port 0 is known before it is told.

    Raises:
        PortInUseError: Another program listens there.
        ConfigError: The address cannot be bound, with the reason.
    """
    where = f"{_bracketed(host)}:{port}"
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ConfigError(f"Cannot listen on {where}: {error.strerror}") from error
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(
                f"Port {port} of {host} is in use by another program; stop it or choose --port"
            ) from error
        raise ConfigError(f"Cannot listen on {where}: {error.strerror}") from error
    return sock


def bind_listeners(entries: Sequence[ListenEntry]) -> list[BoundListener]:
    """Bind every socket of the configuration; an optional one that cannot be bound is left out with a warning.

    Raises:
        PortInUseError, ConfigError: One that is not optional cannot be bound, or none could; nothing stays bound then.
    """
    bound: list[BoundListener] = []
    try:
        for entry in entries:
            try:
                bound.append(_bind(entry))
            except ConfigError as error:
                if not entry.optional:
                    raise
                log.warning("an optional socket is left out", listen=entry.label, reason=error.message)
    except ConfigError:
        for item in bound:
            item.sock.close()
        raise
    if not bound:
        raise ConfigError("Cannot listen anywhere: every [[listen]] entry is optional, and none could be bound")
    return bound


def _bind(entry: ListenEntry) -> BoundListener:
    if entry.unix is not None:
        return BoundListener(listener=Listener(entry=entry, address=None, port=None), sock=_bind_unix(entry.unix))
    sock = bind_socket(entry.address, entry.port)
    address, port = sock.getsockname()[:2]
    return BoundListener(listener=Listener(entry=entry, address=address, port=port), sock=sock)


def _bind_unix(path: Path) -> socket.socket:
    """Make a Unix socket that its owner and group may connect to; one that a dead server left is replaced.

    Raises:
        PortInUseError, ConfigError: As `bind_socket`.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o117)
    try:
        if path.is_socket():
            if _is_listening(path):
                raise PortInUseError(f"'{path}' is in use by another program")
            path.unlink()
        sock.bind(str(path))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise ConfigError(f"Cannot listen on unix:{path}: {error.strerror or error}") from error
    except ConfigError:
        sock.close()
        raise
    finally:
        os.umask(mask)
    return sock


def _is_listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        return True


def server_url(sock: socket.socket) -> str:
    """The URL that reaches a listening socket from this machine; `http+unix://PATH` for a Unix socket."""
    if sock.family == socket.AF_UNIX:
        return f"http+unix://{sock.getsockname()}"
    host, port = sock.getsockname()[:2]
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{_bracketed(reachable)}:{port}"


def serve(
    config: Config,
    registry: PluginRegistry,
    *,
    lock: DataDirLock,
    listeners: Sequence[BoundListener],
    announce: Callable[[str], None],
) -> None:
    """Serve until a signal, then shut down in order. Blocks; call it in the main thread.

    First SIGTERM or SIGINT: new generation requests get 503 with `Retry-After`, running ones may go on for
    `shutdown_seconds`, the rest end with a final error event, the workers end, the sockets close. A second signal ends the
    waiting.

    Args:
        config: The configuration.
        registry: The plugins.
        lock: The held lock on the data directory; released at the end.
        listeners: The listening sockets, at least one; closed at the end.
        announce: Told the URL of the first one when requests are answered.

    Raises:
        ConfigError, PluginError: From `create_app`.
        LifespanFailureError: The service could not start.
    """
    asyncio.run(_serve(config, registry, lock=lock, bound=listeners, announce=announce))


async def _warn_of_exposure(config: Config, keys: KeyRing, listeners: Sequence[Listener]) -> None:
    """Say loudly which sockets let everybody in.

    Raises:
        ConfigError: The keys cannot be read; serving would be refusing everybody, or letting everybody in.
    """
    any_made = (await keys.look_up(())).any_made
    wanted = any_made if config.security.require_keys is None else config.security.require_keys
    if wanted and not any_made:
        log.warning("every request needs a key, and there is none yet", advice="make one: cardcage key create NAME")
    for listener in exposed(listeners, require_keys=wanted):
        log.warning(
            "listening beyond this machine without any key: everyone who reaches this address can use and manage the models",
            listen=listener.entry.label,
            advice="make a key (cardcage key create NAME), bind 127.0.0.1, or put a firewall in front",
        )


async def _serve(
    config: Config,
    registry: PluginRegistry,
    *,
    lock: DataDirLock,
    bound: Sequence[BoundListener],
    announce: Callable[[str], None],
) -> None:
    listeners = [item.listener for item in bound]
    app = create_app(config, registry, listeners=ListenerTable(listeners))
    await _warn_of_exposure(config, KeyRing(store_of(app)), listeners)
    lifecycle = lifecycle_of(app)
    lifecycle.lock = lock
    # The one that is told is one that the command line can call.
    urls = sorted((server_url(item.sock) for item in bound), key=lambda url: not url.startswith("http://"))

    async def tell() -> None:
        lock.announce(urls[0])
        for url in urls:
            log.info("ready", url=url)
        announce(urls[0])
        _notify("READY=1")

    # After the service's own start. The socket listens already, so whoever hears the URL is served.
    app.before_serving(tell)
    trigger = asyncio.Event()
    stopping: list[asyncio.Task[None]] = []

    async def shut_down() -> None:
        _notify("STOPPING=1")
        try:
            await lifecycle.shutdown()
        finally:
            trigger.set()

    def on_signal(number: int) -> None:
        if stopping:
            lifecycle.hurry()
            return
        log.info("signal", name=signal.Signals(number).name)
        stopping.append(asyncio.create_task(shut_down()))

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    use_closing_connections()
    server = asyncio.create_task(
        hypercorn.asyncio.serve(app, _hypercorn_config(config, bound), shutdown_trigger=trigger.wait)
    )
    try:
        await _wait(server, trigger)
    finally:
        if stopping:
            await stopping[0]
        await lifecycle.shutdown()
        for item in bound:
            if item.listener.entry.unix is not None:
                item.listener.entry.unix.unlink(missing_ok=True)


async def _wait(server: asyncio.Task[None], trigger: asyncio.Event) -> None:
    """Wait for the server's end, but not longer than it should take once it was told to.

    On Python 3.12 and later hypercorn waits for open connections for ever (hypercorn issue 308).
    """
    triggered = asyncio.create_task(trigger.wait())
    try:
        await asyncio.wait({server, triggered}, return_when=asyncio.FIRST_COMPLETED)
        if not server.done():
            await asyncio.wait({server}, timeout=GRACEFUL_SECONDS + 2.0)
        if not server.done():
            log.warning("connections did not end in time and are cut")
            server.cancel()
        try:
            await server
        except asyncio.CancelledError:
            if not server.cancelled():
                raise
    finally:
        triggered.cancel()


def _hypercorn_config(config: Config, bound: Sequence[BoundListener]) -> HypercornConfig:
    hypercorn_config = HypercornConfig()
    # Hypercorn takes the descriptors over and closes them.
    hypercorn_config.bind = [f"fd://{item.sock.detach()}" for item in bound]
    hypercorn_config.accesslog = None  # RequestFrame writes it, without queries
    hypercorn_config.errorlog = logging.getLogger("hypercorn.error")
    hypercorn_config.include_server_header = False
    hypercorn_config.keep_alive_timeout = KEEP_ALIVE_SECONDS
    hypercorn_config.graceful_timeout = GRACEFUL_SECONDS
    hypercorn_config.shutdown_timeout = config.server.shutdown_seconds + 30.0
    hypercorn_config.h11_max_incomplete_size = HEADER_BYTES
    hypercorn_config.websocket_max_message_size = WEBSOCKET_MESSAGE_BYTES
    return hypercorn_config


def _notify(state: str) -> None:
    """Tell systemd, where it asked to be told (sd_notify(3)); without a library, it is one datagram."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notifier:
        try:
            notifier.sendto(state.encode(), f"\0{address[1:]}" if address.startswith("@") else address)
        except OSError as error:
            log.warning("systemd could not be notified", reason=error.strerror)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


STARTUP_ERRORS = (LifespanFailureError, LifespanTimeoutError)
"""What `serve` raises when the service could not start."""
