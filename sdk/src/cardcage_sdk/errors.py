"""Every error that crosses a seam of Cardcage, as one tree.

Each class has one sentence, a stable `code` and structured fields. An error knows nothing of HTTP: each dialect maps every
class to its own status and body, and a test proves the map complete. An error that a worker raises travels over the pipe as
`to_wire` and is rebuilt as the same class by `from_wire`.

::

    CardcageError
    ├── RequestError                      the client's fault; the same request fails the same way again
    │   ├── InvalidRequestError
    │   │   ├── InvalidSchemaError
    │   │   ├── InvalidContentPartError
    │   │   ├── InvalidInstanceCountError
    │   │   └── InvalidOptionError
    │   ├── UnsupportedError
    │   │   └── UnsupportedContentPartError
    │   ├── ContextLengthExceededError
    │   ├── WrongModelTypeError
    │   ├── ModelNotFoundError
    │   ├── ModelAlreadyExistsError
    │   ├── ModelInUseError
    │   ├── AuthenticationError
    │   ├── ForbiddenError
    │   │   ├── OriginNotAllowedError
    │   │   └── PathNotAllowedError
    │   ├── RouteNotFoundError
    │   ├── MethodNotAllowedError
    │   ├── PayloadTooLargeError
    │   └── RequestTimeoutError
    ├── ModelError                        the model cannot be loaded as asked
    │   ├── UnsupportedPlatformError
    │   ├── PlatformDetectionError
    │   ├── UnsupportedModelError
    │   ├── InvalidModelError
    │   ├── OutOfMemoryError
    │   └── LoadFailedError
    ├── SourceError                       a model cannot be fetched
    │   ├── SourceUnavailableError
    │   ├── SourceRefusedError
    │   ├── NoFittingVariantError
    │   ├── VariantRequiredError
    │   ├── CorruptDownloadError
    │   ├── StorageFullError
    │   └── PullCancelledError
    ├── BusyError                         try again later
    │   ├── QueueFullError
    │   ├── QueueTimeoutError
    │   ├── ModelLoadingError
    │   ├── LoadTimeoutError
    │   └── DrainingError
    ├── EngineError                       the engine failed under a valid request
    │   ├── EngineFailedError
    │   ├── EngineCrashedError
    │   ├── EngineHungError
    │   └── WorkerProtocolError
    ├── PluginError                       a plugin cannot be used
    │   ├── PluginLoadError
    │   ├── PluginConflictError
    │   └── PluginContractError
    ├── ConfigError
    └── InternalError                     a fault of Cardcage itself
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "AuthenticationError",
    "BusyError",
    "CardcageError",
    "ConfigError",
    "ContextLengthExceededError",
    "CorruptDownloadError",
    "DrainingError",
    "EngineCrashedError",
    "EngineError",
    "EngineFailedError",
    "EngineHungError",
    "ForbiddenError",
    "InternalError",
    "InvalidContentPartError",
    "InvalidInstanceCountError",
    "InvalidModelError",
    "InvalidOptionError",
    "InvalidRequestError",
    "InvalidSchemaError",
    "LoadFailedError",
    "LoadTimeoutError",
    "MethodNotAllowedError",
    "ModelAlreadyExistsError",
    "ModelError",
    "ModelInUseError",
    "ModelLoadingError",
    "ModelNotFoundError",
    "NoFittingVariantError",
    "OriginNotAllowedError",
    "OutOfMemoryError",
    "PathNotAllowedError",
    "PayloadTooLargeError",
    "PlatformDetectionError",
    "PluginConflictError",
    "PluginContractError",
    "PluginError",
    "PluginLoadError",
    "PullCancelledError",
    "QueueFullError",
    "QueueTimeoutError",
    "RequestError",
    "RequestTimeoutError",
    "RouteNotFoundError",
    "SourceError",
    "SourceRefusedError",
    "SourceUnavailableError",
    "StorageFullError",
    "UnsupportedContentPartError",
    "UnsupportedError",
    "UnsupportedModelError",
    "UnsupportedPlatformError",
    "VariantRequiredError",
    "WorkerProtocolError",
    "WrongModelTypeError",
    "error_classes",
    "from_wire",
]


class CardcageError(Exception):
    """Base of all errors of Cardcage.

    Attributes:
        code: Stable machine-readable name, the same in every dialect that has a place for one.
        message: One sentence for a person.
        param: The neutral request field at fault (`messages`, `model`, `stop`, ...), if there is one.
    """

    code: ClassVar[str] = "error"
    FIELDS: ClassVar[tuple[str, ...]] = ()
    """Names of the structured attributes of this class, besides `message` and `param`; all are JSON values."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    @property
    def fields(self) -> dict[str, Any]:
        """The structured attributes by name."""
        return {name: getattr(self, name) for name in self.FIELDS}

    def to_wire(self) -> dict[str, Any]:
        """A JSON-able form that `from_wire` turns back into the same class."""
        return {"class": type(self).__name__, "message": self.message, "param": self.param, "fields": self.fields}

    @classmethod
    def _rebuild(cls, message: str, param: str | None, fields: Mapping[str, Any]) -> Self:
        error = cls.__new__(cls)
        Exception.__init__(error, message)
        error.message = message
        error.param = param
        for name in cls.FIELDS:
            setattr(error, name, fields.get(name))
        return error


# --- the client's fault -------------------------------------------------------------------------------------------


class RequestError(CardcageError):
    """The request is at fault; sent again unchanged it fails the same way."""

    code = "invalid_request"


class InvalidRequestError(RequestError):
    """A field is missing, malformed or out of range."""

    code = "invalid_request"


class InvalidSchemaError(InvalidRequestError):
    """A JSON Schema or grammar of the request cannot be compiled."""

    code = "invalid_schema"


class InvalidContentPartError(InvalidRequestError):
    """A content part is of a known kind but its data is malformed."""

    code = "invalid_content_part"

    def __init__(self, message: str, *, param: str | None = "messages") -> None:
        super().__init__(message, param=param)


class InvalidInstanceCountError(InvalidRequestError):
    """The number of instances asked for is not possible."""

    code = "invalid_instance_count"
    FIELDS = ("requested", "maximum")

    def __init__(self, requested: int, *, maximum: int | None = None, reason: str = "must be at least 1") -> None:
        super().__init__(f"instance_count {requested} is not possible: {reason}", param="instance_count")
        self.requested = requested
        self.maximum = maximum


class InvalidOptionError(InvalidRequestError):
    """A platform's load option is unknown or has a wrong value."""

    code = "invalid_option"


class UnsupportedError(RequestError):
    """The request asks for something that this model on this platform does not declare."""

    code = "unsupported_parameter"
    FIELDS = ("feature",)

    def __init__(self, feature: str, *, param: str | None = None, message: str | None = None) -> None:
        super().__init__(message or f"This model does not support '{feature}'", param=param or feature)
        self.feature = feature


class UnsupportedContentPartError(UnsupportedError):
    """A content part is of a kind that this model does not take."""

    code = "unsupported_content_part_type"

    def __init__(self, part_type: str, *, message: str | None = None) -> None:
        super().__init__(
            part_type, param="messages", message=message or f"Content parts of type '{part_type}' are not supported"
        )


class ContextLengthExceededError(RequestError):
    """The prompt does not fit into the model's context."""

    code = "context_length_exceeded"
    FIELDS = ("prompt_tokens", "context_tokens")

    def __init__(self, *, prompt_tokens: int, context_tokens: int, param: str = "messages") -> None:
        super().__init__(
            f"The prompt has {prompt_tokens} tokens, more than the model's context of {context_tokens} tokens allows",
            param=param,
        )
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens


class WrongModelTypeError(RequestError):
    """The model exists but does not do this task."""

    code = "wrong_model_type"
    FIELDS = ("model", "task", "kind")

    def __init__(self, model: str, *, task: str, kind: str) -> None:
        super().__init__(f"Model '{model}' is of kind '{kind}' and does not do '{task}'", param="model")
        self.model = model
        self.task = task
        self.kind = kind


class ModelNotFoundError(RequestError):
    """No loaded model, or no model on disk, has this name."""

    code = "model_not_found"
    FIELDS = ("model",)

    def __init__(self, model: str, *, message: str | None = None) -> None:
        super().__init__(message or f"Model '{model}' not found", param="model")
        self.model = model


class ModelAlreadyExistsError(RequestError):
    """A model is already loaded under this id."""

    code = "model_already_exists"
    FIELDS = ("model",)

    def __init__(self, model: str) -> None:
        super().__init__(f"Model '{model}' already exists", param="model_id")
        self.model = model


class ModelInUseError(RequestError):
    """The model is leased by running requests and the caller asked not to end them."""

    code = "model_in_use"
    FIELDS = ("model", "leases")

    def __init__(self, model: str, *, leases: int) -> None:
        super().__init__(f"Model '{model}' is in use by {leases} requests", param="model")
        self.model = model
        self.leases = leases


class AuthenticationError(RequestError):
    """No key, or an unknown one, where keys are configured."""

    code = "invalid_api_key"

    def __init__(self, message: str = "A valid API key is required") -> None:
        super().__init__(message)


class ForbiddenError(RequestError):
    """The caller is known but may not do this."""

    code = "forbidden"


class OriginNotAllowedError(ForbiddenError):
    """A web page of this origin, or a request to this host name, may not use this route."""

    code = "origin_not_allowed"
    FIELDS = ("origin",)

    def __init__(self, origin: str) -> None:
        super().__init__(f"Origin or host '{origin}' is not allowed")
        self.origin = origin


class PathNotAllowedError(ForbiddenError):
    """A file path of the request lies outside the allowed roots."""

    code = "path_not_allowed"
    FIELDS = ("path",)

    def __init__(self, path: str, *, param: str = "model_path") -> None:
        super().__init__(f"Path '{path}' lies outside the roots that this server may read", param=param)
        self.path = path


class RouteNotFoundError(RequestError):
    """No dialect serves this path."""

    code = "not_found"
    FIELDS = ("path",)

    def __init__(self, path: str) -> None:
        super().__init__(f"Unknown path '{path}'")
        self.path = path


class MethodNotAllowedError(RequestError):
    """The path exists, but not for this HTTP method."""

    code = "method_not_allowed"
    FIELDS = ("method", "path", "allowed")

    def __init__(self, method: str, path: str, *, allowed: tuple[str, ...] = ()) -> None:
        super().__init__(f"Method {method} is not allowed for '{path}'")
        self.method = method
        self.path = path
        self.allowed = list(allowed)


class PayloadTooLargeError(RequestError):
    """The request body is larger than this server takes."""

    code = "payload_too_large"
    FIELDS = ("limit_bytes",)

    def __init__(self, *, limit_bytes: int) -> None:
        super().__init__(f"The request body is larger than {limit_bytes} bytes")
        self.limit_bytes = limit_bytes


class RequestTimeoutError(RequestError):
    """The client took too long to send its request body."""

    code = "request_timeout"

    def __init__(self, message: str = "The request body did not arrive in time") -> None:
        super().__init__(message)


# --- loading ------------------------------------------------------------------------------------------------------


class ModelError(CardcageError):
    """The model cannot be loaded as asked."""

    code = "model_error"


class UnsupportedPlatformError(ModelError):
    """The model names a platform that is not installed or not available here."""

    code = "unsupported_platform"
    FIELDS = ("platform", "reason")

    def __init__(self, platform: str, *, reason: str) -> None:
        super().__init__(f"Platform '{platform}' is not supported here: {reason}", param="model_path")
        self.platform = platform
        self.reason = reason


class PlatformDetectionError(ModelError):
    """No platform, or more than one, claims this model directory."""

    code = "platform_detection_failed"
    FIELDS = ("path", "candidates")

    def __init__(self, path: str, *, candidates: tuple[str, ...] = (), message: str | None = None) -> None:
        if message is None and candidates:
            message = f"Several platforms claim '{path}': {', '.join(candidates)}; name one in model.toml"
        super().__init__(message or f"No installed platform recognises a model in '{path}'", param="model_path")
        self.path = path
        self.candidates = list(candidates)


class UnsupportedModelError(ModelError):
    """The runtime does not take this kind or version of file; the pool is not retried."""

    code = "unsupported_model"


class InvalidModelError(ModelError):
    """The model directory is incomplete or its `model.toml` is wrong."""

    code = "invalid_model"


class OutOfMemoryError(ModelError):
    """The model does not fit; core may free memory and try again."""

    code = "out_of_memory"
    FIELDS = ("required_bytes", "free_bytes")

    def __init__(
        self, message: str | None = None, *, required_bytes: int | None = None, free_bytes: int | None = None
    ) -> None:
        if message is None:
            message = f"Not enough memory: about {required_bytes} bytes are needed, {free_bytes} bytes are free"
        super().__init__(message)
        self.required_bytes = required_bytes
        self.free_bytes = free_bytes


class LoadFailedError(ModelError):
    """The worker failed before it was ready, for a reason that its log tells."""

    code = "load_failed"
    FIELDS = ("signal", "exit_code", "log_tail")

    def __init__(
        self, message: str, *, signal: str | None = None, exit_code: int | None = None, log_tail: str = ""
    ) -> None:
        super().__init__(message)
        self.signal = signal
        self.exit_code = exit_code
        self.log_tail = log_tail


# --- fetching -----------------------------------------------------------------------------------------------------


class SourceError(CardcageError):
    """A model cannot be fetched as asked."""

    code = "source_error"


class SourceUnavailableError(SourceError):
    """A source of models does not answer, or says to come again; the same request may succeed later."""

    code = "source_unavailable"
    FIELDS = ("source", "retry_after_seconds")

    def __init__(self, source: str, *, reason: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(f"Source '{source}' is not available: {reason}", param="model")
        self.source = source
        self.retry_after_seconds = retry_after_seconds


class SourceRefusedError(SourceError):
    """A source of models refuses: it wants a key, or a licence to be accepted."""

    code = "source_refused"
    FIELDS = ("source",)

    def __init__(self, source: str, *, reason: str) -> None:
        super().__init__(f"Source '{source}' refuses: {reason}", param="model")
        self.source = source


class NoFittingVariantError(SourceError):
    """The model exists, but in no form that this machine can run.

    Attributes:
        variants: One object for each form, with `label`, `platform`, `chips`, `size_bytes` and the `reason` against it.
    """

    code = "no_fitting_variant"
    FIELDS = ("model", "variants")

    def __init__(self, model: str, *, variants: list[dict[str, Any]]) -> None:
        reasons = "; ".join(f"{item.get('label') or 'the only one'}: {item.get('reason')}" for item in variants)
        super().__init__(f"No variant of '{model}' fits this machine: {reasons}", param="model")
        self.model = model
        self.variants = variants


class VariantRequiredError(SourceError):
    """Variants for several platforms fit this machine, and the request names none.

    Attributes:
        variants: One object for each form that fits, with `label`, `platform`, `chips` and `size_bytes`.
    """

    code = "variant_required"
    FIELDS = ("model", "variants")

    def __init__(self, model: str, *, variants: list[dict[str, Any]]) -> None:
        choices = ", ".join(str(item.get("platform")) for item in variants)
        super().__init__(f"'{model}' fits several platforms: {choices}; name one", param="platform")
        self.model = model
        self.variants = variants


class CorruptDownloadError(SourceError):
    """What was fetched has another size or hash than the source said."""

    code = "corrupt_download"
    FIELDS = ("file",)

    def __init__(self, file: str, *, reason: str) -> None:
        super().__init__(f"File '{file}' was not fetched correctly: {reason}", param="model")
        self.file = file


class StorageFullError(SourceError):
    """The model does not fit into the free space of the store."""

    code = "storage_full"
    FIELDS = ("needed_bytes", "free_bytes")

    def __init__(self, *, needed_bytes: int, free_bytes: int, path: str) -> None:
        super().__init__(
            f"The model needs {needed_bytes} bytes more in '{path}', where {free_bytes} bytes are free", param="model"
        )
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes


class PullCancelledError(SourceError):
    """Someone asked to cancel the pull."""

    code = "pull_cancelled"
    FIELDS = ("model",)

    def __init__(self, model: str) -> None:
        super().__init__(f"The pull of '{model}' was cancelled", param="model")
        self.model = model


# --- busy ---------------------------------------------------------------------------------------------------------


class BusyError(CardcageError):
    """The server cannot take this now; the same request may succeed later.

    Attributes:
        retry_after_seconds: A guess when to try again.
    """

    code = "busy"
    FIELDS: ClassVar[tuple[str, ...]] = ("retry_after_seconds",)

    def __init__(self, message: str, *, retry_after_seconds: float = 1.0, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.retry_after_seconds = retry_after_seconds


class QueueFullError(BusyError):
    """All instances and all waiting places of the model are taken."""

    code = "queue_full"
    FIELDS = ("model", "places", "retry_after_seconds")

    def __init__(self, model: str, *, places: int, retry_after_seconds: float = 1.0) -> None:
        super().__init__(
            f"Model '{model}' is busy and its queue of {places} places is full", retry_after_seconds=retry_after_seconds
        )
        self.model = model
        self.places = places


class QueueTimeoutError(BusyError):
    """The request waited longer for an instance than the configuration allows."""

    code = "busy"
    FIELDS = ("model", "waited_seconds", "retry_after_seconds")

    def __init__(self, model: str, *, waited_seconds: float, retry_after_seconds: float = 5.0) -> None:
        super().__init__(
            f"Model '{model}' stayed busy for {waited_seconds:g} seconds", retry_after_seconds=retry_after_seconds
        )
        self.model = model
        self.waited_seconds = waited_seconds


class ModelLoadingError(BusyError):
    """The model is being loaded and this caller does not wait for it."""

    code = "model_loading"
    FIELDS = ("model", "retry_after_seconds")

    def __init__(self, model: str, *, retry_after_seconds: float = 5.0) -> None:
        super().__init__(f"Model '{model}' is being loaded", retry_after_seconds=retry_after_seconds)
        self.model = model


class LoadTimeoutError(BusyError):
    """The model was not ready within the load deadline."""

    code = "load_timeout"
    FIELDS = ("model", "waited_seconds", "retry_after_seconds")

    def __init__(self, model: str, *, waited_seconds: float, retry_after_seconds: float = 5.0) -> None:
        super().__init__(
            f"Model '{model}' was not ready after {waited_seconds:g} seconds", retry_after_seconds=retry_after_seconds
        )
        self.model = model
        self.waited_seconds = waited_seconds


class DrainingError(BusyError):
    """The server is shutting down, or the model is being unloaded, and takes no new work."""

    code = "draining"

    def __init__(
        self,
        message: str = "The server is shutting down and takes no new requests",
        *,
        retry_after_seconds: float = 5.0,
    ) -> None:
        super().__init__(message, retry_after_seconds=retry_after_seconds)


# --- the engine ---------------------------------------------------------------------------------------------------


class EngineError(CardcageError):
    """The engine failed under a valid request."""

    code = "engine_error"


class EngineFailedError(EngineError):
    """The engine reported a failure of this request and lives on."""

    code = "engine_failed"


class EngineCrashedError(EngineError):
    """The worker process died while it served this request.

    Attributes:
        signal: Name of the signal that ended it, as `SIGSEGV`, or None.
        exit_code: Its exit status where no signal ended it, or None.
        log_tail: The last lines that it, or vendor code in it, printed.
    """

    code = "engine_crashed"
    FIELDS = ("model", "signal", "exit_code", "log_tail")

    def __init__(
        self, model: str, *, signal: str | None = None, exit_code: int | None = None, log_tail: str = ""
    ) -> None:
        how = f"by {signal}" if signal else f"with exit status {exit_code}"
        super().__init__(f"The worker of model '{model}' died {how}; it is being replaced")
        self.model = model
        self.signal = signal
        self.exit_code = exit_code
        self.log_tail = log_tail


class EngineHungError(EngineError):
    """The worker made no progress within its deadline and was killed."""

    code = "engine_hung"
    FIELDS = ("model", "seconds")

    def __init__(self, model: str, *, seconds: float) -> None:
        super().__init__(f"The worker of model '{model}' made no progress for {seconds:g} seconds and was ended")
        self.model = model
        self.seconds = seconds


class WorkerProtocolError(EngineError):
    """A frame on the worker's pipe was malformed, too large or out of order."""

    code = "worker_protocol"


# --- plugins and configuration ------------------------------------------------------------------------------------


class PluginError(CardcageError):
    """A plugin cannot be used."""

    code = "plugin_error"
    FIELDS = ("plugin",)

    def __init__(self, plugin: str, message: str) -> None:
        super().__init__(message)
        self.plugin = plugin


class PluginLoadError(PluginError):
    """A plugin's module raised at import or its hook failed."""

    code = "plugin_load_failed"


class PluginConflictError(PluginError):
    """Two plugins claim one name or one route."""

    code = "plugin_conflict"


class PluginContractError(PluginError):
    """A plugin was written for another major version of the contract, or breaks it."""

    code = "plugin_contract"


class ConfigError(CardcageError):
    """The configuration is wrong; the server does not start."""

    code = "config_error"


class InternalError(CardcageError):
    """A fault of Cardcage itself; the log has the traceback under the request id."""

    code = "internal_error"

    def __init__(self, message: str = "Internal error; the server's log has the details") -> None:
        super().__init__(message)


def _walk(cls: type[CardcageError]) -> Iterator[type[CardcageError]]:
    yield cls
    for sub in cls.__subclasses__():
        yield from _walk(sub)


def error_classes() -> list[type[CardcageError]]:
    """Every class of the tree that this module defines, depth first. Dialects test their maps against it."""
    return [cls for cls in _walk(CardcageError) if cls.__module__ == __name__]


def from_wire(value: Mapping[str, Any]) -> CardcageError:
    """Rebuild an error from `CardcageError.to_wire`; an unknown class becomes `EngineFailedError`."""
    by_name = {cls.__name__: cls for cls in error_classes()}
    cls = by_name.get(str(value.get("class")), EngineFailedError)
    fields = value.get("fields") or {}
    return cls._rebuild(str(value.get("message", "")), value.get("param"), fields)
