from __future__ import annotations

import json

import pytest
import tiny_models

from cardcage_platform_onnx.encoder_config import read_encoder_config
from cardcage_platform_onnx.model_files import find_model
from cardcage_platform_onnx.onnx_header import OnnxHeaderError, read_onnx_header
from cardcage_platform_onnx.plugin import OnnxPlatform
from cardcage_platform_onnx.settings import Settings, merge_settings
from cardcage_sdk.errors import InvalidModelError, UnsupportedModelError

PLATFORM = OnnxPlatform()


# --- claims and variants ---


def put(folder, *names: str) -> None:
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"{}")


@pytest.mark.parametrize(
    ("names", "claimed"),
    [
        (("model.onnx", "tokenizer.json"), True),
        (("onnx/model.onnx", "tokenizer.json", "config.json"), True),
        (("genai_config.json", "model.onnx", "model.onnx.data"), True),
        (("model.onnx",), False),
        (("encoder.onnx", "decoder.onnx", "vocabulary.json"), False),
        (("onnx/encoder_model.onnx", "onnx/decoder_model_merged.onnx", "tokenizer.json"), False),
        (("model.gguf", "tokenizer.json"), False),
        (("openvino_model.xml", "openvino_model.bin", "tokenizer.json"), False),
    ],
)
def test_claims(kit, tmp_path, names, claimed) -> None:
    put(tmp_path, *names)
    assert PLATFORM.claims(kit.artifact_of(tmp_path)) is claimed


def test_a_single_file_with_its_tokenizer_beside_it_is_claimed(kit, tmp_path) -> None:
    put(tmp_path, "any.onnx", "tokenizer.json")
    artifact = kit.artifact_of(tmp_path, path=tmp_path / "any.onnx", files=kit.artifact_of(tmp_path).files[:1])
    assert PLATFORM.claims(artifact)
    assert find_model(artifact).onnx_file("exact") == tmp_path / "any.onnx"


@pytest.mark.parametrize(
    ("names", "extra", "variants"),
    [
        (("model.onnx",), {}, {"exact": "model.onnx"}),
        (("only.onnx",), {}, {"exact": "only.onnx"}),
        (
            ("onnx/model.onnx", "onnx/model_quantized.onnx"),
            {},
            {"exact": "onnx/model.onnx", "fast": "onnx/model_quantized.onnx"},
        ),
        (("model.onnx", "model_fast.onnx"), {}, {"exact": "model.onnx", "fast": "model_fast.onnx"}),
        (("model.onnx", "model_qint8_avx512.onnx"), {}, {"exact": "model.onnx", "fast": "model_qint8_avx512.onnx"}),
        (("model_quantized.onnx",), {}, {"exact": "model_quantized.onnx", "fast": "model_quantized.onnx"}),
        (("a.onnx", "b.onnx"), {"model_file": "b.onnx"}, {"exact": "b.onnx"}),
        (
            ("a.onnx", "b.onnx"),
            {"model_file": "b.onnx", "variants": {"half": "a.onnx"}},
            {"exact": "b.onnx", "half": "a.onnx"},
        ),
    ],
)
def test_variants(kit, tmp_path, names, extra, variants) -> None:
    put(tmp_path, "tokenizer.json", *names)
    found = find_model(kit.artifact_of(tmp_path, extra=extra))
    assert {name: file.relative_to(tmp_path).as_posix() for name, file in found.variants.items()} == variants
    assert next(iter(found.variants)) == "exact"


@pytest.mark.parametrize(
    ("names", "extra", "words"),
    [
        (("a.onnx", "b.onnx"), {}, "Which ONNX file"),
        (("a.onnx",), {"model_file": "../a.onnx"}, "model.toml names"),
        (("a.onnx",), {"variants": {"fast": "/etc/passwd"}}, "model.toml names"),
        (("a.onnx",), {"variants": ["a.onnx"]}, "table of file names"),
    ],
)
def test_what_cannot_be_decided_is_said(kit, tmp_path, names, extra, words) -> None:
    put(tmp_path, "tokenizer.json", *names)
    with pytest.raises(InvalidModelError, match=words):
        find_model(kit.artifact_of(tmp_path, extra=extra))


def test_an_unknown_variant_names_those_that_are_there(kit, tmp_path) -> None:
    put(tmp_path, "tokenizer.json", "model.onnx", "model_fast.onnx")
    with pytest.raises(InvalidModelError, match="exact, fast"):
        find_model(kit.artifact_of(tmp_path)).onnx_file("half")


# --- settings ---


def test_options_win_over_model_toml_and_silence_does_not() -> None:
    settings = merge_settings(
        {
            "variant": "fast",
            "batch_tokens": 128,
            "provider_options": {"a": True, "b": 3},
            "unknown": 1,
            "provider": "cpu",
        },
        {"variant": None, "batch_tokens": 256},
    )
    assert settings == Settings(
        variant="fast", batch_tokens=256, provider="cpu", provider_options={"a": "True", "b": "3"}
    )


@pytest.mark.parametrize(
    "extra",
    [
        {"max_tokens": "many"},
        {"max_tokens": 0},
        {"max_tokens": True},
        {"pooling": "max"},
        {"matryoshka": 1},
        {"dimensions": [64, "x"]},
        {"provider_options": {"a": []}},
        {"truncation": 3},
        {"fixed_shape": [1]},
        {"fixed_shape": [0, 8]},
        {"provider_options": {"a": "b"}},
    ],
)
def test_wrong_values_of_model_toml_are_named(extra) -> None:
    with pytest.raises(InvalidModelError, match=next(iter(extra))):
        merge_settings(extra, {})


def test_the_option_model_takes_what_the_settings_know() -> None:
    assert PLATFORM.option_model is not None
    fields = set(PLATFORM.option_model.model_fields)
    assert fields <= set(Settings.__dataclass_fields__)
    assert merge_settings({}, PLATFORM.option_model().model_dump(mode="json")) == Settings()


# --- what the model's own files say ---


def config(kit, folder, settings: Settings = Settings(), **fields):  # noqa: B008  Frozen.
    return read_encoder_config(folder, kit.artifact_of(folder, **fields), settings)


def test_sentence_transformers_files(kit, tmp_path) -> None:
    folder = tiny_models.write_decoder(tmp_path)
    found = config(kit, folder)
    assert (found.pooling, found.max_tokens, found.prefix) == ("last", 32, "")
    assert config(kit, folder, Settings(prompt="query")).prefix == "w1 w2 "
    assert config(kit, folder, Settings(prefix="said: ")).prefix == "said: "
    with pytest.raises(InvalidModelError, match="query, document"):
        config(kit, folder, Settings(prompt="passage"))


def test_a_pipeline_that_goes_on_is_refused_unless_the_graph_does_it(kit, tmp_path) -> None:
    folder = tiny_models.write_decoder(tmp_path)
    modules = json.loads((folder / "modules.json").read_text())
    modules.insert(2, {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"})
    (folder / "modules.json").write_text(json.dumps(modules))
    found = config(kit, folder)
    assert found.check_pipeline(is_pooled=True) == "none"
    with pytest.raises(UnsupportedModelError, match="Dense"):
        found.check_pipeline(is_pooled=False)


def test_pooling_is_never_guessed(kit, tmp_path) -> None:
    folder = tiny_models.write_encoder(tmp_path, pooling=None)
    with pytest.raises(InvalidModelError, match="Give the option pooling"):
        config(kit, folder).check_pipeline(is_pooled=False)
    assert config(kit, folder, Settings(pooling="cls")).check_pipeline(is_pooled=False) == "cls"


@pytest.mark.parametrize(
    "pooling",
    [
        {"pooling_mode_max_tokens": True},
        {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
        {"pooling_mode": "max"},
    ],
)
def test_pooling_that_is_not_known_is_refused(kit, tmp_path, pooling) -> None:
    folder = tiny_models.write_decoder(tmp_path)
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
    with pytest.raises(UnsupportedModelError, match="not known here"):
        config(kit, folder)


@pytest.mark.parametrize(
    ("files", "fields", "settings", "expected"),
    [
        ({}, {}, Settings(), 512),
        ({"config.json": {"max_position_embeddings": 300}}, {}, Settings(), 300),
        ({"config.json": {"max_position_embeddings": 514, "model_type": "xlm-roberta"}}, {}, Settings(), 512),
        ({"tokenizer_config.json": {"model_max_length": 1000000000000000019884624838656}}, {}, Settings(), 512),
        (
            {"tokenizer_config.json": {"model_max_length": 8192}, "config.json": {"max_position_embeddings": 2048}},
            {},
            Settings(),
            2048,
        ),
        ({"sentence_bert_config.json": {"max_seq_length": 256}}, {}, Settings(), 256),
        ({"sentence_bert_config.json": {"max_seq_length": 256}}, {"context_tokens": 128}, Settings(), 128),
        ({"sentence_bert_config.json": {"max_seq_length": 256}}, {"context_tokens": 128}, Settings(max_tokens=64), 64),
    ],
)
def test_longest_input(kit, tmp_path, files, fields, settings, expected) -> None:  # noqa: PLR0917  A table's columns.
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert config(kit, tmp_path, settings, **fields).max_tokens == expected


def test_broken_files_are_named(kit, tmp_path) -> None:
    (tmp_path / "config.json").write_text("[1")
    with pytest.raises(InvalidModelError, match=r"config\.json"):
        config(kit, tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "modules.json").write_text('[{"type": "x.Pooling", "path": "../elsewhere"}]')
    with pytest.raises(InvalidModelError, match="leads out"):
        config(kit, tmp_path)


# --- ONNX files without a library ---


def test_header_of_a_file_made_with_onnx(tmp_path) -> None:
    header = read_onnx_header(tiny_models.write_reranker(tmp_path) / "model.onnx")
    assert [shape.name for shape in header.inputs] == ["input_ids", "attention_mask", "token_type_ids"]
    assert [shape.dimensions for shape in header.inputs] == [(None, None)] * 3
    assert [shape.symbols for shape in header.inputs] == [("batch", "sequence")] * 3
    assert [(shape.name, shape.dimensions) for shape in header.outputs] == [("logits", (None, 1))]
    assert {"Gather", "ReduceSum", "MatMul"} <= header.operators
    table = tiny_models.table()
    assert header.parameter_count == table.size + 5
    assert header.weight_bytes == table.nbytes + 4 + 3 * 8 + 4
    assert not header.quantises_activations


def test_header_of_fixed_shapes_and_of_quantised_activations(tmp_path) -> None:
    fixed = tiny_models.write_encoder(tmp_path / "a", inputs={"input_ids": [4, 16], "attention_mask": [4, 16]})
    assert read_onnx_header(fixed / "model.onnx").inputs[0].dimensions == (4, 16)
    dependent = tiny_models.write_batch_dependent(tmp_path / "b")
    assert read_onnx_header(dependent / "model.onnx").quantises_activations


def test_header_of_the_real_model(minilm) -> None:
    header = read_onnx_header(minilm / "model.onnx")
    assert header.parameter_count == 22_617_680
    assert header.int8_elements == 22_533_888
    # onnxruntime unfolds the 8-bit weights: the estimate must count them as float32.
    assert header.loaded_weight_bytes == pytest.approx(4 * header.parameter_count, rel=0.01)


@pytest.mark.parametrize("content", [b"", b"not an onnx file at all", b"\x00" * 64, b"\x3a\xff\xff\xff\xff\x0f"])
def test_what_is_no_onnx_file_is_an_error(tmp_path, content) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(content)
    with pytest.raises(OnnxHeaderError):
        read_onnx_header(file)


def test_every_cut_of_a_file_is_an_error_or_a_header(tmp_path) -> None:
    """Whatever a download left of it: never another exception, never a hang."""
    whole = (tiny_models.write_reranker(tmp_path) / "model.onnx").read_bytes()
    file = tmp_path / "cut.onnx"
    for length in range(0, len(whole), 37):
        file.write_bytes(whole[:length])
        with pytest.raises(OnnxHeaderError):
            read_onnx_header(file)


def test_estimate_counts_weights_and_a_fixed_part(kit, minilm, tmp_path) -> None:
    estimate = PLATFORM.estimate(kit.artifact_of(minilm), {})
    assert estimate.device_bytes == 0
    assert 150 << 20 < estimate.host_bytes < 400 << 20
    put(tmp_path, "tokenizer.json", "a.onnx", "b.onnx")  # cannot be decided, yet an estimate must not raise
    assert PLATFORM.estimate(kit.artifact_of(tmp_path), {}).host_bytes > 0
