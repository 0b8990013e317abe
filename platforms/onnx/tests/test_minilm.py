"""The real embedding model in a real worker process."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from cardcage_sdk.embeddings import EmbedRequest
from cardcage_sdk.errors import ContextLengthExceededError, UnsupportedError

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.model]

PARAPHRASES = [
    ("A man is eating food.", "A man is eating a piece of bread."),
    ("The stock market crashed today.", "The stock exchange fell sharply."),
    ("How do I reset my password?", "I forgot my password and want to set a new one."),
    ("The weather is lovely this morning.", "It is a beautiful sunny morning."),
    ("Water boils at one hundred degrees.", "The boiling point of water is 100 degrees Celsius."),
]
_ids = itertools.count()


def request(*inputs, **fields) -> EmbedRequest:
    return EmbedRequest(id=f"r{next(_ids)}", model="m", inputs=inputs, **fields)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(minilm, kit):
    async with kit.launch(minilm) as running:
        yield running


async def vectors(worker, kit, *inputs, **fields) -> np.ndarray:
    return kit.vectors(await worker.connection.embed(request(*inputs, **fields))).rows


async def test_meaning(worker, kit) -> None:
    """Paraphrases at least 0.5, everything else at most 0.2."""
    first = await vectors(worker, kit, *[pair[0] for pair in PARAPHRASES])
    second = await vectors(worker, kit, *[pair[1] for pair in PARAPHRASES])
    assert first.shape == (5, 384)
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1, atol=1e-6)
    similar = np.sum(first * second, axis=1)
    assert similar.min() >= 0.5, similar
    cosines = first @ second.T
    assert cosines[~np.eye(5, dtype=bool)].max() <= 0.2, cosines.round(2)


async def test_vectors_are_those_of_the_float32_model(worker, kit) -> None:
    """The references were computed from the original weights by `bench/embeddings_reference.py`."""
    reference = json.loads((Path(__file__).parent / "data/minilm_float32.json").read_text())
    texts = reference["texts"] + reference["odd_texts"]
    expected = np.array(reference["vectors"])
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    cosines = np.sum(await vectors(worker, kit, *texts, truncate=True) * expected, axis=1)
    sentences = len(reference["texts"])
    assert cosines[:sentences].min() >= 0.999, cosines
    # Numbers in a row, single words, code: the file's 8-bit weights tell more, see the next test for whose they are.
    assert cosines[sentences:].min() >= 0.998, cosines


async def test_vectors_are_those_of_a_plain_run_of_the_same_file(worker, kit, minilm) -> None:
    """Nothing of this package adds to what the weights of the file lose: padding, batching and threads change no vector."""
    ort = pytest.importorskip("onnxruntime")
    tokenizer = pytest.importorskip("tokenizers").Tokenizer.from_file(str(minilm / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)
    session = ort.InferenceSession(str(minilm / "model.onnx"), providers=["CPUExecutionProvider"])
    reference = json.loads((Path(__file__).parent / "data/minilm_float32.json").read_text())
    texts = reference["texts"] + reference["odd_texts"]
    found = await vectors(worker, kit, *texts, truncate=True)
    for text, vector in zip(texts, found, strict=True):
        ids = np.array([tokenizer.encode(text).ids])
        ones, zeros = np.ones_like(ids), np.zeros_like(ids)
        (hidden,) = session.run(None, {"input_ids": ids, "attention_mask": ones, "token_type_ids": zeros})
        mean = hidden[0].mean(axis=0)
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=2e-6)


async def test_a_text_has_one_vector_whatever_runs_beside_it(worker, kit) -> None:
    texts = [pair[0] for pair in PARAPHRASES]
    alone = [await vectors(worker, kit, text) for text in texts]
    beside = await asyncio.gather(*(vectors(worker, kit, text, "word " * n) for n, text in enumerate(texts, start=5)))
    for one, other in zip(alone, beside, strict=True):
        assert 1 - float(one[0] @ other[0]) < 1e-6
    assert worker.info.details["exact"] is True
    assert worker.info.details["batches"] is True


async def test_the_models_own_limit_counts_not_that_of_the_tokenizer_file(worker) -> None:
    """The file pads to 128 tokens and cuts there; the model takes 256."""
    assert worker.info.context_tokens == 256
    accepted = await worker.connection.prepare(request("one two three"))
    assert accepted.prompt_tokens == 5
    result = await worker.connection.embed(request("word " * 250))
    assert result.prompt_tokens == (252,)
    with pytest.raises(ContextLengthExceededError) as caught:
        await worker.connection.embed(request("word " * 300))
    assert (caught.value.prompt_tokens, caught.value.context_tokens) == (302, 256)


async def test_special_tokens_in_a_text_are_text(worker) -> None:
    result = await worker.connection.embed(request("one [SEP] two"))
    assert result.prompt_tokens[0] > 6


async def test_cutting_its_vectors_is_refused(worker) -> None:
    with pytest.raises(UnsupportedError, match="384 components"):
        await worker.connection.embed(request("one", dimensions=128))


async def test_the_estimate_is_near_what_it_takes(worker, kit, minilm) -> None:
    estimate = kit.platform.estimate(kit.artifact_of(minilm), {}).host_bytes
    used = (await worker.connection.ping()).rss_bytes
    assert 0.5 * used <= estimate <= 2 * used


async def test_memory_stays_bounded_over_large_batches(worker, kit) -> None:
    """The arena would keep what the largest step took."""
    await vectors(worker, kit, *["some words of a text"] * 8)
    before = (await worker.connection.ping()).rss_bytes
    await vectors(worker, kit, *["word " * 200] * 16, *["word " * 20] * 200)
    after = (await worker.connection.ping()).rss_bytes
    assert after - before < 64 << 20


async def test_the_fast_variant_is_near_and_says_that_it_is_not_exact(worker, kit, minilm, tmp_path) -> None:
    """Made by this package's own command; under `exact` the same file would run each text alone."""
    pytest.importorskip("onnx")
    folder = tmp_path / "model"
    shutil.copytree(minilm, folder)
    command = [sys.executable, "-m", "cardcage_platform_onnx.quantize", str(folder)]
    made = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120, check=False)
    assert made.returncode == 0, made.stderr
    assert made.stdout.split() == [str(folder / "model_fast.onnx")]
    assert sorted(path.name for path in folder.iterdir()) == [
        "model.onnx",
        "model.toml",
        "model_fast.onnx",
        "tokenizer.json",
    ]
    texts = [text for pair in PARAPHRASES for text in pair]
    exact = await vectors(worker, kit, *texts)
    async with kit.launch(folder, options={"variant": "fast"}) as fast:
        assert fast.info.details["exact"] is False
        assert fast.info.details["batches"] is True
        near = np.sum(exact * await vectors(fast, kit, *texts), axis=1)
        assert 0.95 < near.min() < 0.99999
    async with kit.launch(folder, fields={"extra": {"pooling": "mean", "model_file": "model_fast.onnx"}}) as alone:
        assert alone.info.details["exact"] is True
        assert alone.info.details["batches"] is False
        (single,) = await vectors(alone, kit, texts[0])
        together = await vectors(alone, kit, *texts)
        assert single.tobytes() == together[0].tobytes()
