"""Embeddings and rerank of the ONNX platform, through a whole server, with the clients that people use."""

import asyncio
import importlib.util
import random
import sys
from pathlib import Path

import numpy as np
import openai
import pytest

HERE = Path(__file__).parent


def load(name, file):
    """A module by its file: these folders are on no path."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


frame = load("e2e_frame", HERE / "conftest.py")
tiny_models = load("onnx_tiny_models", HERE.parents[1] / "platforms/onnx/tests/tiny_models.py")

pytestmark = [pytest.mark.model, pytest.mark.timeout(240)]

MINILM = frame.STORE / "onnx/cpu/all-minilm-l6-v2-22m"
WORDS = [
    "harbour",
    "storm",
    "ship",
    "market",
    "equation",
    "train",
    "noon",
    "sea",
    "bread",
    "lighthouse",
    "winter",
    "bridge",
    "moon",
    "garden",
    "river",
    "paper",
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with MiniLM as `minilm` and a small reranker as `judge`."""
    if not (MINILM / "model.toml").is_file():
        pytest.skip(f"MiniLM is not in {frame.STORE}: make minilm")
    home = tmp_path_factory.mktemp("onnx")
    judge = tiny_models.write_reranker(home / "judge")
    config = "".join(
        f'[[models]]\nmodel_id = "{name}"\nmodel_path = "{path}"\nplatform = "onnx"\n'
        for name, path in (("minilm", MINILM), ("judge", judge))
    )
    # A model.toml without the catalog's keys would be refused, so the reranker gets a whole one.
    settings = (judge / "model.toml").read_text()
    (judge / "model.toml").write_text(
        f'schema = 1\nname = "judge"\nkind = "embedding"\nplatform = "onnx"\nchips = ["cpu"]\n{settings}'
        '[[files]]\nname = "model.onnx"\n[[files]]\nname = "tokenizer.json"\n'
    )
    deployment = frame.Deployment(home, config, frame.STORE)
    try:
        deployment.serve()
        with deployment.http() as http:
            frame.wait_until(lambda: http.get("/readyz").status_code == 200)
        yield deployment
    finally:
        deployment.stop()


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=120, max_retries=0) as client:
        yield client


def test_embeddings_in_base64_and_in_floats_are_equal(client):
    texts = ["A man is eating food.", "A man is eating a piece of bread.", "She multiplied both sides by seven."]
    packed = client.embeddings.create(model="minilm", input=texts)  # the client asks for base64 by itself
    plain = client.embeddings.create(model="minilm", input=texts, encoding_format="float")
    first = np.array([item.embedding for item in packed.data], dtype=np.float32)
    second = np.array([item.embedding for item in plain.data], dtype=np.float32)
    assert first.shape == (3, 384)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1, atol=1e-5)
    assert [item.index for item in packed.data] == [0, 1, 2]
    cosines = first @ first.T
    assert cosines[0, 1] >= 0.5
    assert max(cosines[0, 2], cosines[1, 2]) <= 0.2
    assert packed.usage.prompt_tokens == packed.usage.total_tokens > 20


def test_token_arrays_are_one_input(client):
    text = client.embeddings.create(model="minilm", input="hello")
    tokens = client.embeddings.create(model="minilm", input=[101, 7592, 102])
    assert len(tokens.data) == 1
    assert tokens.data[0].embedding == text.data[0].embedding


def test_faults_of_the_client_are_its_exceptions(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="minilm", input=["fine", "word " * 400])
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "input[1]"
    assert "402" in caught.value.message
    assert "256" in caught.value.message
    with pytest.raises(openai.BadRequestError):
        client.embeddings.create(model="minilm", input="hello", dimensions=64)
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="minilm", messages=[{"role": "user", "content": "hello"}])


def test_rerank(server):
    body = {
        "model": "judge",
        "query": "calm sea",
        "documents": ["A train leaves at noon.", {"text": "The sea is calm today."}, "w1 w2"],
        "top_n": 2,
        "return_documents": True,
    }
    with server.http() as http:
        answer = http.post("/v1/rerank", json=body)
        assert answer.status_code == 200, answer.text
        results = answer.json()["results"]
        assert results[0]["index"] == 1
        assert len(results) == 2
        assert results[0]["relevance_score"] > results[1]["relevance_score"]
        assert results[0]["document"] == {"text": "The sea is calm today."}
        (model,) = [item for item in http.get("/v1/models").json()["data"] if item["id"] == "judge"]
        assert model["model_kind"] == "embedding"
        assert model["tasks"] == ["rerank"]
        refused = http.post("/v1/embeddings", json={"model": "judge", "input": "hello"})
        assert refused.status_code == 400, refused.text


async def test_64_clients_at_once_each_get_their_own(server):
    numbers = random.Random(5)
    texts = [" ".join(numbers.choices(WORDS, k=numbers.randint(2, 40))) for _ in range(64)]
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=200, max_retries=0) as client:
        together = await client.embeddings.create(model="minilm", input=texts)
        answers = await asyncio.gather(*(client.embeddings.create(model="minilm", input=text) for text in texts))
    whole = np.array([item.embedding for item in together.data])
    single = np.array([answer.data[0].embedding for answer in answers])
    np.testing.assert_allclose(single, whole, atol=2e-6)


def test_doctor_lists_execution_providers(server):
    with server.http() as http:
        entries = http.get("/v1/platforms").json()["platforms"]
    assert "onnx" in str(entries)
    doctor = server.command("doctor")
    assert "onnxruntime" in doctor.stdout, doctor.stdout
    assert "providers" in doctor.stdout
