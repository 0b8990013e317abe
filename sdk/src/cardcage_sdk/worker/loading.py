"""From a dotted path and files to an engine that has proved that it works."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING

from cardcage_sdk.capabilities import Capabilities, Feature, Task
from cardcage_sdk.chat import ChatRequest, Message, Sampling, TextPart
from cardcage_sdk.embeddings import EmbedRequest, RerankRequest
from cardcage_sdk.engine import BatchEngine, Engine
from cardcage_sdk.errors import (
    CardcageError,
    ContextLengthExceededError,
    InvalidOptionError,
    LoadFailedError,
    ModelError,
    OutOfMemoryError,
)
from cardcage_sdk.models import ModelInfo
from cardcage_sdk.text.toolcalls import TOOL_FORMATS
from cardcage_sdk.worker.log import log_exception

if TYPE_CHECKING:
    from types import ModuleType

    from cardcage_sdk.engine import Request
    from cardcage_sdk.ipc.frames import EngineTarget, Load

__all__ = ["SELF_TEST_ID", "as_load_error", "import_engine", "load_model", "self_test_request"]

SELF_TEST_ID = "self-test"

# Long enough that runtimes take their path for prompts of many tokens: some crash there and not on a single token (llama.cpp's
# AMX buffers need 32 rows or more).
_SELF_TEST_TEXT = (
    "The quick brown fox jumps over the lazy dog, and the dog, which had been asleep in the warm sun since the early "
    "morning, lifts its head, looks at the fox for a while, yawns, and goes back to sleep. In the evening the fox comes "
    "back along the same path, a little slower than before, and finds the dog still lying there, dreaming of a quick "
    "brown fox that jumps over it again and again. What does the dog do next? Answer with one word."
)
_SHORT_TEXT = "Hello"
_SELF_TEST_CONTEXT = 256  # tokens; a smaller context gets the short text


def import_engine(target: EngineTarget) -> type[Engine | BatchEngine]:
    """Import the engine's class.

    Raises:
        LoadFailedError: There is no such module or class, it is no engine, or importing it raised.
    """
    module_name, _, class_name = target.path.partition(":")
    try:
        if target.plugin_file is not None:
            module = _import_file(module_name, target.plugin_file)
        else:
            module = importlib.import_module(module_name)
        cls = getattr(module, class_name)
    except (Exception, SystemExit) as error:  # boundary to a plugin's module: an import can raise anything
        log_exception(f"engine {target.path} cannot be imported", error)
        raise LoadFailedError(f"Engine '{target.path}' cannot be imported: {type(error).__name__}: {error}") from error
    if not (isinstance(cls, type) and issubclass(cls, (Engine, BatchEngine))):
        raise LoadFailedError(f"'{target.path}' is neither an Engine nor a BatchEngine")
    return cls


def _import_file(name: str, path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"'{path}' is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def load_model(engine: Engine | BatchEngine, load: Load) -> ModelInfo:
    """Load the model and check what the engine says of it.

    Raises:
        ModelError: One of its classes.
    """
    info = engine.load(load.artifact, load.options)
    if not isinstance(info, ModelInfo):
        raise LoadFailedError(f"load() must return ModelInfo, not {type(info).__name__}")
    if info.tool_format is not None and info.tool_format not in TOOL_FORMATS:
        raise LoadFailedError(f"Unknown tool format '{info.tool_format}'; known are {', '.join(sorted(TOOL_FORMATS))}")
    return info


def self_test_request(info: ModelInfo, capabilities: Capabilities) -> Request:
    """One greedy token after a prompt of about a hundred, or one vector, or one score."""
    is_short = info.context_tokens is not None and info.context_tokens < _SELF_TEST_CONTEXT
    text = _SHORT_TEXT if is_short else _SELF_TEST_TEXT
    if Task.CHAT in capabilities.tasks:
        sampling = Sampling(max_tokens=1, temperature=0.0)
        if not info.has_chat_template and Feature.RAW_PROMPT in capabilities.features:
            return ChatRequest(id=SELF_TEST_ID, model="", prompt=text, sampling=sampling)
        message = Message(role="user", content=(TextPart(text),))
        return ChatRequest(id=SELF_TEST_ID, model="", messages=(message,), sampling=sampling)
    if Task.EMBED in capabilities.tasks:
        return EmbedRequest(id=SELF_TEST_ID, model="", inputs=(text,), truncate=True)
    return RerankRequest(id=SELF_TEST_ID, model="", query=_SHORT_TEXT, documents=(text,))


def as_load_error(error: BaseException, what: str) -> CardcageError:
    """What a failed load is reported as.

    An error about the model stays as it is, a context that holds no prompt is the client's fault, anything else is a
    `LoadFailedError`.
    """
    if isinstance(error, ModelError):
        return error
    if isinstance(error, MemoryError):
        log_exception(f"{what} failed", error)
        return OutOfMemoryError(f"{what} ran out of memory{f': {error}' if str(error) else ''}")
    if isinstance(error, ContextLengthExceededError):
        return InvalidOptionError(
            f"A context of {error.context_tokens} tokens is too small for this model: {what[:1].lower()}{what[1:]} takes "
            f"{error.prompt_tokens} tokens",
            param="max_context_len",
        )
    if isinstance(error, CardcageError):
        return LoadFailedError(f"{what} failed: {error.message}")
    log_exception(f"{what} failed", error)
    return LoadFailedError(f"{what} failed: {type(error).__name__}: {error}")
