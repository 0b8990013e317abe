"""Cross-encoders in real worker processes."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import tiny_models
from tiny_models import VOCABULARY, table

from cardcage_sdk.capabilities import Task
from cardcage_sdk.embeddings import EmbedRequest, RerankRequest
from cardcage_sdk.errors import ContextLengthExceededError, InvalidRequestError, UnsupportedError, UnsupportedModelError

_number = 0


def request(query: str, *documents: str, **fields) -> RerankRequest:
    global _number  # noqa: PLW0603  Ids must differ over all requests of a worker.
    _number += 1
    return RerankRequest(id=f"r{_number}", model="m", query=query, documents=documents, **fields)


def score(query: str, document: str, *, factor: float = 0.05) -> float:
    sums = [sum(table()[VOCABULARY[word]].astype(float) for word in text.split()) for text in (query, document)]
    return float(1 / (1 + np.exp(-factor * np.dot(*sums))))


DOCUMENTS = ("w1 w2", "w3 w4 w5 w6", "w7", "w1 w8 w9")


@pytest.mark.parametrize("labels", [1, 2])
async def test_scores_are_those_computed_by_hand_in_the_order_of_the_documents(kit, tmp_path, labels) -> None:
    async with kit.launch(tiny_models.write_reranker(tmp_path / "model", labels=labels)) as worker:
        assert worker.info.capabilities.tasks == {Task.RERANK}
        assert worker.info.embedding_dimensions is None
        result = await worker.connection.rerank(request("w1 w9", *DOCUMENTS))
        assert result.scores == pytest.approx([score("w1 w9", document) for document in DOCUMENTS], abs=1e-6)
        assert result.prompt_tokens == sum(3 + 2 + len(document.split()) for document in DOCUMENTS)


async def test_logits_on_request_of_the_model(kit, reranker) -> None:
    async with kit.launch(reranker, fields={"extra": {"score": "logit"}}) as worker:
        (found,) = (await worker.connection.rerank(request("w1", "w1"))).scores
        assert found == pytest.approx(0.05 * float(table()[VOCABULARY["w1"]] @ table()[VOCABULARY["w1"]]), rel=1e-4)


async def test_many_at_once(kit, reranker) -> None:
    async with kit.launch(reranker) as worker:
        queries = [f"w{number % 20}" for number in range(64)]
        groups = [DOCUMENTS[: 1 + number % 4] for number in range(64)]
        results = await asyncio.gather(
            *(worker.connection.rerank(request(query, *group)) for query, group in zip(queries, groups, strict=True))
        )
        for query, group, result in zip(queries, groups, results, strict=True):
            assert result.scores == pytest.approx([score(query, document) for document in group], abs=1e-6)


async def test_documents_are_cut_and_queries_never(kit, reranker) -> None:
    long = "w3 " * 40
    async with kit.launch(reranker) as worker:
        result = await worker.connection.rerank(request("w1 w2", "w5", long))
        assert result.prompt_tokens == 6 + 16
        assert result.scores[1] == pytest.approx(score("w1 w2", "w3 " * 11), abs=1e-6)
        with pytest.raises(ContextLengthExceededError, match="16 tokens allows") as caught:
            await worker.connection.rerank(request("w1 w2", "w5", long, truncate=False))
        assert caught.value.param == "documents[1]"
        with pytest.raises(ContextLengthExceededError) as caught:
            await worker.connection.rerank(request(long, "w5"))
        assert caught.value.param == "query"


async def test_what_is_refused(kit, reranker, tmp_path) -> None:
    async with kit.launch(reranker) as worker:
        with pytest.raises(InvalidRequestError, match="documents must not be empty"):
            await worker.connection.rerank(request("w1"))
        with pytest.raises(UnsupportedError):
            await worker.connection.embed(EmbedRequest(id="x", model="m", inputs=("w1",)))
    with pytest.raises(UnsupportedModelError, match="3 labels"):
        async with kit.launch(tiny_models.write_reranker(tmp_path / "three", labels=3)):
            pass
