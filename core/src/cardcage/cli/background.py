"""Start a server that outlives the command, where none runs."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from cardcage.cli.client import ServerClient, find_url
from cardcage.cli.exits import OCCUPIED, UNREACHABLE, CommandError
from cardcage.cli.output import note, print_json
from cardcage.lock import read_holder

if TYPE_CHECKING:
    from pathlib import Path

    from cardcage.config import Config

__all__ = ["connect", "connect_or_start", "stop"]

START_SECONDS = 60.0
STOP_SECONDS = 20.0
"""How long ending streams, workers and sockets may take after the answers have had their time."""
POLL_SECONDS = 0.05
MAX_LOG_BYTES = 10 * 1024 * 1024
LOG_FILE = "server.log"


def connect(config: Config, url: str | None) -> ServerClient:
    """A client of the server that runs.

    Raises:
        CommandError: None answers.
    """
    client = ServerClient(find_url(config, url))
    if not client.is_alive():
        client.close()
        raise CommandError(f"no server answers at {client.url}; start one with 'cardcage serve'", exit_code=UNREACHABLE)
    return client


def connect_or_start(config: Config, url: str | None, *, config_file: Path | None) -> ServerClient:
    """A client of the server that runs, or of one that is started now and left running.

    Raises:
        CommandError: It does not come up; the message has its last words. Or a `url` was named and nobody answers there.
    """
    client = ServerClient(find_url(config, url))
    if client.is_alive():
        return client
    client.close()
    if url or os.environ.get("CARDCAGE_URL"):
        return connect(config, url)
    return _start(config, config_file=config_file)


def stop(config: Config, *, as_json: bool) -> None:
    """Ask the server of the data directory to end, as SIGTERM does, and return when it has.

    Raises:
        CommandError: None runs, it belongs to somebody else, or it did not end in time.
    """
    holder = read_holder(config.data_dir)
    if holder is None:
        raise CommandError(f"no server uses the data directory '{config.data_dir}'", exit_code=UNREACHABLE)
    if not holder.pid:
        raise CommandError("the server is just starting; try again in a moment")
    try:
        process = os.pidfd_open(holder.pid)
    except ProcessLookupError:
        process = None  # it has ended by itself since
    if process is not None:
        try:
            signal.pidfd_send_signal(process, signal.SIGTERM)
            # It gives running answers `shutdown_seconds`, then ends them, then its workers.
            patience_seconds = config.server.shutdown_seconds + STOP_SECONDS
            if not select.select([process], [], [], patience_seconds)[0]:
                raise CommandError(
                    f"the server (process {holder.pid}) has not ended after {patience_seconds:g} seconds"
                )
        except PermissionError as error:
            raise CommandError(f"the server (process {holder.pid}) belongs to another user") from error
        finally:
            os.close(process)
    if as_json:
        print_json({"stopped": True, "pid": holder.pid, "url": holder.url})
    else:
        note(f"the server at {holder.url or 'an unknown address'} has ended")


def _start(config: Config, *, config_file: Path | None) -> ServerClient:
    log_path = _open_log(config.data_dir)
    command = [sys.executable, "-P", "-m", "cardcage", "serve"]
    if config_file is not None:
        command += ["--config", str(config_file)]
    with log_path.open("ab") as log:
        start = log.tell()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/"
        )
    note(f"starting a server in the background (log: {log_path})")
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        holder = read_holder(config.data_dir)
        if holder is not None and holder.url:
            client = ServerClient(holder.url)
            if client.is_alive():
                return client
            client.close()
        # Two commands at once start two servers, and the lock lets one of them live: that one serves both.
        code = process.poll()
        if code is not None and not (code == OCCUPIED and holder is not None):
            raise CommandError(f"the server did not start: {_last_words(log_path, start)}")
        time.sleep(POLL_SECONDS)
    raise CommandError(f"the server was not ready within {START_SECONDS:g} seconds; its log is {log_path}")


def _open_log(data_dir: Path) -> Path:
    path = data_dir / LOG_FILE
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
            path.replace(path.with_suffix(".log.1"))
        path.touch(mode=0o600)
    except OSError as error:
        raise CommandError(f"'{path}' cannot be written: {error.strerror}") from error
    return path


def _last_words(log_path: Path, start: int) -> str:
    with log_path.open("rb") as log:
        log.seek(start)
        lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("cardcage: error: ") if lines else f"it said nothing (log: {log_path})"
