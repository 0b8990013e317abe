"""Every error of the tree in the form of this API: one table of statuses, proved complete by a test.

The form is always `{"error": "text"}`, but for unknown paths and wrong methods, which are plain text. Clients match on parts
of some texts: `not found`, `does not support`, `server busy`.
"""

import math
from collections.abc import Mapping

from cardcage_sdk import errors
from cardcage_sdk.dialect import Reply
from cardcage_sdk.stream.jsontext import encode_json

__all__ = ["BUSY_TEXT", "ERROR_TABLE", "JSON_TYPE", "encode_error", "error_reply", "error_text", "status_of"]

JSON_TYPE = "application/json; charset=utf-8"

BUSY_TEXT = "server busy, please try again.  maximum pending requests exceeded"
"""With two spaces, as it has always been."""

ERROR_TABLE: Mapping[type[errors.CardcageError], int] = {
    errors.CardcageError: 500,
    # The client's fault.
    errors.RequestError: 400,
    errors.InvalidRequestError: 400,
    errors.InvalidSchemaError: 400,
    errors.InvalidContentPartError: 400,
    errors.InvalidInstanceCountError: 400,
    errors.InvalidOptionError: 400,
    errors.UnsupportedError: 400,
    errors.UnsupportedContentPartError: 400,
    errors.ContextLengthExceededError: 400,
    errors.WrongModelTypeError: 400,
    errors.ModelNotFoundError: 404,
    errors.ModelAlreadyExistsError: 409,
    errors.ModelInUseError: 409,
    errors.AuthenticationError: 401,
    errors.ForbiddenError: 403,
    errors.OriginNotAllowedError: 403,
    errors.PathNotAllowedError: 403,
    errors.RouteNotFoundError: 404,
    errors.MethodNotAllowedError: 405,
    errors.PayloadTooLargeError: 413,
    errors.RequestTimeoutError: 408,
    # Loading. The client named the model, what is wrong with its files is not its doing.
    errors.ModelError: 500,
    errors.UnsupportedPlatformError: 500,
    errors.PlatformDetectionError: 400,
    errors.UnsupportedModelError: 500,
    errors.InvalidModelError: 400,
    errors.OutOfMemoryError: 500,
    errors.LoadFailedError: 500,
    # Fetching.
    errors.SourceError: 500,
    errors.SourceUnavailableError: 503,
    errors.SourceRefusedError: 403,
    errors.NoFittingVariantError: 409,
    errors.VariantRequiredError: 409,
    errors.CorruptDownloadError: 500,
    errors.StorageFullError: 507,
    errors.PullCancelledError: 409,
    # Busy. Ollama has one status for it, and no 429.
    errors.BusyError: 503,
    errors.QueueFullError: 503,
    errors.QueueTimeoutError: 503,
    errors.ModelLoadingError: 503,
    errors.LoadTimeoutError: 503,
    errors.DrainingError: 503,
    errors.EngineError: 500,
    errors.EngineFailedError: 500,
    errors.EngineCrashedError: 500,
    errors.EngineHungError: 500,
    errors.WorkerProtocolError: 500,
    errors.PluginError: 500,
    errors.PluginLoadError: 500,
    errors.PluginConflictError: 500,
    errors.PluginContractError: 500,
    errors.ConfigError: 500,
    errors.InternalError: 500,
}


def status_of(error: errors.CardcageError) -> int:
    """The status of an error's class; a class that someone derived elsewhere has its nearest base's."""
    return next(ERROR_TABLE[cls] for cls in type(error).__mro__ if cls in ERROR_TABLE)


def error_text(error: errors.CardcageError) -> str:
    """What a client reads."""
    if isinstance(error, errors.QueueFullError):
        return BUSY_TEXT
    if isinstance(error, errors.ModelNotFoundError):
        if error.message == f"Model '{error.model}' not found":
            return f"model '{error.model}' not found"
        if "not found" not in error.message:
            return f"model '{error.model}' not found: {error.message}"
    return error.message


def encode_error(error: errors.CardcageError) -> dict[str, str]:
    """The body of an error, and the last line of a stream that failed."""
    return {"error": error_text(error)}


def error_reply(error: errors.CardcageError) -> Reply:
    """The whole answer of an error."""
    headers: dict[str, str] = {}
    if isinstance(error, errors.RouteNotFoundError):
        return Reply(status=404, body=b"404 page not found", content_type="text/plain")
    if isinstance(error, errors.MethodNotAllowedError):
        allow = {"allow": ", ".join(error.allowed)} if error.allowed else {}
        return Reply(status=405, body=b"405 method not allowed", content_type="text/plain", headers=allow)
    if isinstance(error, errors.BusyError | errors.SourceUnavailableError):
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_seconds or 1)))
    if isinstance(error, errors.AuthenticationError):
        headers["www-authenticate"] = "Bearer"
    return Reply(
        status=status_of(error), body=encode_json(encode_error(error)), content_type=JSON_TYPE, headers=headers
    )
