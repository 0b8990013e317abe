"""`POST /v1/embeddings` and `POST /v1/rerank`."""

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from pydantic import Field

from cardcage_dialect_openai.wire.fields import MAX_INT32, Int, WireModel, is_int, shaped

MAX_INPUTS = 16_384
"""Texts in one request. OpenAI takes 2048; the engine works through any number in steps of its own, and the body is bounded."""

__all__ = ["EmbeddingRequest", "RerankAnswer", "RerankRequestBody", "RerankResultEntry"]


def _is_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(is_int(item) and 0 <= item <= MAX_INT32 for item in value)


def _is_input(value: Any) -> bool:
    if isinstance(value, str) or _is_tokens(value):
        return True
    return (
        isinstance(value, list)
        and 0 < len(value) <= MAX_INPUTS
        and all(isinstance(item, str) or _is_tokens(item) for item in value)
    )


class EmbeddingRequest(WireModel):
    """Body of an embedding request; `user` is ignored."""

    model: Annotated[str, Field(min_length=1)]
    input: Annotated[
        Any,
        shaped(
            _is_input,
            f"a string, a non-empty array of token ids, or an array of 1 to {MAX_INPUTS} of these",
            is_required=True,
        ),
    ]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[Int, Field(ge=1, le=MAX_INT32)] | None = None


def _is_documents(value: Any) -> bool:
    return (
        isinstance(value, list)
        and 0 < len(value) <= MAX_INPUTS
        and all(
            isinstance(item, str) or (isinstance(item, dict) and isinstance(item.get("text"), str)) for item in value
        )
    )


class RerankRequestBody(WireModel):
    """Body of a rerank request, in the shape of Jina and Cohere.

    The last block holds fields that are only here to be refused.
    """

    model: Annotated[str, Field(min_length=1)]
    query: str
    documents: Annotated[
        list[str | dict[str, Any]],
        shaped(_is_documents, f"an array of 1 to {MAX_INPUTS} strings or objects with 'text'", is_required=True),
    ]
    top_n: Annotated[Int, Field(ge=1)] | None = None
    return_documents: bool | None = None
    truncation: bool | None = None

    max_chunks_per_doc: Any = None
    max_tokens_per_doc: Any = None
    rank_fields: Any = None


class RerankResultEntry(TypedDict):
    """One document's score; `index` is its place in the request."""

    index: int
    relevance_score: float
    document: NotRequired[dict[str, str]]


class RerankAnswer(TypedDict):
    """Documents by falling relevance."""

    id: str
    object: Literal["list"]
    model: str
    results: list[RerankResultEntry]
    usage: dict[str, int]
