"""The command line's way to a server: its HTTP API, with errors as one line."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx

from cardcage.cli.exits import UNREACHABLE, CommandError
from cardcage.lock import read_holder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cardcage.config import Config

__all__ = ["ServerClient", "available_path", "find_url"]

CONNECT_SECONDS = 3.0
ANSWER_SECONDS = 30.0
OFFERS_SECONDS = 240.0
"""Sources may be slow; each has its own limit, and they are asked at once."""
UNIX_SCHEME = "http+unix://"


def find_url(config: Config, url: str | None = None) -> str:
    """Where the server is: as told, else where the holder of the data directory's lock says, else where the configuration says.

    `url` comes before the variable `CARDCAGE_URL`.
    """
    told = url or os.environ.get("CARDCAGE_URL")
    if told:
        return told.rstrip("/")
    holder = read_holder(config.data_dir)
    if holder is not None and holder.url:
        return holder.url
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.server.host, config.server.host)
    return f"http://[{host}]:{config.server.port}" if ":" in host else f"http://{host}:{config.server.port}"


def available_path(name: str) -> str:
    """The route of a model of the store. The name is one segment of it, whatever it holds: `..` leads to no other route.

    Raises:
        CommandError: No model can have this name.
    """
    if not name.strip() or not name.isprintable():
        raise CommandError(f"{name!a} is no model's name", code="model_not_found")
    return f"/v1/models/available/{quote(name, safe='').replace('.', '%2E')}"


class ServerClient:
    """A synchronous client of one server."""

    def __init__(self, url: str) -> None:
        """Talk to the server at `url`, as `http://127.0.0.1:9265`, or `http+unix:///path/of/socket`.

        Where the server wants a key, it is taken from the variable `CARDCAGE_API_KEY`.
        """
        self.url = url
        key = os.environ.get("CARDCAGE_API_KEY")
        unix = url.removeprefix(UNIX_SCHEME) if url.startswith(UNIX_SCHEME) else None
        self._http = httpx.Client(
            base_url="http://localhost" if unix else url,
            transport=httpx.HTTPTransport(uds=unix) if unix else None,
            timeout=httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
            headers={"Authorization": f"Bearer {key}"} if key else {},
            trust_env=False,  # a proxy of the environment cannot reach this machine's loopback
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def is_alive(self) -> bool:
        """Whether a server of ours answers; nothing is raised."""
        try:
            return self._http.get("/livez").status_code == 200
        except httpx.HTTPError:
            return False

    def readiness(self) -> dict[str, Any]:
        """`/readyz`, whether it says ready or not."""
        with self._errors():
            response = self._http.get("/readyz")
            if response.status_code not in {200, 503}:
                _raise(response)
            return _object(response)

    def states(self) -> list[dict[str, Any]]:
        """Loaded models with their instances and queues, as `/readyz` tells those who may see them.

        Raises:
            CommandError: The server wants a key for that, and this command has none that works.
        """
        body = self.readiness()
        if not body["details"]:
            raise CommandError("the server tells that only to holders of a key: set CARDCAGE_API_KEY")
        return list(body["models"])

    def models(self) -> list[dict[str, Any]]:
        """Loaded models, as `/v1/models` lists them."""
        return list(self._get("/v1/models").get("data", []))

    def loaded(self) -> list[dict[str, Any]]:
        """Models with their states, those that are still loading included, as `/readyz` tells those who may know.

        Raises:
            CommandError: This caller may not: to such, `/readyz` would tell of no models at all.
        """
        self.models()
        return list(self.readiness().get("models", []))

    def platforms(self) -> list[dict[str, Any]]:
        """Installed platforms, as `/v1/platforms` lists them."""
        return list(self._get("/v1/platforms").get("platforms", []))

    def available(self) -> list[dict[str, Any]]:
        """Models of the store, as `/v1/models/available` lists them."""
        return list(self._get("/v1/models/available").get("data", []))

    def find_available(self, name: str) -> dict[str, Any]:
        """One model of the store, by any name.

        Raises:
            CommandError: `code` is `model_not_found` where there is none, or several.
        """
        return self._get(available_path(name))

    def pulls(self) -> list[dict[str, Any]]:
        """Pulls that run or ended lately, as `/v1/models/pulls` lists them; the newest of those that run is the last."""
        return list(self._get("/v1/models/pulls").get("data", []))

    def offers(self) -> dict[str, Any]:
        """What the sources list of themselves, under `data`, and under `errors` why others do not."""
        return self._get("/v1/models/offers", timeout_seconds=OFFERS_SECONDS)

    def delete(self, path: str) -> dict[str, Any]:
        """Delete what a path stands for.

        Raises:
            CommandError: Refused, failed, or nobody answers.
        """
        with self._errors():
            response = self._http.delete(path)
            if response.is_error:
                _raise(response)
            return _object(response)

    def post(self, path: str, body: Mapping[str, Any], *, timeout_seconds: float = ANSWER_SECONDS) -> dict[str, Any]:
        """Post a JSON body and return the JSON answer.

        Raises:
            CommandError: Refused, failed, or nobody answers.
        """
        with self._errors():
            timeout = httpx.Timeout(timeout_seconds, connect=CONNECT_SECONDS)
            response = self._http.post(path, json=body, timeout=timeout)
            if response.is_error:
                _raise(response)
            return _object(response)

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Post a JSON body and yield the data of each server-sent event up to `[DONE]`.

        Raises:
            CommandError: Refused, the stream's error event, a stream that breaks off, or nobody answers.
        """
        # No read time-out: a long prefill is silent, and whoever waits can press Ctrl+C.
        timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
        with self._errors(), self._http.stream("POST", path, json=body, timeout=timeout) as response:
            if response.is_error:
                response.read()
                _raise(response)
            for line in response.iter_lines():
                if not line.startswith("data:"):
                    continue
                text = line.removeprefix("data:").strip()
                if text == "[DONE]":
                    return
                event = json.loads(text)
                if "error" in event:
                    raise _refusal(event["error"])
                yield event
        raise CommandError("the answer broke off: the server ended the stream without saying that it was done")

    def _get(self, path: str, *, timeout_seconds: float = ANSWER_SECONDS) -> dict[str, Any]:
        with self._errors():
            timeout = httpx.Timeout(timeout_seconds, connect=CONNECT_SECONDS)
            response = self._http.get(path, timeout=timeout)
            if response.is_error:
                _raise(response)
            return _object(response)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except httpx.TimeoutException as error:
            raise CommandError(f"the server at {self.url} did not answer in time", exit_code=UNREACHABLE) from error
        except httpx.ConnectError as error:
            raise CommandError(
                f"no server answers at {self.url}; start one with 'cardcage serve'", exit_code=UNREACHABLE
            ) from error
        except httpx.HTTPError as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise CommandError(f"the connection to {self.url} failed: {reason}", exit_code=UNREACHABLE) from error


def _raise(response: httpx.Response) -> None:
    try:
        error = response.json()["error"]
    except (ValueError, KeyError, TypeError):
        error = f"the server answered {response.status_code} {response.reason_phrase} to {response.request.url.path}"
    raise _refusal(error)


def _refusal(error: object) -> CommandError:
    if isinstance(error, dict):
        code = error.get("code")
        return CommandError(str(error.get("message") or error), code=str(code) if code else None)
    return CommandError(str(error))


def _object(response: httpx.Response) -> dict[str, Any]:
    try:
        value = response.json()
    except ValueError as error:
        raise CommandError(f"the server's answer to {response.request.url.path} is not JSON") from error
    if not isinstance(value, dict):
        raise CommandError(f"the server's answer to {response.request.url.path} is not a JSON object")
    return value
