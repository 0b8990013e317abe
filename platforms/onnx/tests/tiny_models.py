"""Small real models for the tests, made with `onnx` and `tokenizers`: every number in them is known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

WORDS = [f"w{number}" for number in range(96)]
ENGLISH = [
    "the",
    "calm",
    "sea",
    "is",
    "today",
    "a",
    "train",
    "leaves",
    "at",
    "noon",
]  # what the conformance suite asks a reranker about
VOCABULARY = {word: place for place, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS, *ENGLISH])}
WIDTH = 8
OPSET = 17


def table(width: int = WIDTH) -> np.ndarray:
    """Embedding table, float32, shape (vocabulary, width); a token's vector."""
    return np.random.default_rng(7).normal(size=(len(VOCABULARY), width)).astype(np.float32)


def tokenizer(*, special: bool = True, padding: bool = True) -> Tokenizer:
    """Words in lower case; like MiniLM's file it has fixed padding and a truncation baked in."""
    made = Tokenizer(models.WordLevel(VOCABULARY, unk_token="[UNK]"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    if special:
        made.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", VOCABULARY["[CLS]"]), ("[SEP]", VOCABULARY["[SEP]"])],
        )
    if padding:
        made.enable_padding(length=12)
        made.enable_truncation(12)
    return made


def save(
    path: Path,
    nodes: Sequence[Any],
    *,
    outputs: dict[str, Sequence[Any]],
    weights: dict[str, np.ndarray],
    inputs: dict[str, Sequence[Any]] | None = None,
    float_inputs: dict[str, Sequence[Any]] | None = None,
) -> None:
    """Write a graph; dimensions that are texts are free."""
    named = inputs or {name: ["batch", "sequence"] for name in ("input_ids", "attention_mask")}
    graph = helper.make_graph(
        list(nodes),
        "tiny",
        [helper.make_tensor_value_info(name, TensorProto.INT64, list(shape)) for name, shape in named.items()]
        + [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))
            for name, shape in (float_inputs or {}).items()
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)) for name, shape in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
    onnx.checker.check_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())


def write_encoder(
    folder: Path,
    *,
    pooling: str | None = "mean",
    max_tokens: int | None = 64,
    weights: np.ndarray | None = None,
    file: str = "model.onnx",
    special: bool = True,
    inputs: dict[str, Sequence[Any]] | None = None,
) -> Path:
    """A model directory: each token's vector is its row of the table."""
    save(
        folder / file,
        [helper.make_node("Gather", ["table", "input_ids"], ["last_hidden_state"])],
        outputs={"last_hidden_state": ["batch", "sequence", WIDTH]},
        weights={"table": table() if weights is None else weights},
        inputs=inputs,
    )
    tokenizer(special=special).save(str(folder / "tokenizer.json"))
    lines = [f'pooling = "{pooling}"'] if pooling else []
    lines += [f"max_tokens = {max_tokens}"] if max_tokens else []
    (folder / "model.toml").write_text("\n".join(["[onnx]", *lines, ""]))
    return folder


def write_batch_dependent(folder: Path) -> Path:
    """Its vectors depend on the batch, as those of 8-bit activations do: everything is scaled by the batch's largest value."""
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        helper.make_node("DynamicQuantizeLinear", ["rows"], ["quantised", "scale", "zero"]),
        helper.make_node("DequantizeLinear", ["quantised", "scale", "zero"], ["last_hidden_state"]),
    ]
    weights = table()
    weights[VOCABULARY["w90"]] *= 20  # a batch with this word in it is quantised far more coarsely
    shapes = {"last_hidden_state": ["batch", "sequence", WIDTH]}
    save(folder / "model.onnx", nodes, outputs=shapes, weights={"table": weights})
    tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "model.toml").write_text('[onnx]\npooling = "mean"\n')
    return folder


def write_decoder(folder: Path) -> Path:
    """As exporters write decoder-like encoders: positions, an empty cache, pooling of the last token from the files."""
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        helper.make_node("Gather", ["positions", "position_ids"], ["places"]),
        helper.make_node("Add", ["rows", "places"], ["summed"]),
        # The cache must be empty: its length is added to everything.
        helper.make_node("Shape", ["past_key_values.0.key"], ["shape"], start=2, end=3),
        helper.make_node("Cast", ["shape"], ["length"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["summed", "length"], ["last_hidden_state"]),
    ]
    whole = {name: ["batch", "sequence"] for name in ("input_ids", "attention_mask", "position_ids")}
    positions = np.random.default_rng(8).normal(size=(64, WIDTH)).astype(np.float32)
    save(
        folder / "onnx/model.onnx",
        nodes,
        outputs={"last_hidden_state": ["batch", "sequence", WIDTH]},
        weights={"table": table(), "positions": positions},
        inputs=whole,
        float_inputs={"past_key_values.0.key": ["batch", 2, "past", 4]},
    )
    tokenizer(special=False).save(str(folder / "tokenizer.json"))
    (folder / "modules.json").write_text(
        json.dumps(
            [
                {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
                {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
                {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
            ]
        )
    )
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(
        json.dumps({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False})
    )
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 32}))
    (folder / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": {"query": "w1 w2 ", "document": ""}, "default_prompt_name": None})
    )
    return folder


def write_reranker(folder: Path, *, labels: int = 1) -> Path:
    """Scores by the product of the summed vectors of query and document, the part after the first separator."""
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["token_type_ids"], ["second"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["one", "second"], ["first"]),
        helper.make_node("Mul", ["first", "mask"], ["of_query"]),
        helper.make_node("Mul", ["second", "mask"], ["of_document"]),
        helper.make_node("Unsqueeze", ["of_query", "axis"], ["query_weights"]),
        helper.make_node("Unsqueeze", ["of_document", "axis"], ["document_weights"]),
        helper.make_node("Mul", ["rows", "query_weights"], ["query_rows"]),
        helper.make_node("Mul", ["rows", "document_weights"], ["document_rows"]),
        helper.make_node("ReduceSum", ["query_rows", "tokens"], ["query"], keepdims=0),
        helper.make_node("ReduceSum", ["document_rows", "tokens"], ["document"], keepdims=0),
        helper.make_node("Mul", ["query", "document"], ["product"]),
        helper.make_node("ReduceSum", ["product", "width"], ["score"], keepdims=1),
        helper.make_node("MatMul", ["score", "head"], ["logits"]),
    ]
    special = table()
    special[[VOCABULARY[name] for name in ("[PAD]", "[CLS]", "[SEP]")]] = 0  # only words count, unknown ones too
    head = {1: [[0.05]], 2: [[0.0, 0.05]], 3: [[0.0, 0.05, 0.1]]}[labels]
    save(
        folder / "model.onnx",
        nodes,
        outputs={"logits": ["batch", labels]},
        weights={
            "table": special,
            "one": np.array(1.0, np.float32),
            "axis": np.array([2], np.int64),
            "tokens": np.array([1], np.int64),
            "width": np.array([1], np.int64),
            "head": np.array(head, np.float32),
        },
        inputs={name: ["batch", "sequence"] for name in ("input_ids", "attention_mask", "token_type_ids")},
    )
    tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "model.toml").write_text("[onnx]\nmax_tokens = 16\n")
    return folder


def mean_vector(text: str) -> np.ndarray:
    """What `write_encoder` must answer: the normalised mean over the words and both special tokens."""
    ids = [VOCABULARY["[CLS]"], *[VOCABULARY.get(word, 1) for word in text.split()], VOCABULARY["[SEP]"]]
    mean = table()[ids].mean(axis=0)
    return np.asarray(mean / np.linalg.norm(mean))
