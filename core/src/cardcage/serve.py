"""Serve with hypercorn in this process, and own the order of the shutdown."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
from typing import TYPE_CHECKING

import hypercorn.asyncio
import structlog
from hypercorn.config import Config as HypercornConfig
from hypercorn.utils import LifespanFailureError, LifespanTimeoutError

from cardcage.app import create_app, lifecycle_of
from cardcage.config import is_loopback
from cardcage.lock import DataDirLock, PortInUseError
from cardcage_sdk.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cardcage.config import Config
    from cardcage.plugins import PluginRegistry

__all__ = ["STARTUP_ERRORS", "bind_socket", "serve", "server_url"]

log = structlog.get_logger("cardcage.serve")

KEEP_ALIVE_SECONDS = 75.0
"""Longer than the pools of the usual clients keep a connection, so that none sends into a closing one."""

GRACEFUL_SECONDS = 3.0
"""After the drain, for final events to reach their clients."""

HEADER_BYTES = 64 * 1024
WEBSOCKET_MESSAGE_BYTES = 64 * 1024 * 1024


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
        sock.listen(128)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(
                f"Port {port} of {host} is in use by another program; stop it or choose --port"
            ) from error
        raise ConfigError(f"Cannot listen on {where}: {error.strerror}") from error
    return sock


def server_url(sock: socket.socket) -> str:
    """The URL that reaches a listening socket from this machine."""
    host, port = sock.getsockname()[:2]
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{_bracketed(reachable)}:{port}"


def serve(
    config: Config, registry: PluginRegistry, *, lock: DataDirLock, sock: socket.socket, announce: Callable[[str], None]
) -> None:
    """Serve until a signal, then shut down in order. Blocks; call it in the main thread.

    First SIGTERM or SIGINT: new generation requests get 503 with `Retry-After`, running ones may go on for
    `shutdown_seconds`, the rest end with a final error event, the workers end, the sockets close. A second signal ends the
    waiting.

    Args:
        config: The configuration.
        registry: The plugins.
        lock: The held lock on the data directory; released at the end.
        sock: The listening socket; closed at the end.
        announce: Told the URL when requests are answered.

    Raises:
        ConfigError, PluginError: From `create_app`.
        LifespanFailureError: The service could not start.
    """
    if not is_loopback(config.server.host):
        log.warning(
            "listening beyond this machine without any key: everyone who reaches this address can use and manage the models",
            host=config.server.host,
            advice="bind 127.0.0.1, or put a firewall or a proxy with authentication in front",
        )
    asyncio.run(_serve(config, registry, lock=lock, sock=sock, announce=announce))


async def _serve(
    config: Config, registry: PluginRegistry, *, lock: DataDirLock, sock: socket.socket, announce: Callable[[str], None]
) -> None:
    app = create_app(config, registry, bind_host=config.server.host)
    lifecycle = lifecycle_of(app)
    lifecycle.lock = lock
    url = server_url(sock)

    async def tell() -> None:
        lock.announce(url)
        log.info("ready", url=url)
        announce(url)
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
    server = asyncio.create_task(
        hypercorn.asyncio.serve(app, _hypercorn_config(config, sock), shutdown_trigger=trigger.wait)
    )
    try:
        await _wait(server, trigger)
    finally:
        if stopping:
            await stopping[0]
        await lifecycle.shutdown()


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


def _hypercorn_config(config: Config, sock: socket.socket) -> HypercornConfig:
    hypercorn_config = HypercornConfig()
    # Hypercorn takes the descriptor over and closes it.
    hypercorn_config.bind = [f"fd://{sock.detach()}"]
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
