"""The platform of the README is whole, and passes the kit unchanged, as an outsider runs it."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"

TEST = """
import sys
sys.path.insert(0, {directory!r})
from cardcage_sdk.testing import PlatformSuite
from reverse_platform import ReversePlatform

class TestReverse(PlatformSuite):
    platform = ReversePlatform
    model = {model!r}
"""


def test_the_readme_s_platform_passes_the_kit(tmp_path: Path) -> None:
    platform, *_ = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "reverse_platform.py").write_text(platform, encoding="utf-8")
    model = tmp_path / "hello.reverse"
    model.write_text("x")
    (tmp_path / "test_reverse.py").write_text(TEST.format(directory=str(tmp_path), model=str(model)))
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:asyncio",
            str(tmp_path / "test_reverse.py"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    assert " passed" in run.stdout
