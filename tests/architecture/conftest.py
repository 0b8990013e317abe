import sys
from pathlib import Path

# `workspace` is a plain module beside these tests; importlib mode puts no folder on the path by itself.
sys.path.insert(0, str(Path(__file__).parent))
