"""Small answers of a hub: JSON and text, bounded in time and size, with every failure as an error of the tree."""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Mapping
from typing import Any

import certifi
import httpx

from cardcage_sdk.errors import ConfigError, ModelNotFoundError, SourceRefusedError, SourceUnavailableError

__all__ = ["CONNECT_SECONDS", "REQUEST_SECONDS", "endpoint_of", "fetch_json", "fetch_text", "read_settings"]

CONNECT_SECONDS = 3.0
REQUEST_SECONDS = 6.0
MAX_ANSWER_BYTES = 16 << 20

USER_AGENT = "cardcage"


async def fetch_json(
    url: str,
    *,
    source: str,
    model: str,
    headers: Mapping[str, str] | None = None,
    params: Mapping[str, str] | None = None,
) -> Any:
    """Ask for JSON.

    Raises:
        ModelNotFoundError: 404 and its kin.
        SourceRefusedError: 401, 403.
        SourceUnavailableError: No answer, 429, 5xx, or what came is no JSON.
    """
    text = await fetch_text(url, source=source, model=model, headers=headers, params=params)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SourceUnavailableError(source, reason="the answer is no JSON") from error


async def fetch_text(
    url: str,
    *,
    source: str,
    model: str,
    headers: Mapping[str, str] | None = None,
    params: Mapping[str, str] | None = None,
    limit_bytes: int = MAX_ANSWER_BYTES,
) -> str:
    """Ask for text of at most `limit_bytes`; errors as `fetch_json`."""
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    timeout = httpx.Timeout(REQUEST_SECONDS, connect=CONNECT_SECONDS)
    body = bytearray()
    try:
        async with (
            httpx.AsyncClient(verify=context, timeout=timeout, follow_redirects=True, max_redirects=5) as client,
            client.stream("GET", url, headers={"user-agent": USER_AGENT, **(headers or {})}, params=params) as response,
        ):
            _check_status(response, source=source, model=model)
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > limit_bytes:
                    raise SourceUnavailableError(source, reason=f"the answer is larger than {limit_bytes} bytes")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise SourceUnavailableError(source, reason=str(error) or type(error).__name__) from error
    return body.decode("utf-8", "replace")


def _check_status(response: httpx.Response, *, source: str, model: str) -> None:
    status = response.status_code
    if status < 300:
        return
    if status == 429 or status >= 500:
        after = response.headers.get("retry-after", "")
        raise SourceUnavailableError(
            source,
            reason=f"it answered with status {status}",
            retry_after_seconds=float(after) if after.isdecimal() else None,
        )
    if status in {401, 403}:
        raise SourceRefusedError(source, reason=f"'{model}' was answered with status {status}; it may need a token")
    raise ModelNotFoundError(model, message=f"Source '{source}' has no '{model}'")


def read_settings(source: str, settings: Mapping[str, Any], known: Mapping[str, type]) -> dict[str, Any]:
    """Check a table `[sources.<name>]`.

    Raises:
        ConfigError: An unknown key, or a value of another type.
    """
    for key, value in settings.items():
        if key not in known:
            raise ConfigError(f"[sources.{source}] unknown key '{key}'; known are: {', '.join(known)}")
        wanted = known[key]
        if not isinstance(value, wanted) or (
            isinstance(value, list) and not all(isinstance(item, str) for item in value)
        ):
            name = "a list of texts" if wanted is list else "a text"
            raise ConfigError(f"[sources.{source}] {key}: must be {name} (got {value!r})")
    return dict(settings)


def endpoint_of(setting: object, variable: str, default: str) -> str:
    """A hub's address: the configuration's, else the environment's, else its own."""
    return str(setting or os.environ.get(variable) or default).rstrip("/")
