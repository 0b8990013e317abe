"""ONNX Runtime queues usage data in the user's cache at import; a worker must not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cardcage_platform_onnx.plugin import OnnxPlatform


@pytest.mark.parametrize("module", ["onnxruntime", "onnxruntime_genai"])
def test_a_worker_leaves_nothing_in_the_users_home(tmp_path: Path, module: str) -> None:
    pytest.importorskip(module)
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment.update(OnnxPlatform().worker_environment({}))
    subprocess.run([sys.executable, "-c", f"import {module}"], env=environment, check=True, timeout=50)
    assert list(tmp_path.rglob("*")) == []
