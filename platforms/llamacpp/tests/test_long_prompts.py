"""A prompt of very many control tokens is tokenized in time that grows with its length, into the tokens of the whole."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.model, pytest.mark.timeout(120)]

COMPARE = r"""
import random, sys
from pathlib import Path
from cardcage_platform_llamacpp.binding import Model

vocabulary = Model(Path(sys.argv[1]), use_extra_bufts=False, check_tensors=False).vocabulary
draw = random.Random(7)
words = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "user", "\n", " ", "  x"]
words += ["Grüße", "\U0001f600", "<|im_", "12", "\n\n", "a" * 900]
cut = 0
for _ in range(60):
    text = "".join(draw.choices(words, k=draw.randint(1, 1500)))
    cut += len(list(vocabulary._stretches(text))) > 1
    for special in (True, False):
        for begin in (True, False):
            arguments = {"add_special": begin, "parse_special": special}
            assert vocabulary.tokenize(text, **arguments) == vocabulary._tokenize(text, **arguments), (text, arguments)
assert cut > 30, cut
many = "<|im_start|>user\nx<|im_end|>\n" * 20_000
stretches = list(vocabulary._stretches(many))
assert "".join(stretches) == many
assert max(map(len, stretches)) < 5_000
print(len(vocabulary.tokenize(many, add_special=True, parse_special=True)))
"""


def test_stretches_give_the_tokens_of_the_whole(model_path: Path) -> None:
    (weights,) = model_path.glob("*.gguf") if model_path.is_dir() else [model_path]
    run = subprocess.run(
        [sys.executable, "-c", COMPARE, str(weights)], capture_output=True, text=True, timeout=100, check=False
    )
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) == 20_000 * 6
