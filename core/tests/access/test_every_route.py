"""One policy over every route: walk the routes of every installed dialect and knock at each of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from cardcage.app import create_app
from cardcage.config import load_config
from cardcage.http.ownership import PathOwners
from cardcage.plugins import PluginRegistry
from cardcage_sdk.dialect import Scope
from cardcage_sdk.errors import AuthenticationError

CORE_SCOPES = {"/metrics": Scope.MODELS_READ}
CORE_OPEN = {"/livez", "/readyz"}
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


@dataclass(frozen=True)
class Door:
    """A route and a method of it, with a path that leads there."""

    rule: str
    path: str
    method: str
    is_websocket: bool


@dataclass
class House:
    """A running server with keys, and what its application says of its routes."""

    doors: list[Door]
    owners: PathOwners
    client: httpx.Client
    keys: dict[Scope, str]

    def knock(self, door: Door, key: str | None = None, **headers: str) -> httpx.Response:
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        if door.is_websocket:
            headers |= UPGRADE
        with self.client.stream(door.method, door.path, headers=headers) as response:
            if response.status_code != 101:
                response.read()
            return response

    def needed(self, door: Door) -> Scope | None:
        owner = self.owners.owner(door.path)
        if owner is None:
            return CORE_SCOPES.get(door.path)
        return owner.required_scope("GET" if door.is_websocket else door.method, door.path)

    def is_open(self, door: Door) -> bool:
        owner = self.owners.owner(door.path)
        return door.path in (CORE_OPEN if owner is None else owner.open_paths)


@pytest.fixture(scope="module")
def house(shared_start) -> Iterator[House]:
    server = shared_start()
    config = load_config(file=server.config_file, environ={})
    registry = PluginRegistry.discover(config)
    app = create_app(config, registry)
    doors = []
    adapter = app.url_map.bind("localhost")
    for rule in app.url_map.iter_rules():
        samples: dict[str, Any] = {
            name: 7 if type(converter).__name__ == "IntegerConverter" else "x"
            for name, converter in rule._converters.items()
        }
        # A WebSocket's comes as a whole URL.
        path = urlsplit(adapter.build(rule.endpoint, samples)).path
        methods = ["GET"] if rule.websocket else sorted(rule.methods or ())
        doors += [Door(rule=rule.rule, path=path, method=one, is_websocket=bool(rule.websocket)) for one in methods]
    keys = {scope: server.make_key(scope.name.lower(), "--scope", scope.value) for scope in Scope}
    with server.client() as client:
        yield House(
            doors=doors,
            owners=PathOwners(plugin.dialect for plugin in registry.dialects.values()),
            client=client,
            keys=keys,
        )


def test_the_walk_sees_every_dialect(house: House) -> None:
    owners = {owner.name if owner else "core" for owner in (house.owners.owner(door.path) for door in house.doors)}
    assert owners >= {"core", "openai", "probe", "deep"}
    assert sum(door.is_websocket for door in house.doors) == 2
    assert {"/v1/chat/completions", "/v1/models", "/metrics"} <= {door.path for door in house.doors}


def test_without_a_key_only_open_routes_answer(house: House) -> None:
    for door in house.doors:
        response = house.knock(door)
        if house.is_open(door):
            assert response.status_code not in {401, 403}, door
            continue
        assert response.status_code == 401, door
        assert response.headers["www-authenticate"].startswith("Bearer"), door
        expected = house.owners.error_reply(AuthenticationError("An API key is required"), door.path)
        if door.method != "HEAD":
            assert response.content == expected.body, door


def test_a_wrong_key_opens_nothing(house: House) -> None:
    wrong = house.keys[Scope.INFERENCE][:-4] + "AAAA"
    for door in house.doors:
        if not house.is_open(door):
            assert house.knock(door, wrong).status_code == 401, door


def test_a_key_without_the_scope_is_refused_and_one_with_it_passes(house: House) -> None:
    checked = 0
    for door in house.doors:
        if house.is_open(door) or door.path.endswith("/broken"):
            continue
        needed = house.needed(door)
        if needed is None:
            continue
        for scope, key in house.keys.items():
            status = house.knock(door, key).status_code
            assert (status == 403) == (scope is not needed), (door, scope, status)
            assert status != 401, (door, scope)
            checked += 1
    assert checked > 100


def test_a_dialect_that_cannot_name_the_scope_admits_nobody(house: House) -> None:
    for path in ("/probe/broken", "/probe/deep/broken"):
        door = Door(rule=path, path=path, method="GET", is_websocket=False)
        statuses = [house.knock(door, key).status_code for key in house.keys.values()]
        assert statuses == [500, 500, 500, 500, 500] if path == "/probe/broken" else statuses.count(200) == 1


def test_unknown_paths_are_guarded_like_known_ones(house: House) -> None:
    for path, form in (
        ("/v1/nothing", "invalid_api_key"),
        ("/probe/nothing", "probe"),
        ("/probe/deep/nothing", "deep"),
        ("/nothing", "invalid_api_key"),
        ("/", "invalid_api_key"),
        ("/probe/deep/stolen", "deep"),
    ):
        for method in ("GET", "POST", "DELETE", "PATCH", "TRACE"):
            door = Door(rule=path, path=path, method=method, is_websocket=False)
            response = house.knock(door)
            assert response.status_code == 401, door
            assert form in response.text, door
    with_key = house.knock(
        Door(rule="", path="/nothing", method="GET", is_websocket=False), house.keys[Scope.INFERENCE]
    )
    assert with_key.status_code == 404


def test_no_dialect_opens_anothers_path(house: House) -> None:
    """The probe dialect lists `/v1/models` and a path below the deep one's prefix as open; neither is its own."""
    for path in ("/v1/models", "/probe/deep/stolen"):
        assert house.knock(Door(rule=path, path=path, method="GET", is_websocket=False)).status_code == 401


def test_forms_are_those_of_the_longest_prefix(house: House) -> None:
    for path, form in (("/probe/own", "probe"), ("/probe/deep/own", "deep"), ("/probe/deeper", "probe")):
        response = house.knock(Door(rule=path, path=path, method="GET", is_websocket=False))
        assert json.loads(response.content)["form"] == form
