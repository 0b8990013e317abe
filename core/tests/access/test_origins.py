from __future__ import annotations

import pytest

from cardcage.access.origins import HostRules, OriginPatterns, is_own_origin

RULES = HostRules(("chat.example", "Board.LAN."), machine_name="rock5")


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://localhost", "127.0.0.1:9265"),
        ("http://localhost:3000", "192.168.1.5:9265"),
        ("https://app.localhost:8443", "127.0.0.1:9265"),
        ("http://127.0.0.1:5173", "localhost:9265"),
        ("http://127.8.9.1", "localhost:9265"),
        ("http://[::1]:5173", "localhost:9265"),
        ("http://LOCALHOST:3000/", "localhost:9265"),
        ("http://192.168.1.5:9265", "192.168.1.5:9265"),
        ("http://192.168.1.5", "192.168.1.5:80"),
        ("https://chat.example", "chat.example:443"),
        ("http://[fe80::1]:9265", "[fe80::1]:9265"),
        ("http://rock5:9265", "rock5:9265"),
        ("http://rock5.local:9265", "Rock5.local:9265"),
        ("http://board.lan:9265", "board.lan:9265"),
    ],
)
def test_own_origins(origin: str, host: str) -> None:
    assert is_own_origin(origin, host, RULES)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("null", "localhost:9265"),
        ("", "localhost:9265"),
        ("http://evil.example", "127.0.0.1:9265"),
        # Rebinding: the page and the server have one name, but it is the page's.
        ("http://evil.example:9265", "evil.example:9265"),
        ("http://localhost.evil.example", "localhost:9265"),
        ("http://evil-localhost", "localhost:9265"),
        ("http://127.0.0.1.evil.example", "127.0.0.1:9265"),
        ("http://192.168.1.5:80", "192.168.1.5:9265"),
        ("https://192.168.1.5:9265x", "192.168.1.5:9265"),
        ("file://", "localhost:9265"),
        ("vscode-webview://abc", "localhost:9265"),
        ("http://user@localhost.evil.example", "localhost:9265"),
        ("http://[::1", "localhost:9265"),
        ("http://", "localhost:9265"),
        ("localhost", "localhost:9265"),
        ("http://chat.example.evil", "chat.example"),
    ],
)
def test_foreign_origins(origin: str, host: str) -> None:
    assert not is_own_origin(origin, host, RULES)


@pytest.mark.parametrize(
    ("pattern", "origin", "expected"),
    [
        ("https://chat.example", "https://chat.example", True),
        ("https://chat.example/", "https://CHAT.example", True),
        ("https://chat.example", "http://chat.example", False),
        ("https://chat.example", "https://chat.example:8443", False),
        ("https://chat.example", "https://chat_example", False),
        ("https://*.example", "https://a.b.example", True),
        ("https://*.example", "https://example", False),
        ("https://*.example", "https://evil.net/.example", False),
        ("https://*.example", "https://x.example.evil", False),
        ("http://localhost:*", "http://localhost:5173", True),
        ("vscode-webview://*", "vscode-webview://0a1b", True),
        ("vscode-webview://*", "https://vscode-webview", False),
        ("null", "null", True),
        ("https://chat.example", "null", False),
        ("*", "https://anything.example", True),
        ("*", "null", True),
    ],
)
def test_patterns(pattern: str, origin: str, expected: bool) -> None:
    assert OriginPatterns([pattern]).allows(origin) is expected


@pytest.mark.parametrize(
    ("host", "local", "wide", "wide_with_names"),
    [
        ("", True, True, True),
        ("localhost:9265", True, True, True),
        ("127.0.0.1", True, True, True),
        ("[::1]:9265", True, True, True),
        ("localhost.:9265", True, True, True),
        ("chat.example:9265", True, None, True),
        ("CHAT.example.", True, None, True),
        ("evil.example:9265", False, True, False),
        ("localhost.evil.example", False, True, False),
        ("192.168.1.5:9265", False, True, True),
        ("[fe80::1]", False, True, True),
        ("evil.example:port", False, False, False),
        ("[::1", False, False, False),
        ("@", False, False, False),
    ],
)
def test_hosts(host: str, local: bool, wide: bool | None, wide_with_names: bool) -> None:
    named = HostRules(("chat.example",), machine_name="rock5")
    assert named.allows(host, is_local_bind=True) is local
    assert named.allows(host, is_local_bind=False) is wide_with_names
    if wide is not None:
        assert HostRules((), machine_name="rock5").allows(host, is_local_bind=False) is wide
