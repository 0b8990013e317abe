from __future__ import annotations

from pathlib import Path

import pytest

from cardcage.access.listeners import Listener, ListenerTable, exposed
from cardcage.config import Config, ListenEntry, ServerConfig


def listener(address: str | None, port: int | None, **entry: object) -> Listener:
    written = {"unix": Path("/run/x")} if address is None else {"address": address, "port": port}
    return Listener(entry=ListenEntry.model_validate({**written, **entry}), address=address, port=port)


LOOPBACK = listener("127.0.0.1", 9265)
LOOPBACK6 = listener("::1", 9265)
LAN = listener("192.168.1.5", 9265)
WIDE = listener("0.0.0.0", 9266)
WIDE6 = listener("::", 9267)
UNIX = listener(None, None)
TABLE = ListenerTable([LOOPBACK, LOOPBACK6, LAN, WIDE, WIDE6, UNIX])


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        (("127.0.0.1", 9265), LOOPBACK),
        (("::1", 9265), LOOPBACK6),
        (("::ffff:127.0.0.1", 9265), LOOPBACK),
        (("192.168.1.5", 9265), LAN),
        (("192.168.1.6", 9265), None),
        (("192.168.1.5", 9266), WIDE),
        (("127.0.0.1", 9266), WIDE),
        (("::1", 9266), None),
        (("fe80::1%eth0", 9267), WIDE6),
        (("10.0.0.1", 9267), WIDE6),
        (("::ffff:10.0.0.1", 9267), WIDE6),
        (("127.0.0.1", 9999), None),
        (None, UNIX),
        (("/run/x", None), UNIX),
    ],
)
def test_the_local_end_of_a_connection_names_its_socket(server, expected) -> None:
    assert TABLE.find(server) is expected


def test_the_exact_address_wins_over_the_ports_wildcard() -> None:
    wide = listener("0.0.0.0", 9265)
    table = ListenerTable([wide, LOOPBACK])
    assert table.find(("127.0.0.1", 9265)) is LOOPBACK
    assert table.find(("10.0.0.1", 9265)) is wide


def test_a_table_of_the_configuration_as_written(tmp_path: Path) -> None:
    config = Config(
        store=tmp_path,
        data_dir=tmp_path,
        listen=(
            ListenEntry(address="localhost", port=1),
            ListenEntry(address="0.0.0.0", port=2),
            ListenEntry(address="some.host.example", port=3),
        ),
    )
    table = ListenerTable.of(config)
    assert [
        table.find((address, port)) is not None for address, port in (("127.0.0.1", 1), ("::1", 1), ("10.0.0.1", 2))
    ]
    assert table.find(("10.0.0.1", 1)) is None
    assert table.find(("10.0.0.1", 3)) is None


def test_which_sockets_let_everybody_in() -> None:
    closed = listener("192.168.1.7", 1, require_keys=True)
    opened = listener("192.168.1.7", 2, require_keys=False)
    everything = [LOOPBACK, LOOPBACK6, UNIX, LAN, closed, opened]
    assert exposed(everything, require_keys=False) == [LAN, opened]
    assert exposed(everything, require_keys=True) == [opened]


def test_without_listen_there_is_one_socket_of_the_server_table(tmp_path: Path) -> None:
    config = Config(store=tmp_path, data_dir=tmp_path)
    assert [entry.label for entry in config.listeners] == ["127.0.0.1:9265"]
    assert config.is_local_only
    assert config.allowed_roots is None
    wide = Config(store=tmp_path, data_dir=tmp_path, server=ServerConfig(host="::", port=1))
    assert [entry.label for entry in wide.listeners] == ["[::]:1"]
    assert not wide.is_local_only


def test_one_wide_socket_binds_file_paths_of_all_to_the_roots(tmp_path: Path) -> None:
    store, outside = tmp_path / "store", tmp_path / "outside"
    listen = (ListenEntry(), ListenEntry(unix=Path("/run/x")))
    assert Config(store=store, data_dir=tmp_path, listen=listen).allows_path(outside)
    config = Config(store=store, data_dir=tmp_path, listen=(*listen, ListenEntry(address="0.0.0.0", port=1)))
    assert not config.allows_path(outside)
    assert config.allows_path(store / "model")
    assert not config.allows_path(store / ".." / "outside")
    store.mkdir()
    (store / "link").symlink_to(outside)
    assert not config.allows_path(store / "link")
