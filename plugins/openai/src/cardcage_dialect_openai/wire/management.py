"""Models and platforms: OpenAI's listing with LlamaPi's fields, and LlamaPi's load, resize, unload and platforms."""

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from pydantic import ConfigDict, Field

from cardcage_dialect_openai.wire.chat import Stop
from cardcage_dialect_openai.wire.fields import MAX_INT32, Int, WireModel

__all__ = [
    "ChipEntry",
    "DefaultParams",
    "LoadAnswer",
    "LoadModelRequest",
    "ModelObject",
    "PlatformEntry",
    "ResizeModelRequest",
    "UnloadAnswer",
    "UnloadModelRequest",
]


class DefaultParams(WireModel):
    """Default generation parameters of a model: the page's ten and the extras that requests may carry too.

    A name that is none of these is refused: a default that silently did nothing would be hard to find.
    """

    model_config = ConfigDict(extra="forbid")

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[Int, Field(ge=-1, le=MAX_INT32)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repeat_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    repeat_last_n: Annotated[Int, Field(ge=-1, le=MAX_INT32)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    seed: Int | None = None
    max_tokens: Annotated[Int, Field(ge=1)] | None = None
    max_context_len: Annotated[Int, Field(ge=1, le=MAX_INT32)] | None = None
    stop: Stop = None
    enable_thinking: bool | None = None


class LoadModelRequest(WireModel):
    """Body of a load request; `platform` and `options` are extensions.

    A negative `instance_count` is malformed, as the page says; 0 is well-formed and refused by name later.
    """

    model_id: str
    model_path: Annotated[str, Field(min_length=1)]
    instance_count: Annotated[Int, Field(ge=0, le=MAX_INT32)] | None = None
    request_queue_size: Annotated[Int, Field(ge=0, le=MAX_INT32)] | None = None
    default_params: DefaultParams | None = None
    platform: str | None = None
    options: dict[str, Any] | None = None


class ResizeModelRequest(WireModel):
    """Body of a resize request."""

    model_id: Annotated[str, Field(min_length=1)]
    instance_count: Annotated[Int, Field(ge=0, le=MAX_INT32)]


class UnloadModelRequest(WireModel):
    """Body of an unload request; `force` is an extension that ends running requests instead of waiting for them."""

    model_id: Annotated[str, Field(min_length=1)]
    force: bool | None = None


class ModelObject(TypedDict):
    """A loaded model. From `tasks` on the fields are extensions."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    platform: str
    instance_count: int
    model_path: str
    model_kind: Literal["chat", "embedding"]
    tasks: list[str]
    name: str
    state: str
    requested_instance_count: int
    context_length: int | None


class LoadAnswer(TypedDict):
    """Answer of load and resize, with both counts."""

    success: Literal[True]
    message: str
    requested_instance_count: int
    actual_instance_count: int


class UnloadAnswer(TypedDict):
    """Answer of unload."""

    success: Literal[True]
    message: str


class ChipEntry(TypedDict):
    """How many devices of one chip type were found."""

    chip_type: str
    count: int


class PlatformEntry(TypedDict):
    """An installed platform; `reason` is an extension that says why it is not available."""

    id: str
    display_name: str
    available: bool
    detected_chips: list[ChipEntry]
    reason: NotRequired[str]
