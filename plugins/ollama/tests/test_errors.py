"""The error table: complete, and in the texts that clients match."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cardcage_dialect_ollama.errors import BUSY_TEXT, ERROR_TABLE, error_reply, status_of
from cardcage_dialect_ollama.plugin import OllamaDialect
from cardcage_dialect_ollama.settings import read_settings
from cardcage_sdk import errors
from cardcage_sdk.dialect import Scope

CLASSES = errors.error_classes()


def sample(cls: type[errors.CardcageError]) -> errors.CardcageError:
    """An error of the class, by the way that does not need its constructor's arguments."""
    fields: dict[str, Any] = {name: 2.5 if name.endswith("_seconds") else None for name in cls.FIELDS}
    return errors.from_wire({"class": cls.__name__, "message": "what happened", "param": "p", "fields": fields})


def test_the_table_is_complete_and_holds_nothing_else() -> None:
    assert set(ERROR_TABLE) == set(CLASSES)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_has_the_form(cls: type[errors.CardcageError]) -> None:
    reply = OllamaDialect().error_reply(sample(cls), "/api/x")
    assert 400 <= reply.status < 600
    if reply.content_type == "text/plain":
        assert cls in {errors.RouteNotFoundError, errors.MethodNotAllowedError}
        return
    assert reply.content_type == "application/json; charset=utf-8"
    body = json.loads(reply.body)
    assert list(body) == ["error"]
    assert "what happened" in body["error"] or cls is errors.QueueFullError


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_fault_of_the_client_is_never_a_5xx_and_one_of_ours_never_a_4xx(cls: type[errors.CardcageError]) -> None:
    status = error_reply(sample(cls)).status
    if issubclass(cls, errors.RequestError):
        assert status < 500
    if issubclass(cls, errors.EngineError | errors.InternalError | errors.PluginError | errors.ConfigError):
        assert status >= 500


TEXTS: list[tuple[errors.CardcageError, int, str]] = [
    (errors.ModelNotFoundError("llama3"), 404, "model 'llama3' not found"),
    (
        errors.ModelNotFoundError("a", message='model "a" not found, try pulling it first'),
        404,
        'model "a" not found, try pulling it first',
    ),
    (
        errors.ModelNotFoundError("a", message="'a' is the name of several models"),
        404,
        "model 'a' not found: 'a' is the name of several models",
    ),
    (errors.QueueFullError("m", places=1), 503, BUSY_TEXT),
    (errors.QueueFullError("m", places=1), 503, "server busy, please try again.  maximum pending requests exceeded"),
    (errors.InvalidRequestError("invalid model name"), 400, "invalid model name"),
    (errors.DrainingError(), 503, "The server is shutting down and takes no new requests"),
]


@pytest.mark.parametrize(("error", "status", "text"), TEXTS)
def test_texts(error: errors.CardcageError, status: int, text: str) -> None:
    reply = error_reply(error)
    assert (reply.status, json.loads(reply.body)["error"]) == (status, text)


def test_plain_texts_and_headers() -> None:
    unknown = error_reply(errors.RouteNotFoundError("/x"))
    assert (unknown.status, unknown.body, unknown.content_type) == (404, b"404 page not found", "text/plain")
    wrong = error_reply(errors.MethodNotAllowedError("PUT", "/api/tags", allowed=("GET", "HEAD")))
    assert (wrong.status, wrong.body, wrong.headers) == (405, b"405 method not allowed", {"allow": "GET, HEAD"})
    assert error_reply(errors.AuthenticationError()).headers == {"www-authenticate": "Bearer"}
    assert error_reply(errors.QueueFullError("m", places=1, retry_after_seconds=0)).headers == {"retry-after": "1"}


def test_a_class_from_elsewhere_has_its_base_row() -> None:
    class TooManyLamps(errors.QueueFullError):
        """Made by a third party."""

    assert status_of(TooManyLamps("m", places=1)) == 503


def test_scopes_and_open_paths() -> None:
    dialect = OllamaDialect()
    assert dialect.open_paths == ("/", "/api/version")
    for path in ("/api/chat", "/api/generate", "/api/embed", "/api/embeddings"):
        assert dialect.required_scope("POST", path) is Scope.INFERENCE
    for method, path in (("GET", "/api/tags"), ("GET", "/api/ps"), ("POST", "/api/show"), ("HEAD", "/api/blobs/x")):
        assert dialect.required_scope(method, path) is Scope.MODELS_READ
    for method, path in (
        ("POST", "/api/pull"),
        ("POST", "/api/create"),
        ("POST", "/api/copy"),
        ("DELETE", "/api/delete"),
        ("POST", "/api/blobs/x"),
        ("POST", "/api/unknown"),
    ):
        assert dialect.required_scope(method, path) is Scope.MODELS_MANAGE


@pytest.mark.parametrize("table", [{"num_ctx": "sometimes"}, {"version": "new"}, {"colour": "red"}])
def test_wrong_settings_are_refused(table: dict[str, Any]) -> None:
    with pytest.raises(errors.ConfigError, match=r"\[dialects.ollama\]"):
        read_settings(table)
