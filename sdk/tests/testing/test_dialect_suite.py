"""The dialect suite takes a dialect that does right, and names what is wrong with others."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from quart import Blueprint

from cardcage_sdk.dialect import Dialect, Reply
from cardcage_sdk.errors import BusyError, CardcageError, EngineError, InternalError, ModelNotFoundError, QueueFullError
from cardcage_sdk.service import Service
from cardcage_sdk.testing import DialectSuite
from cardcage_sdk.testing.empty_service import EmptyService


class Small(Dialect):
    name = "small"
    prefixes = ("/small",)
    any_origin_paths = ("/small/say",)
    route = "/small/say"

    def blueprint(self, service: Service, settings: Mapping[str, Any]) -> object:
        blueprint = Blueprint("small", __name__)

        @blueprint.get(self.route)
        async def say() -> dict[str, int]:
            return {"models": len(service.models())}

        return blueprint

    def status(self, error: CardcageError) -> int:
        if isinstance(error, (EngineError, InternalError)):
            return 500
        if isinstance(error, BusyError):
            return 503
        return 401 if error.code == "invalid_api_key" else 400

    def error_reply(self, error: CardcageError, path: str) -> Reply:
        headers = {"retry-after": "2"} if isinstance(error, BusyError) else {}
        body = json.dumps({"error": error.message, "path": path}).encode()
        return Reply(status=self.status(error), body=body, headers=headers)


class TestSmall(DialectSuite):
    dialect = Small


class ServerFault(Small):
    def status(self, error: CardcageError) -> int:
        return 500


class NoRetry(Small):
    def error_reply(self, error: CardcageError, path: str) -> Reply:
        return Reply(status=503, body=json.dumps(error.message).encode())


class Silent(Small):
    def error_reply(self, error: CardcageError, path: str) -> Reply:
        return Reply(status=400, body=b'{"error": true}')


class NotANumber(Small):
    def error_reply(self, error: CardcageError, path: str) -> Reply:
        return Reply(status=400, body=json.dumps([error.message, float("nan")]).encode())


@pytest.mark.parametrize(
    ("dialect", "error", "words"),
    [
        (ServerFault, ModelNotFoundError, "is the client's fault and has status 500"),
        (NoRetry, QueueFullError, "Retry-After is ''"),
        (Silent, ModelNotFoundError, "does not say what went wrong"),
        (NotANumber, ModelNotFoundError, "has NaN, which is no JSON"),
    ],
)
def test_an_error_reply_that_is_wrong(dialect: type[Dialect], error: type[CardcageError], words: str) -> None:
    suite = type("Suite", (DialectSuite,), {"dialect": dialect})()
    with pytest.raises((AssertionError, pytest.fail.Exception)) as caught:
        suite.test_every_error_has_a_reply(error)
    assert words in str(caught.value)


class Elsewhere(Small):
    route = "/elsewhere"


class Slash(Small):
    prefixes = ("/small/",)


@pytest.mark.parametrize(
    ("dialect", "test", "words"),
    [
        (Elsewhere, "test_blueprint_builds_and_keeps_to_its_prefixes", "route '/elsewhere' is under none of"),
        (Slash, "test_name_and_prefixes", "must not end with a slash"),
    ],
)
def test_a_shape_that_is_wrong(dialect: type[Dialect], test: str, words: str) -> None:
    suite = type("Suite", (DialectSuite,), {"dialect": dialect})()
    with pytest.raises(AssertionError) as caught:
        getattr(suite, test)()
    assert words in str(caught.value)


async def test_the_empty_service_has_nothing() -> None:
    service = EmptyService()
    assert list(service.models()) == []
    with pytest.raises(ModelNotFoundError):
        service.model("x")
    with pytest.raises(ModelNotFoundError):
        await service.ensure_loaded("x")
    assert list(service.library.stored()) == []
