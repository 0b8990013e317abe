"""Vectors from a BERT of random weights, made here: small, and exact enough to compare."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import numpy as np
import pytest
import pytest_asyncio

from cardcage_sdk.embeddings import EmbedRequest, EmbedResult
from cardcage_sdk.errors import ContextLengthExceededError, InvalidRequestError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = [pytest.mark.asyncio(loop_scope="module")]

WIDTH = 64
"""Of the model in `conftest`."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def embedder(kit, bert_path: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[object]:
    async with kit.running_worker(tmp_path_factory.mktemp("embedder") / "log") as running:
        await kit.load(running, kit.artifact_of(bert_path, context_tokens=None, kind="embedding"))
        yield running


_count = 0


async def embed(worker, *inputs: str | tuple[int, ...], **fields: object) -> np.ndarray:
    global _count  # noqa: PLW0603
    _count += 1
    result: EmbedResult = await worker.connection.embed(
        EmbedRequest(id=f"e{_count}", model="m", inputs=inputs, **fields)
    )
    vectors = np.frombuffer(result.vectors, dtype="<f4").reshape(len(inputs), result.dimensions)
    assert len(result.prompt_tokens) == len(inputs)
    return vectors


async def test_vectors_are_whole_and_normalised(embedder) -> None:
    assert embedder.info.embedding_dimensions == WIDTH
    vectors = await embed(embedder, "the cat sits on the mat", "the dog runs")
    assert vectors.shape == (2, WIDTH)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert np.isfinite(vectors).all()
    assert not np.allclose(vectors[0], vectors[1], atol=0.01)


async def test_the_same_text_gives_the_same_vector_alone_or_among_many(embedder) -> None:
    texts = [
        " ".join(random.Random(index).choices(["cat", "dog", "the", "sits", "on"], k=1 + index % 9))
        for index in range(40)
    ]
    alone = np.concatenate([await embed(embedder, text) for text in texts])
    assert np.allclose(await embed(embedder, *texts), alone, atol=1e-4), "40 texts take several batches"
    at_once = await asyncio.gather(*(embed(embedder, text) for text in texts))
    assert np.allclose(np.concatenate(at_once), alone, atol=1e-4), "batched across requests"


async def test_text_and_its_tokens_are_the_same_input(embedder) -> None:
    vectors = await embed(embedder, "the cat", (2, 7, 5, 3))
    assert np.allclose(vectors[0], vectors[1], atol=1e-5)


async def test_dimensions_cut_and_normalise_again(embedder) -> None:
    whole = (await embed(embedder, "the cat"))[0]
    cut = (await embed(embedder, "the cat", dimensions=16))[0]
    assert cut.shape == (16,)
    assert np.allclose(cut, whole[:16] / np.linalg.norm(whole[:16]), atol=1e-5)
    for bad in (0, WIDTH + 1):
        with pytest.raises(InvalidRequestError):
            await embed(embedder, "the cat", dimensions=bad)


async def test_not_normalised_where_not_asked(embedder) -> None:
    raw = await embed(embedder, "the cat", normalize=False)
    assert abs(float(np.linalg.norm(raw)) - 1) > 0.01


async def test_too_long_is_refused_or_cut(embedder) -> None:
    text = "the cat sits on the mat " * 30
    with pytest.raises(ContextLengthExceededError) as caught:
        await embed(embedder, "the cat", text)
    assert caught.value.context_tokens == 64
    assert (await embed(embedder, text, truncate=True)).shape == (1, WIDTH)


@pytest.mark.parametrize("bad", [(), (10**6,), (-1,)])
async def test_bad_token_inputs_are_refused(embedder, bad) -> None:
    with pytest.raises(InvalidRequestError):
        await embed(embedder, bad)


async def test_an_embedding_model_does_not_chat(embedder, kit) -> None:
    with pytest.raises(UnsupportedError):
        await embedder.ask("Hello")


@pytest.mark.model
async def test_a_chat_model_does_not_embed(worker) -> None:
    with pytest.raises(UnsupportedError):
        await embed(worker, "Hello")
