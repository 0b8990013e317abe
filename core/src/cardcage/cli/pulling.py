"""`pull`, and how a download is shown. The server fetches; this follows."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from cardcage.cli.background import connect_or_start
from cardcage.cli.choosing import can_ask, choose
from cardcage.cli.exits import CommandError
from cardcage.cli.output import note, print_json
from cardcage.cli.usage import find_loaded, resolve

if TYPE_CHECKING:
    from pathlib import Path

    from cardcage.cli.client import ServerClient
    from cardcage.config import Config

__all__ = ["ensure_present", "gigabytes", "pull", "stored_path"]

TOLD_PERCENT = 10
"""Steps of progress that a log or a pipe is told."""


def pull(
    config: Config,
    *,
    model: str,
    source: str | None,
    platform: str | None,
    name: str | None,
    stops_on_interrupt: bool,
    url: str | None,
    config_file: Path | None,
    as_json: bool,
) -> None:
    """Have the server fetch a model, show how far it is, and say where it is.

    Raises:
        CommandError: With one line.
        KeyboardInterrupt: Ctrl+C; the server goes on unless it was to be stopped.
    """
    client = connect_or_start(config, url, config_file=config_file)
    body = _body(model, source=source, platform=platform, name=name)
    last = _pull_or_ask(client, body, stops_on_interrupt=stops_on_interrupt)
    result = last["result"]
    if as_json:
        print_json(last)
    elif last["fetched"]:
        sys.stdout.write(f"{result['id']}  {gigabytes(result['size_bytes'])}  {result['model_path']}\n")
    else:
        sys.stdout.write(f"{result['id']} is up to date  {result['model_path']}\n")


def ensure_present(client: ServerClient, config: Config, model: str, *, platform: str | None) -> str:
    """Make sure that `run` finds what a name means: loaded, in the store, or fetched now.

    Returns:
        What to ask for: the name, or the path of the model in the store where only the server knew the name.

    Raises:
        CommandError: It is nowhere and cannot be fetched.
    """
    if model.startswith(("/", "./", "../", "~")):
        return model
    artifact = resolve(config, model, platform=platform)
    if artifact is not None or find_loaded(client, model, None) is not None:
        return model
    path = stored_path(client, model)
    if path is not None:
        return path
    try:
        last = _pull_or_ask(client, _body(model, platform=platform), stops_on_interrupt=False)
    except CommandError as error:
        raise CommandError(
            f"there is no model '{model}', neither loaded nor in the store {config.store}, and it cannot be fetched: {error}",
            exit_code=error.exit_code,
            code=error.code,
        ) from error
    return str(last["result"]["model_path"])


def stored_path(client: ServerClient, model: str) -> str | None:
    """The directory of a model of the store by a name that only the server knows, as `Org/Repo`; None where there is none.

    Raises:
        CommandError: Nobody answers, or refuses.
    """
    try:
        return str(client.find_available(model)["model_path"])
    except CommandError as error:
        if error.code != "model_not_found":
            raise
        return None


def _body(
    model: str, *, source: str | None = None, platform: str | None = None, name: str | None = None
) -> dict[str, Any]:
    kind, _, chip = (platform or "").partition("/")
    wanted = {"model": model, "source": source, "platform": kind or None, "chip": chip or None, "name": name}
    return {key: value for key, value in wanted.items() if value is not None}


def _pull_or_ask(client: ServerClient, body: dict[str, Any], *, stops_on_interrupt: bool) -> dict[str, Any]:
    """Pull; where several platforms would do, a person at a terminal chooses."""
    try:
        return _follow(client, body, stops_on_interrupt=stops_on_interrupt)
    except CommandError as error:
        if error.code != "variant_required":
            raise
        if not can_ask():
            raise CommandError(f"{error}, with --platform", code=error.code) from error
    chosen = _choose(client.post("/v1/models/variants", body, timeout_seconds=240.0)["data"])
    return _follow(client, {**body, **chosen}, stops_on_interrupt=stops_on_interrupt)


def _choose(variants: list[dict[str, Any]]) -> dict[str, str]:
    choices = [(variant, platform) for variant in variants for platform in variant["platforms"]]
    places = [f"{platform}/{variant['chips'][0]}" if variant["chips"] else platform for variant, platform in choices]
    lines = [
        f"{place}  {variant['label']}  {gigabytes(variant['size_bytes'])}"
        for place, (variant, _) in zip(places, choices, strict=True)
    ]
    platform, _, chip = places[choose(lines)].partition("/")
    return {"platform": platform, **({"chip": chip} if chip else {})}


def _follow(client: ServerClient, body: dict[str, Any], *, stops_on_interrupt: bool) -> dict[str, Any]:
    """Follow to the end; returns the last state."""
    last: dict[str, Any] | None = None
    shown = _Bars() if sys.stderr.isatty() else _Lines()
    try:
        with shown:
            for state in client.stream("/v1/models/pull", {**body, "stream": True}):
                last = state
                shown.show(state)
    except KeyboardInterrupt:
        pull_id = last["id"] if last is not None else _unanswered(client, body)
        if stops_on_interrupt and pull_id is not None:
            client.delete(f"/v1/models/pulls/{pull_id}")
            note("stopped; the next pull goes on from here, 'cardcage rm' deletes what was fetched")
        else:
            note("the server goes on; the same command follows it again")
        raise
    if last is None or last["status"] != "done":
        raise CommandError("the server ended the stream before the model was there")
    return last


def _unanswered(client: ServerClient, body: dict[str, Any]) -> str | None:
    """The pull that this command began while its source has not answered; the server's stream tells nothing until then."""
    begun = [pull for pull in client.pulls() if pull["model"] == body["model"] and pull["status"] == "resolving"]
    return str(begun[-1]["id"]) if begun else None


class _Bars:
    """One bar for each file and one for all, on a terminal."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> None:
        self._progress.start()

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def show(self, state: dict[str, Any]) -> None:
        """Draw a state."""
        files = state["files"]
        for file in files:
            self._update(file["name"], file["completed_bytes"], file["total_bytes"])
        if len(files) > 1:
            self._update("all", state["completed_bytes"], state["total_bytes"])

    def _update(self, name: str, completed: int, total: int | None) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=total)
        self._progress.update(self._tasks[name], completed=completed, total=total)


class _Lines:
    """A line for each state, and for each tenth of the bytes, where nobody watches."""

    def __init__(self) -> None:
        self._told: tuple[str, int] | None = None

    def __enter__(self) -> None:
        """Nothing is drawn."""

    def __exit__(self, *exception: object) -> None:
        """Nothing is drawn."""

    def show(self, state: dict[str, Any]) -> None:
        """Say what is new in a state."""
        total = state["total_bytes"]
        percent = int(100 * state["completed_bytes"] / total) if total else 0
        told = (state["status"], percent // TOLD_PERCENT)
        # Where nobody has told a size yet, there is nothing to say.
        if told != self._told and state["status"] not in {"resolving", "waiting"} and total:
            note(f"{state['model']}: {state['status']} {percent} % of {gigabytes(total)}")
            self._told = told


def gigabytes(count: int | None) -> str:
    """Bytes for people."""
    if count is None:
        return "?"
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
