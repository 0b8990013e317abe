"""Which `run` uses a model, so that one that ends does not take it away from another.

Each `run` holds a shared file lock of the model for as long as it lives. The one that ends last (it can make the lock
exclusive) unloads the model, if a `run` loaded it, nobody has loaded it anew since, and no request of anybody runs on it.
The kernel releases the lock of a killed process, so a crash leaves nothing behind but a model that stays loaded until the
next `run` of it ends. Requests of other programs between two of their calls cannot be seen: whoever needs a model to stay
loads it by name (`cardcage load`, the load route, `[[models]]`).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from cardcage.catalog import Catalog, default_model_id
from cardcage.catalog.resolver import matching_artifacts
from cardcage.cli.choosing import can_ask, choose
from cardcage.cli.exits import CommandError
from cardcage_sdk.errors import ModelNotFoundError

if TYPE_CHECKING:
    from types import TracebackType

    from cardcage.cli.client import ServerClient
    from cardcage.config import Config
    from cardcage_sdk.models import ModelArtifact

__all__ = ["ModelUse", "find_loaded", "forget_run_loads", "resolve"]

POLL_SECONDS = 0.1
SETTLE_SECONDS = 2.0


def find_loaded(client: ServerClient, wanted: str, artifact: ModelArtifact | None) -> dict[str, Any] | None:
    """The loaded model that a name means: by id, else by the path of the model on disk, else by its name with size."""
    models = client.states()
    for model in models:
        if model["id"] == wanted:
            return model
    if artifact is not None:
        return next((model for model in models if model["path"] == str(artifact.path)), None)
    named = [model for model in models if model["name"].lower() == wanted.lower()]
    return named[0] if len(named) == 1 else None


def resolve(config: Config, wanted: str, *, platform: str | None = None) -> ModelArtifact | None:
    """The model on disk that an argument means: a path, else a name of the store; None where there is none.

    Args:
        config: Says where the store is.
        wanted: What the user typed.
        platform: `platform` or `platform/chip`, to choose between variants of one name.

    Raises:
        CommandError: Several variants have this name, none was chosen, and there is no terminal to ask at.
        InvalidModelError: It is there but incomplete.
    """
    catalog = Catalog(config.store)
    if wanted.startswith(("/", "./", "../", "~")):
        return catalog.artifact(Path(wanted).expanduser())
    kind, _, chip = (platform or "").partition("/")
    try:
        return catalog.find(wanted, platform=kind or None, chip=chip or None)
    except ModelNotFoundError as error:
        if "several" not in error.message:
            return None
        if not can_ask():
            raise CommandError(f"{error.message}, or choose with --platform") from error
    several = [
        artifact
        for artifact in matching_artifacts(wanted, catalog.entries())
        if kind in {"", artifact.platform} and (not chip or chip in artifact.chips)
    ]
    return several[choose([default_model_id(artifact) for artifact in several])]


def forget_run_loads(config: Config, client: ServerClient, model_id: str) -> None:
    """Somebody has asked for this model by name: no `run` may unload it any more."""
    _marker(config, client, model_id).unlink(missing_ok=True)


class ModelUse:
    """A `run`'s hold on a model: loaded on entry if need be, unloaded on exit if that is right.

    Attributes:
        model: The loaded model as the server describes it, from entry on.
    """

    def __init__(
        self, client: ServerClient, config: Config, wanted: str, *, platform: str | None, load_seconds: float
    ) -> None:
        self._client = client
        self._config = config
        self._wanted = wanted
        self._load_seconds = load_seconds
        self._artifact = resolve(config, wanted, platform=platform)
        self._platform = platform.partition("/")[0] if platform else None
        self._lock: int | None = None
        self.model: dict[str, Any] = {}

    def __enter__(self) -> Self:
        """Hold the model.

        Raises:
            CommandError: There is no such model, or it cannot be loaded.
        """
        loaded = find_loaded(self._client, self._wanted, self._artifact)
        if loaded is not None:
            model_id = str(loaded["id"])
        elif self._artifact is not None:
            model_id = default_model_id(self._artifact, platform=self._platform)
        else:
            raise CommandError(_unknown(self._config, self._wanted))
        marker = _marker(self._config, self._client, model_id)
        self._lock = os.open(marker.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # Waits while the last one out is unloading; after that the model is gone and is loaded again.
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        try:
            self.model = self._loaded(model_id, marker)
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Let go, and unload if nobody else needs what a `run` loaded."""
        try:
            if self._lock is not None and self._is_last():
                self._unload()
        finally:
            self._release()

    def _loaded(self, model_id: str, marker: Path) -> dict[str, Any]:
        deadline = time.monotonic() + self._load_seconds
        while time.monotonic() < deadline:
            model = find_loaded(self._client, model_id, None)
            if model is None:
                if self._artifact is None:
                    raise CommandError(_unknown(self._config, self._wanted))
                body = {"model_id": model_id, "model_path": str(self._artifact.path)}
                if self._platform:
                    body["platform"] = self._platform
                try:
                    self._client.post("/v1/models/load", body, timeout_seconds=self._load_seconds)
                except CommandError as error:
                    # Another one may have been quicker between the look and the load; then its load is ours too.
                    if find_loaded(self._client, model_id, None) is None:
                        raise CommandError(f"cannot load '{self._wanted}': {error}") from error
                    continue
                model = find_loaded(self._client, model_id, None)
                if model is not None:
                    marker.write_text(json.dumps({"loaded_at": model["loaded_at"]}))
                    return model
            elif model["state"] == "failed":
                raise CommandError(f"model '{model_id}' failed to load; the server's log says why")
            elif model["state"] == "ready":
                return model
            time.sleep(POLL_SECONDS)
        raise CommandError(f"model '{model_id}' was not ready within {self._load_seconds:g} seconds")

    def _is_last(self) -> bool:
        if self._lock is None:
            return False
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def _unload(self) -> None:
        """Called with the exclusive lock held."""
        if not self.model:
            return
        marker = _marker(self._config, self._client, str(self.model["id"]))
        try:
            loaded_at = json.loads(marker.read_text())["loaded_at"]
        except (OSError, ValueError, KeyError):
            return  # no `run` has loaded it
        # An answer that Ctrl+C has just stopped still counts as running until its engine has let go.
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            model = find_loaded(self._client, str(self.model["id"]), None)
            if model is None or model["loaded_at"] != loaded_at:
                marker.unlink(missing_ok=True)
                return
            if not model["running"] and not model["queued"]:
                break
            if time.monotonic() > deadline:
                return
            time.sleep(POLL_SECONDS)
        self._client.post("/v1/models/unload", {"model_id": model["id"]}, timeout_seconds=60.0)
        marker.unlink(missing_ok=True)

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _marker(config: Config, client: ServerClient, model_id: str) -> Path:
    directory = config.data_dir / "runs"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory / f"{hashlib.sha256(f'{client.url} {model_id}'.encode()).hexdigest()[:32]}.json"


def _unknown(config: Config, wanted: str) -> str:
    names = ", ".join(default_model_id(artifact) for artifact in Catalog(config.store).entries())
    there = f"it holds: {names}" if names else "it holds no models"
    return f"there is no model '{wanted}', neither loaded nor in the store {config.store} ({there})"
