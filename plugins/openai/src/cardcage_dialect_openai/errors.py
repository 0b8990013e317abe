"""Every error of the tree in the form of this API: one table, proved complete by a test.

The form is always `{"error": {"message", "type", "param", "code"}}`. Types are the page's three. A 500 has the code null, as
on the page; its message says what happened, the server's log says more. OpenAI's clients repeat 408, 409, 429 and every 5xx
twice unless told not to, so what fails again in the same way says `x-should-retry: false`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypedDict

from cardcage_sdk import errors
from cardcage_sdk.dialect import Reply
from cardcage_sdk.stream.jsontext import encode_json

__all__ = ["ERROR_TABLE", "ErrorBody", "ErrorObject", "Row", "encode_error", "error_reply", "row_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """How one class of error is answered.

    Attributes:
        has_code: The error's own code is shown; otherwise `code` is null.
        is_final: The same request would fail again, so clients are told not to repeat it.
    """

    status: int
    type: Literal["invalid_request_error", "rate_limit_exceeded", "server_error"]
    has_code: bool = True
    is_final: bool = False


class ErrorObject(TypedDict):
    """What clients read of an error."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(TypedDict):
    """The body of every answer that is no success, and the data of an error event."""

    error: ErrorObject


_BAD_REQUEST = Row(status=400, type="invalid_request_error")
_CONFLICT = Row(status=409, type="invalid_request_error", is_final=True)
_FORBIDDEN = Row(status=403, type="invalid_request_error")
_NOT_FOUND = Row(status=404, type="invalid_request_error")
_UNAVAILABLE = Row(status=503, type="server_error")
_FAILED = Row(status=500, type="server_error", has_code=False)
_FAILED_FOR_GOOD = Row(status=500, type="server_error", has_code=False, is_final=True)

ERROR_TABLE: Mapping[type[errors.CardcageError], Row] = {
    errors.CardcageError: _FAILED,
    # The client's fault.
    errors.RequestError: _BAD_REQUEST,
    errors.InvalidRequestError: _BAD_REQUEST,
    errors.InvalidSchemaError: _BAD_REQUEST,
    errors.InvalidContentPartError: _BAD_REQUEST,
    errors.InvalidInstanceCountError: _BAD_REQUEST,
    errors.InvalidOptionError: _BAD_REQUEST,
    errors.UnsupportedError: _BAD_REQUEST,
    errors.UnsupportedContentPartError: _BAD_REQUEST,
    errors.ContextLengthExceededError: _BAD_REQUEST,
    errors.WrongModelTypeError: _BAD_REQUEST,
    errors.ModelNotFoundError: _NOT_FOUND,
    errors.ModelAlreadyExistsError: _CONFLICT,
    errors.ModelInUseError: _CONFLICT,
    errors.AuthenticationError: Row(status=401, type="invalid_request_error"),
    errors.ForbiddenError: _FORBIDDEN,
    errors.OriginNotAllowedError: _FORBIDDEN,
    errors.PathNotAllowedError: _FORBIDDEN,
    errors.RouteNotFoundError: _NOT_FOUND,
    errors.MethodNotAllowedError: Row(status=405, type="invalid_request_error"),
    errors.PayloadTooLargeError: Row(status=413, type="invalid_request_error"),
    # A slow network may be faster the next time, so clients may repeat this one.
    errors.RequestTimeoutError: Row(status=408, type="invalid_request_error"),
    # Loading. What is wrong with the files that the client named is the client's fault; the rest is a failure.
    errors.ModelError: _BAD_REQUEST,
    errors.UnsupportedPlatformError: _BAD_REQUEST,
    errors.PlatformDetectionError: _BAD_REQUEST,
    errors.UnsupportedModelError: _BAD_REQUEST,
    errors.InvalidModelError: _BAD_REQUEST,
    errors.OutOfMemoryError: _FAILED_FOR_GOOD,
    errors.LoadFailedError: _FAILED_FOR_GOOD,
    # Fetching. The source's own faults are not this server's: they are a gateway's.
    errors.SourceError: Row(status=502, type="server_error"),
    errors.SourceUnavailableError: Row(status=503, type="server_error"),
    errors.SourceRefusedError: _FORBIDDEN,
    errors.NoFittingVariantError: _CONFLICT,
    errors.VariantRequiredError: _CONFLICT,
    errors.CorruptDownloadError: Row(status=502, type="server_error", is_final=True),
    errors.StorageFullError: Row(status=507, type="server_error", is_final=True),
    errors.PullCancelledError: _CONFLICT,
    # Busy: each has a Retry-After.
    errors.BusyError: _UNAVAILABLE,
    errors.QueueFullError: Row(status=429, type="rate_limit_exceeded"),
    errors.QueueTimeoutError: _UNAVAILABLE,
    errors.ModelLoadingError: _UNAVAILABLE,
    errors.LoadTimeoutError: _UNAVAILABLE,
    errors.DrainingError: _UNAVAILABLE,
    # The engine. A crashed or hung worker is replaced, so a repeat may succeed; a request that the engine itself
    # reported as failed, or an answer that broke the contract, comes out the same again.
    errors.EngineError: _FAILED,
    errors.EngineFailedError: _FAILED_FOR_GOOD,
    errors.EngineCrashedError: _FAILED,
    errors.EngineHungError: _FAILED,
    errors.WorkerProtocolError: _FAILED,
    errors.PluginError: _FAILED_FOR_GOOD,
    errors.PluginLoadError: _FAILED_FOR_GOOD,
    errors.PluginConflictError: _FAILED_FOR_GOOD,
    errors.PluginContractError: _FAILED_FOR_GOOD,
    errors.ConfigError: _FAILED_FOR_GOOD,
    errors.InternalError: _FAILED_FOR_GOOD,
}


def row_of(error: errors.CardcageError) -> Row:
    """The row of an error's class; a class that someone derived elsewhere has its nearest base's."""
    return next(ERROR_TABLE[cls] for cls in type(error).__mro__ if cls in ERROR_TABLE)


def encode_error(error: errors.CardcageError) -> ErrorBody:
    """The body of an error."""
    row = row_of(error)
    code = error.code if row.has_code else None
    return {"error": {"message": error.message, "type": row.type, "param": error.param, "code": code}}


def error_reply(error: errors.CardcageError) -> Reply:
    """The whole answer of an error: status, body and what headers tell a client to do next."""
    row = row_of(error)
    headers: dict[str, str] = {}
    if row.is_final:
        headers["x-should-retry"] = "false"
    if isinstance(error, errors.BusyError | errors.SourceUnavailableError):
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_seconds or 1)))
    if isinstance(error, errors.MethodNotAllowedError) and error.allowed:
        headers["allow"] = ", ".join(error.allowed)
    if isinstance(error, errors.AuthenticationError):
        headers["www-authenticate"] = "Bearer"
    body = encode_json(encode_error(error))
    return Reply(status=row.status, body=body, headers=headers)
