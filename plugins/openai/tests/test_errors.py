"""The error table: complete, as the page has it, and kind to clients that retry."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cardcage_dialect_openai.errors import ERROR_TABLE, error_reply, row_of
from cardcage_dialect_openai.plugin import OpenAIDialect
from cardcage_sdk import errors
from cardcage_sdk.dialect import Scope

CLASSES = errors.error_classes()


def sample(cls: type[errors.CardcageError]) -> errors.CardcageError:
    """An error of the class, by the way that does not need its constructor's arguments."""
    fields: dict[str, Any] = {name: 2.5 if name.endswith("_seconds") else None for name in cls.FIELDS}
    error = errors.from_wire({"class": cls.__name__, "message": "what happened", "param": "p", "fields": fields})
    assert type(error) is cls
    return error


def test_the_table_is_complete_and_holds_nothing_else() -> None:
    assert set(ERROR_TABLE) == set(CLASSES)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_has_the_form(cls: type[errors.CardcageError]) -> None:
    reply = OpenAIDialect().error_reply(sample(cls), "/v1/x")
    assert 400 <= reply.status < 600
    assert reply.content_type == "application/json"
    body = json.loads(reply.body)
    assert set(body) == {"error"}
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["message"], error["param"]) == ("what happened", "p")
    assert error["type"] in {"invalid_request_error", "rate_limit_exceeded", "server_error"}
    assert error["code"] == (None if reply.status == 500 else cls.code)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_fault_of_the_client_is_never_a_5xx_and_one_of_ours_never_a_4xx(cls: type[errors.CardcageError]) -> None:
    status = error_reply(sample(cls)).status
    if issubclass(cls, errors.RequestError):
        assert status < 500
    if issubclass(cls, errors.EngineError | errors.InternalError | errors.PluginError | errors.ConfigError):
        assert status >= 500


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_clients_are_told_whether_to_repeat(cls: type[errors.CardcageError]) -> None:
    reply = error_reply(sample(cls))
    if issubclass(cls, errors.BusyError | errors.SourceUnavailableError):
        assert reply.headers["retry-after"] == "3"
        assert "x-should-retry" not in reply.headers
    if issubclass(cls, errors.RequestError) and cls is not errors.RequestTimeoutError:
        would_retry = reply.status in {408, 409, 429} or reply.status >= 500
        assert not would_retry or reply.headers["x-should-retry"] == "false"


PAGE: list[tuple[errors.CardcageError, int, str, str | None]] = [
    (errors.UnsupportedPlatformError("x", reason="r"), 400, "invalid_request_error", "unsupported_platform"),
    (errors.PlatformDetectionError("/x"), 400, "invalid_request_error", "platform_detection_failed"),
    (errors.WrongModelTypeError("m", task="chat", kind="embedding"), 400, "invalid_request_error", "wrong_model_type"),
    (errors.UnsupportedContentPartError("video"), 400, "invalid_request_error", "unsupported_content_part_type"),
    (errors.InvalidContentPartError("x"), 400, "invalid_request_error", "invalid_content_part"),
    (
        errors.ContextLengthExceededError(prompt_tokens=9, context_tokens=8),
        400,
        "invalid_request_error",
        "context_length_exceeded",
    ),
    (errors.InvalidInstanceCountError(0), 400, "invalid_request_error", "invalid_instance_count"),
    (errors.ModelNotFoundError("demo"), 404, "invalid_request_error", "model_not_found"),
    (errors.ModelAlreadyExistsError("m"), 409, "invalid_request_error", "model_already_exists"),
    (errors.QueueFullError("m", places=48), 429, "rate_limit_exceeded", "queue_full"),
    (errors.InternalError(), 500, "server_error", None),
    (errors.EngineCrashedError("m", signal="SIGSEGV"), 500, "server_error", None),
    (errors.LoadFailedError("x"), 500, "server_error", None),
]


@pytest.mark.parametrize(("error", "status", "kind", "code"), PAGE, ids=lambda value: type(value).__name__)
def test_rows_of_the_page(error: errors.CardcageError, status: int, kind: str, code: str | None) -> None:
    reply = error_reply(error)
    body = json.loads(reply.body)["error"]
    assert (reply.status, body["type"], body["code"]) == (status, kind, code)


def test_the_example_of_the_page() -> None:
    assert json.loads(error_reply(errors.ModelNotFoundError("demo")).body) == {
        "error": {
            "message": "Model 'demo' not found",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
    }


def test_headers_of_their_own() -> None:
    assert error_reply(errors.MethodNotAllowedError("PUT", "/v1/models", allowed=("GET", "HEAD"))).headers == {
        "allow": "GET, HEAD"
    }
    assert error_reply(errors.AuthenticationError()).headers == {"www-authenticate": "Bearer"}
    assert error_reply(errors.QueueFullError("m", places=1, retry_after_seconds=0)).headers == {"retry-after": "1"}


def test_a_class_from_elsewhere_has_its_base_row() -> None:
    class TooManyLamps(errors.QueueFullError):
        """Made by a third party."""

    assert row_of(TooManyLamps("m", places=1)) is ERROR_TABLE[errors.QueueFullError]
    assert ERROR_TABLE.get(TooManyLamps) is None


def test_text_that_utf8_cannot_hold_is_no_reason_to_fail() -> None:
    assert json.loads(error_reply(errors.InvalidRequestError("what\ud800")).body)["error"]["message"] == "what\ud800"


def test_scopes_and_open_paths() -> None:
    dialect = OpenAIDialect()
    assert dialect.open_paths == ("/health",)
    for path in ("/v1/models/load", "/v1/models/resize", "/v1/models/unload"):
        assert dialect.required_scope("POST", path) is Scope.MODELS_MANAGE
    assert dialect.required_scope("GET", "/v1/models") is Scope.MODELS_READ
    assert dialect.required_scope("POST", "/v1/chat/completions") is Scope.INFERENCE
