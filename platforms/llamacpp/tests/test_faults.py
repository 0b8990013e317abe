"""What is wrong with a model or a machine is an error with a reason, and never the end of more than one worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from cardcage_platform_llamacpp.build_wheel import write_smoke_model
from cardcage_sdk.errors import LoadFailedError, ModelError, OutOfMemoryError, UnsupportedModelError
from cardcage_sdk.models import ModelArtifact

pytestmark = pytest.mark.asyncio


@pytest.fixture
def broken(tmp_path: Path, kit) -> Path:
    if not kit.platform.probe().is_available:
        kit.missing(kit.platform.probe().reason)
    path = tmp_path / "broken.gguf"
    write_smoke_model(path)
    return path


async def test_no_gguf_file(fresh_worker, kit, broken: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="no GGUF file"):
        await kit.load(fresh_worker, ModelArtifact(path=broken.parent, name="empty"))


def damage(path: Path, case: str) -> None:
    raw = bytearray(path.read_bytes())
    match case:
        case "empty":
            raw = bytearray()
        case "noise":
            raw = bytearray(range(256)) * 100
        case "cut header":
            raw = raw[:100]
        case "cut weights":
            raw = raw[:-4096]
        case "unknown architecture":
            raw = raw.replace(b"llama", b"lhama")
        case "wrong width":
            at = raw.index(b"llama.embedding_length") + len(b"llama.embedding_length") + 4
            raw[at : at + 4] = (577).to_bytes(4, "little")
    path.write_bytes(raw)


@pytest.mark.parametrize("case", ["empty", "noise", "cut header", "cut weights", "unknown architecture", "wrong width"])
async def test_a_broken_file_is_an_error_with_a_reason(fresh_worker, kit, broken: Path, case: str) -> None:
    damage(broken, case)
    with pytest.raises(ModelError) as caught:
        await kit.load(fresh_worker, kit.artifact_of(broken, context_tokens=None))
    assert not isinstance(caught.value, OutOfMemoryError)
    if case == "unknown architecture":
        assert isinstance(caught.value, UnsupportedModelError)
        assert "lhama" in caught.value.message, "llama.cpp's own words reach the caller"
    if case == "cut weights":
        assert isinstance(caught.value, LoadFailedError)
        assert "corrupted" in caught.value.message or "incomplete" in caught.value.message


@pytest.mark.model
async def test_more_context_than_memory_is_out_of_memory_before_anything_is_allocated(
    fresh_worker, kit, model_path
) -> None:
    with pytest.raises(OutOfMemoryError) as caught:
        await kit.load(fresh_worker, kit.artifact_of(model_path, context_tokens=8192), slots=256)
    assert caught.value.required_bytes > 256 * 8192 * 23_040
    assert caught.value.free_bytes < caught.value.required_bytes


@pytest.mark.model
@pytest.mark.parametrize(
    "options",
    [
        {"use_extra_bufts": False},
        {"kv_unified": True},
        {"flash_attention": True},
        {"batch_tokens": 32, "prefill_chunk_tokens": 16},
        {"threads": 1, "yield_cores": False, "openmp_wait_policy": "passive"},
        {"check_tensors": True},
    ],
    ids=lambda options: next(iter(options)),
)
async def test_every_option_loads_and_answers(tmp_path: Path, kit, model_path, options) -> None:
    async with kit.running_worker(tmp_path / "log", options) as worker:
        await kit.load(worker, kit.artifact_of(model_path), slots=2, **options)
        answer = await worker.ask("What is the capital of France? Answer in a sentence.", sampling={"max_tokens": 16})
        assert "Paris" in answer.text()
        if "threads" in options:
            assert worker.info.details["threads"] == 1


@pytest.mark.model
async def test_a_full_shared_cache_fails_one_request_not_the_worker(tmp_path: Path, kit, model_path) -> None:
    import asyncio

    async with kit.running_worker(tmp_path / "log") as worker:
        await kit.load(worker, kit.artifact_of(model_path, context_tokens=256), slots=2, kv_unified=True)
        long = "one two three four five six seven eight nine ten " * 20
        requests = [
            kit.chat("", prompt=f"{index} {long}", sampling={"max_tokens": None, "logit_bias": {2: -100.0}})
            for index in range(2)
        ]
        await asyncio.gather(*(worker.run(request) for request in requests), return_exceptions=True)
        assert (await worker.ask("Hi", sampling={"max_tokens": 2})).finished()


@pytest.mark.model
async def test_one_slot_does_not_leak_between_requests(tmp_path: Path, kit, model_path) -> None:
    """Requests that come and go in a single slot answer as if each were alone."""
    async with kit.running_worker(tmp_path / "log") as worker:
        await kit.load(worker, kit.artifact_of(model_path), slots=1)
        question = "What is the capital of Italy? Answer in a sentence."
        first = await worker.ask(question, reuse_prefix=False)
        for _ in range(3):
            await worker.ask("Tell me about the sea.", sampling={"max_tokens": 8})
            again = await worker.ask(question)
            assert again.text() == first.text()
