"""Embeddings of small models in real worker processes."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest
import tiny_models
from tiny_models import VOCABULARY, WIDTH, mean_vector, table

from cardcage_sdk.capabilities import Feature, Task
from cardcage_sdk.embeddings import EmbedRequest, RerankRequest
from cardcage_sdk.errors import (
    ContextLengthExceededError,
    EngineFailedError,
    InvalidModelError,
    InvalidRequestError,
    ModelError,
    UnsupportedError,
    UnsupportedModelError,
    UnsupportedPlatformError,
)
from cardcage_sdk.models import LoadOptions

_number = 0


def request(*inputs, **fields) -> EmbedRequest:
    global _number  # noqa: PLW0603  Ids must differ over all requests of a worker.
    _number += 1
    return EmbedRequest(id=f"r{_number}", model="m", inputs=inputs, **fields)


def sentence(numbers: random.Random, longest: int) -> str:
    return " ".join(f"w{numbers.randrange(90)}" for _ in range(numbers.randint(1, longest)))


async def test_vectors_are_those_computed_by_hand(tiny_worker, kit) -> None:
    texts = ("w1 w2 w3", "w5", "w9 w9 unknown", "")
    found = kit.vectors(await tiny_worker.connection.embed(request(*texts)))
    np.testing.assert_allclose(found.rows, [mean_vector(text) for text in texts], atol=1e-6)
    assert found.tokens == (5, 3, 5, 2)
    np.testing.assert_allclose(np.linalg.norm(found.rows, axis=1), 1, atol=1e-6)


async def test_what_it_says_of_the_model(tiny_worker) -> None:
    info = tiny_worker.info
    assert info.context_tokens == 64
    assert info.embedding_dimensions == WIDTH
    assert info.capabilities.tasks == {Task.EMBED}
    assert info.capabilities.features == frozenset()
    assert info.details["exact"] is True
    assert info.details["provider"] == "cpu"
    assert info.parameter_count == table().size


async def test_prepare_counts(tiny_worker) -> None:
    accepted = await tiny_worker.connection.prepare(request("w1 w2", "w3"))
    assert accepted.prompt_tokens == 7
    large = await tiny_worker.connection.prepare(request(*["w1"] * 1000))
    assert large.prompt_tokens is None


async def test_vectors_as_they_come_where_no_normalising_is_asked(tiny_worker, kit) -> None:
    found = kit.vectors(await tiny_worker.connection.embed(request("w4", normalize=False)))
    ids = [VOCABULARY["[CLS]"], VOCABULARY["w4"], VOCABULARY["[SEP]"]]
    np.testing.assert_allclose(found.rows[0], table()[ids].mean(axis=0), atol=1e-6)


async def test_token_arrays_mean_the_same_as_their_text(tiny_worker, kit) -> None:
    ids = tuple(VOCABULARY[word] for word in ("[CLS]", "w7", "w8", "[SEP]"))
    found = kit.vectors(await tiny_worker.connection.embed(request(ids, "w7 w8", ids[1:2])))
    assert found.rows[0].tobytes() == found.rows[1].tobytes()
    assert found.tokens == (4, 4, 1)
    np.testing.assert_allclose(found.rows[2], table()[ids[1]] / np.linalg.norm(table()[ids[1]]), atol=1e-6)


@pytest.mark.parametrize(
    ("inputs", "error", "param", "words"),
    [
        ((), InvalidRequestError, "input", "empty"),
        (((),), InvalidRequestError, "input", "no tokens"),
        (("w1", ()), InvalidRequestError, "input[1]", "no tokens"),
        (((5, len(VOCABULARY)),), InvalidRequestError, "input", f"Token id {len(VOCABULARY)}"),
        (((-1,),), InvalidRequestError, "input", "Token id -1"),
        (("w1 " * 100,), ContextLengthExceededError, "input", "102 tokens.* 64 tokens"),
        (("w1", "w1 " * 100, "w2"), ContextLengthExceededError, r"input[1]", "102 tokens.* 64 tokens"),
        ((tuple([5] * 65),), ContextLengthExceededError, "input", "65 tokens.* 64 tokens"),
        (("w" * ((1 << 20) + 1),), InvalidRequestError, "input", "1048577 characters"),
    ],
    ids=["none", "no-ids", "no-ids-second", "large-id", "negative-id", "long", "long-second", "long-ids", "huge"],
)
async def test_bad_inputs_are_refused_and_named(tiny_worker, inputs, error, param, words) -> None:
    for call in (tiny_worker.connection.prepare, tiny_worker.connection.embed):
        with pytest.raises(error, match=words) as caught:
            await call(request(*inputs))
        assert caught.value.param == param


async def test_a_long_request_fails_late_with_the_same_error(tiny_worker) -> None:
    """Too many texts to tokenise them before the request is taken."""
    with pytest.raises(ContextLengthExceededError) as caught:
        await tiny_worker.connection.embed(request(*["w1"] * 900, "w1 " * 100, "w1"))
    assert caught.value.param == "input[900]"
    assert (caught.value.prompt_tokens, caught.value.context_tokens) == (102, 64)


async def test_truncation_by_rule(kit, tiny) -> None:
    long = " ".join(f"w{number % 90}" for number in range(100))
    end, start = (" ".join(words) for words in (long.split()[:62], long.split()[-62:]))
    async with kit.launch(tiny) as worker:
        found = kit.vectors(await worker.connection.embed(request(long, "w1", truncate=True)))
        assert found.tokens == (64, 3)
        np.testing.assert_allclose(found.rows[0], mean_vector(end), atol=1e-6)
    async with kit.launch(tiny, options={"truncation": "start"}) as worker:
        found = kit.vectors(await worker.connection.embed(request(long)))
        np.testing.assert_allclose(found.rows[0], mean_vector(start), atol=1e-6)


async def test_dimensions_are_cut_and_normalised_again_where_the_model_allows(kit, tiny) -> None:
    async with kit.launch(tiny, fields={"extra": {"pooling": "mean", "dimensions": [2, 4]}}) as worker:
        assert Feature.DIMENSIONS in worker.info.capabilities.features
        found = kit.vectors(await worker.connection.embed(request("w1 w2", dimensions=4)))
        whole = mean_vector("w1 w2")[:4]
        np.testing.assert_allclose(found.rows[0], whole / np.linalg.norm(whole), atol=1e-6)
        assert kit.vectors(await worker.connection.embed(request("w1", dimensions=WIDTH))).rows.shape == (1, WIDTH)
        for wrong, words in ((3, "one of 2, 4"), (0, "from 1 to 8"), (9, "from 1 to 8")):
            with pytest.raises(InvalidRequestError, match=words):
                await worker.connection.embed(request("w1", dimensions=wrong))


async def test_dimensions_are_refused_where_the_model_was_not_trained_for_it(tiny_worker) -> None:
    with pytest.raises(UnsupportedError) as caught:
        await tiny_worker.connection.embed(request("w1", dimensions=4))
    assert caught.value.feature == "dimensions"


async def test_wrong_tasks_are_refused(tiny_worker) -> None:
    with pytest.raises(UnsupportedError):
        await tiny_worker.connection.rerank(RerankRequest(id="x", model="m", query="w1", documents=("w2",)))


async def test_nan_and_zero_vectors_fail_their_request_only(kit, tmp_path) -> None:
    weights = table()
    weights[VOCABULARY["w10"]] = np.nan
    weights[VOCABULARY["w20"]] = 0
    weights[VOCABULARY["w21"], :4] = 0
    folder = tiny_models.write_encoder(tmp_path / "model", weights=weights)
    ids = (VOCABULARY["w20"],)
    extra = {"pooling": "mean", "matryoshka": True}
    async with kit.launch(folder, fields={"extra": extra}) as worker:
        results = await asyncio.gather(
            worker.connection.embed(request("w1", "w10")),
            worker.connection.embed(request(ids)),
            worker.connection.embed(request((VOCABULARY["w21"],), dimensions=4)),
            worker.connection.embed(request("w1")),
            return_exceptions=True,
        )
        for error, words in zip(results[:3], ("Input 1: .*NaN", "zero vector", "cut to 4"), strict=True):
            assert isinstance(error, EngineFailedError), error
            with pytest.raises(EngineFailedError, match=words):
                raise error
        np.testing.assert_allclose(kit.vectors(results[3]).rows[0], mean_vector("w1"), atol=1e-6)


async def test_order_holds_and_nothing_is_lost_in_ten_thousand_texts(tiny_worker, kit) -> None:
    numbers = random.Random(3)
    texts = [sentence(numbers, 60) for _ in range(10_000)]
    found = kit.vectors(await tiny_worker.connection.embed(request(*texts)))
    np.testing.assert_allclose(found.rows, [mean_vector(text) for text in texts], atol=1e-5)


async def test_many_clients_at_once_each_get_their_own(tiny_worker, kit) -> None:
    numbers = random.Random(4)
    groups = [tuple(sentence(numbers, 50) for _ in range(numbers.randint(1, 40))) for _ in range(64)]
    results = await asyncio.gather(*(tiny_worker.connection.embed(request(*group)) for group in groups))
    for group, result in zip(groups, results, strict=True):
        np.testing.assert_allclose(kit.vectors(result).rows, [mean_vector(text) for text in group], atol=1e-5)
    stats = await tiny_worker.connection.ping()
    assert stats.running == 0
    # Far fewer runs than texts: requests were computed together.
    assert stats.steps < sum(map(len, groups)) / 4


async def test_a_short_request_does_not_wait_for_a_long_one(tiny_worker) -> None:
    numbers = random.Random(5)
    texts = [sentence(numbers, 60) for _ in range(20_000)]
    large = asyncio.create_task(tiny_worker.connection.embed(request(*texts)))
    await tiny_worker.connection.embed(request("w1"))
    assert not large.done()
    await large


async def test_cancelling_forgets_a_request(tiny_worker, kit) -> None:
    asked = request(*["w1 w2 w3 w4 w5"] * 20_000)
    running = asyncio.create_task(tiny_worker.connection.embed(asked))
    await tiny_worker.connection.embed(request("w1"))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await tiny_worker.connection.released(asked.id)
    assert (await tiny_worker.connection.ping()).running == 0
    found = kit.vectors(await tiny_worker.connection.embed(request("w2")))
    np.testing.assert_allclose(found.rows[0], mean_vector("w2"), atol=1e-6)


async def test_threads_may_change_between_steps(tiny_worker, kit) -> None:
    await tiny_worker.connection.set_cpu_threads(2)
    found = kit.vectors(await tiny_worker.connection.embed(request("w2")))
    np.testing.assert_allclose(found.rows[0], mean_vector("w2"), atol=1e-6)


async def test_a_decoder_like_encoder_with_a_prompt(kit, tmp_path) -> None:
    folder = tiny_models.write_decoder(tmp_path / "model")
    async with kit.launch(folder, options={"prompt": "query"}) as worker:
        assert worker.info.details["pooling"] == "last"
        found = kit.vectors(await worker.connection.embed(request("w5 w6", "w7")))
        assert found.tokens == (4, 3)
        positions = np.random.default_rng(8).normal(size=(64, WIDTH)).astype(np.float32)
        for row, word, place in ((0, "w6", 3), (1, "w7", 2)):
            expected = table()[VOCABULARY[word]] + positions[place]
            np.testing.assert_allclose(found.rows[row], expected / np.linalg.norm(expected), atol=1e-6)


async def test_a_text_of_no_tokens_is_refused(kit, tmp_path) -> None:
    async with kit.launch(tiny_models.write_decoder(tmp_path / "model")) as worker:
        with pytest.raises(InvalidRequestError, match="empty") as caught:
            await worker.connection.embed(request("w1", ""))
        assert caught.value.param == "input[1]"


async def test_graphs_of_fixed_shapes_are_filled_up(kit, tmp_path) -> None:
    shapes = {name: [4, 16] for name in ("input_ids", "attention_mask")}
    folder = tiny_models.write_encoder(tmp_path / "model", inputs=shapes)
    async with kit.launch(folder) as worker:
        assert worker.info.context_tokens == 16
        texts = ("w1 w2", "w3", "w4 w5 w6 w7 w8", "w9", "w10", "w11 w12")
        found = kit.vectors(await worker.connection.embed(request(*texts)))
        np.testing.assert_allclose(found.rows, [mean_vector(text) for text in texts], atol=1e-6)
        with pytest.raises(ContextLengthExceededError):
            await worker.connection.embed(request("w1 " * 20))


async def test_free_shapes_can_be_fixed_for_devices_that_need_it(kit, tiny) -> None:
    extra = {"pooling": "mean", "fixed_shape": [2, 24]}
    async with kit.launch(tiny, fields={"extra": extra}) as worker:
        assert worker.info.context_tokens == 24
        texts = ("w1 w2", "w3", "w4 w5 w6 w7 w8")
        found = kit.vectors(await worker.connection.embed(request(*texts)))
        np.testing.assert_allclose(found.rows, [mean_vector(text) for text in texts], atol=1e-6)


async def test_more_vectors_than_an_answer_holds_are_refused_at_once(tiny_worker) -> None:
    many = request(*["w1"] * 1_970_000)
    with pytest.raises(InvalidRequestError, match="at most 1966080 fit"):
        await tiny_worker.connection.embed(many)


async def test_lengths_are_padded_to_those_of_the_model(kit, tiny) -> None:
    extra = {"pooling": "mean", "sequence_lengths": [8, 64], "max_tokens": 64}
    async with kit.launch(tiny, fields={"extra": extra}) as worker:
        texts = ("w1", "w2 w3 w4 w5 w6 w7 w8 w9")
        found = kit.vectors(await worker.connection.embed(request(*texts)))
        np.testing.assert_allclose(found.rows, [mean_vector(text) for text in texts], atol=1e-6)


async def test_exact_means_one_vector_a_text_whatever_runs_beside_it(kit, tmp_path) -> None:
    """The file's activations are quantised over the batch: exact runs each text alone, fast does not and shows it."""
    folder = tiny_models.write_batch_dependent(tmp_path / "model")
    beside = ("w1 w2 w3", "w90 w4 w5")
    for variant, is_exact in (("exact", True), ("fast", False)):
        fields = {"extra": {"pooling": "mean", "variants": {"fast": "model.onnx"}}}
        async with kit.launch(folder, options={"variant": variant}, fields=fields) as worker:
            assert worker.info.details["exact"] is is_exact
            assert worker.info.details["batches"] is not is_exact
            alone = kit.vectors(await worker.connection.embed(request(beside[0])))
            together = kit.vectors(await worker.connection.embed(request(*beside)))
            same = alone.rows[0].tobytes() == together.rows[0].tobytes()
            assert same is is_exact


# --- what must not load ---


async def refused(kit, folder, error, words, **kwargs) -> None:
    with pytest.raises(error, match=words):
        async with kit.launch(folder, **kwargs):
            pass


async def test_a_model_that_tells_nothing_apart_does_not_load(kit, tmp_path) -> None:
    weights = np.ones_like(table())
    folder = tiny_models.write_encoder(tmp_path / "model", weights=weights)
    await refused(kit, folder, UnsupportedModelError, "unlike sentences")


async def test_broken_files_do_not_load(kit, tmp_path, tiny) -> None:
    garbage = tiny_models.write_encoder(tmp_path / "garbage")
    (garbage / "model.onnx").write_bytes(b"no model at all")
    await refused(kit, garbage, UnsupportedModelError, r"model\.onnx")
    cut = tiny_models.write_encoder(tmp_path / "cut")
    whole = (cut / "model.onnx").read_bytes()
    (cut / "model.onnx").write_bytes(whole[: len(whole) // 2])
    await refused(kit, cut, UnsupportedModelError, "cut off")
    words = tiny_models.write_encoder(tmp_path / "words")
    (words / "tokenizer.json").write_text("{}")
    await refused(kit, words, InvalidModelError, "no tokenizer")
    bare = tiny_models.write_encoder(tmp_path / "bare")
    (bare / "tokenizer.json").unlink()
    await refused(kit, bare, InvalidModelError, "needs one")


async def test_options_that_cannot_be_honoured_do_not_load(kit, tiny) -> None:
    await refused(kit, tiny, ModelError, "has no variant 'fast'", options={"variant": "fast"})
    await refused(kit, tiny, UnsupportedPlatformError, "install onnxruntime-gpu", options={"provider": "cuda"})
    await refused(kit, tiny, ModelError, "pooling", fields={"extra": {"pooling": "maximum"}})


async def test_a_graph_that_is_no_encoder_does_not_load(kit, tmp_path) -> None:
    shapes = {"tokens": ["batch", "sequence"]}
    from onnx import helper

    folder = tiny_models.write_encoder(tmp_path / "model")
    tiny_models.save(
        folder / "model.onnx",
        [helper.make_node("Gather", ["table", "tokens"], ["out"])],
        outputs={"out": ["batch", "sequence", WIDTH]},
        weights={"table": table()},
        inputs=shapes,
    )
    await refused(kit, folder, UnsupportedModelError, "no input 'input_ids' but tokens")


async def test_it_uses_the_threads_that_it_is_given(kit, tiny) -> None:
    async with kit.launch(tiny, load_options=LoadOptions(cpu_threads=1)) as worker:
        assert worker.info.details["threads"] == 1
    async with kit.launch(tiny, load_options=LoadOptions(cpu_threads=2), options={"threads": 1}) as worker:
        assert worker.info.details["threads"] == 1
