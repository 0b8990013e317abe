"""Which web pages and host names may call: pure rules on the text of `Origin` and `Host`."""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from cardcage.config import is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["HostRules", "OriginPatterns", "is_own_origin"]

DEFAULT_PORTS = {"http": 80, "https": 443}


class OriginPatterns:
    """Origins as the configuration writes them: whole ones, and ones with `*` for any text.

    `https://*.example.org` is every subdomain, `vscode-webview://*` a scheme, `*` everything. `null`, which any page can
    have itself sent as, is matched only where it is written, or by `*`.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        cleaned = [pattern.rstrip("/").lower() for pattern in patterns]
        self.allows_any = "*" in cleaned
        self._patterns = [re.compile(r"[^/]*".join(map(re.escape, pattern.split("*")))) for pattern in cleaned]

    def allows(self, origin: str) -> bool:
        """Whether one of the patterns is this origin."""
        text = origin.rstrip("/").lower()
        return self.allows_any or any(pattern.fullmatch(text) for pattern in self._patterns)


class HostRules:
    """By which names the server may be called.

    A web page whose own name is made to lead to this machine (DNS rebinding) is same-origin with the server as far as the
    browser knows. Its `Host` still is the page's name, which is how it is told.
    """

    def __init__(self, allowed_hosts: Iterable[str], *, machine_name: str | None = None) -> None:
        """Take the configured names.

        Args:
            allowed_hosts: `[security] allowed_hosts`, without ports.
            machine_name: This machine's own; None asks the operating system.
        """
        self._hosts = frozenset(host.strip("[]").rstrip(".").lower() for host in allowed_hosts)
        name = (socket.gethostname() if machine_name is None else machine_name).lower()
        self._machine = frozenset({name, f"{name}.local"} if name else ())

    def allows(self, host: str, *, is_local_bind: bool) -> bool:
        """Whether a request with this `Host` may pass.

        On a loopback bind loopback names pass and configured ones. On a wider one every name does, unless some are
        configured: then those, addresses and loopback names.
        """
        if not host:
            return True  # HTTP/1.0 may leave it out, a browser never does
        name = _hostname(f"//{host}")
        if name is None:
            return False
        if is_loopback(name) or name in self._hosts:
            return True
        if is_local_bind:
            return False
        return not self._hosts or _is_address(name)

    def is_certain(self, host: str) -> bool:
        """Whether this name surely means this machine: no page elsewhere can have it as its own."""
        name = _hostname(f"//{host}")
        if name is None:
            return False
        return is_loopback(name) or _is_address(name) or name in self._hosts or name in self._machine


def is_own_origin(origin: str, host: str, rules: HostRules) -> bool:
    """Whether a page is of this machine: a loopback origin, or the very host that was called, where that is certain."""
    parts = _split(origin.rstrip("/"))
    if parts is None or parts.scheme not in DEFAULT_PORTS:
        return False
    name = _hostname(origin)
    if name is None:
        return False
    if is_loopback(name):
        return True
    called = _split(f"{parts.scheme}://{host}")
    return called is not None and _authority(parts) == _authority(called) and rules.is_certain(host)


def _authority(parts: SplitResult) -> tuple[str | None, int | None] | None:
    try:
        return parts.hostname, parts.port or DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        return None


def _split(url: str) -> SplitResult | None:
    try:
        return urlsplit(url)
    except ValueError:
        return None


def _hostname(url: str) -> str | None:
    """The host of a URL, lower case, without port and final dot; None where it is malformed."""
    parts = _split(url)
    if parts is None or not parts.hostname or _authority(parts) is None:
        return None
    return parts.hostname.rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True
