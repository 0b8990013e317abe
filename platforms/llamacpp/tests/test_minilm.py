"""A real embedding model, the GGUF of all-MiniLM-L6-v2, against vectors that PyTorch computed from the same weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import pytest_asyncio

from cardcage_sdk.embeddings import EmbedRequest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.model]

REPOSITORY = Path(__file__).parents[3]
SCRIPT = REPOSITORY / "examples/models/make_minilm_gguf.py"
REFERENCE = REPOSITORY / "platforms/onnx/tests/data/minilm_float32.json"
"""Made by `bench/embeddings_reference.py` from the original float32 weights."""

PARAPHRASES = [
    ("A man is eating food.", "A man is having a meal."),
    ("The harbour was closed because of the storm.", "No ship could leave the port in the bad weather."),
    ("How do I reset my password?", "I forgot my password and need a new one."),
    ("The committee postponed its decision.", "The decision was put off by the committee."),
]
UNRELATED = [
    ("A man is eating food.", "The committee postponed its decision."),
    ("The harbour was closed because of the storm.", "How do I reset my password?"),
    ("Photosynthesis turns light into sugar.", "Parliament passed the bill late on Thursday."),
]


@pytest.fixture(scope="module")
def minilm(kit) -> Path:
    """The model in the test store; made there, which takes seconds, where it is absent."""
    if not kit.platform.probe().is_available:
        kit.missing(kit.platform.probe().reason)
    store = Path(os.environ.get("CARDCAGE_TEST_STORE") or REPOSITORY / ".cardcage/models")
    made = subprocess.run(
        [sys.executable, str(SCRIPT), "--store", str(store)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        kit.missing(f"no MiniLM GGUF: {made.stderr.strip()[-300:]}")
    (model,) = Path(made.stdout.strip()).glob("*.gguf")
    return model


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def embedder(kit, minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[object]:
    async with kit.running_worker(tmp_path_factory.mktemp("minilm") / "log") as running:
        about = tomllib.loads((minilm.parent / "model.toml").read_text(encoding="utf-8"))
        await kit.load(running, kit.artifact_of(minilm, context_tokens=about["context_tokens"], kind=about["kind"]))
        yield running


_count = 0


async def embed(worker, texts: list[str]) -> np.ndarray:
    global _count  # noqa: PLW0603  Ids must differ over all requests of a worker.
    _count += 1
    request = EmbedRequest(id=f"m{_count}", model="m", inputs=tuple(texts), truncate=True)
    result = await worker.connection.embed(request)
    return np.frombuffer(result.vectors, dtype="<f4").reshape(len(texts), result.dimensions)


async def test_the_file_tells_that_it_embeds(embedder) -> None:
    assert embedder.info.embedding_dimensions == 384
    assert embedder.info.context_tokens == 256


async def test_vectors_are_those_of_the_float32_model(embedder) -> None:
    reference = json.loads(REFERENCE.read_text(encoding="utf-8"))
    expected = np.array(reference["vectors"])
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    # Numbers, single words, another language, code and a text over the model's length are among them.
    found = await embed(embedder, reference["texts"] + reference["odd_texts"])
    cosines = np.sum(found * expected, axis=1)
    assert cosines.min() >= 0.999, cosines


async def test_paraphrases_are_near_and_strangers_far(embedder) -> None:
    near, far = [
        np.sum(
            await embed(embedder, [pair[0] for pair in pairs]) * await embed(embedder, [pair[1] for pair in pairs]),
            axis=1,
        )
        for pairs in (PARAPHRASES, UNRELATED)
    ]
    assert near.min() >= 0.5, near
    assert far.max() <= 0.2, far


async def test_a_text_has_one_vector_whatever_is_beside_it(embedder) -> None:
    """Texts of all lengths, more than one step takes."""
    texts = [" ".join([PARAPHRASES[index % 4][0]] * (1 + index % 11)) + f" {index}" for index in range(40)]
    together = await embed(embedder, texts)
    for index in range(0, 40, 7):
        (alone,) = await embed(embedder, [texts[index]])
        np.testing.assert_allclose(alone, together[index], atol=2e-3)
        assert float(alone @ together[index]) >= 0.9999
