import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

# `hubs` and `pulling` are plain modules beside these tests; importlib mode puts no folder on the path by itself.
sys.path.insert(0, str(Path(__file__).parent))

from hubs import Hub, running_hub
from pulling import Pulls


@pytest.fixture
def hubs() -> Iterator[dict[str, Hub]]:
    with running_hub() as huggingface, running_hub() as modelscope, running_hub() as ollama:
        yield {"huggingface": huggingface, "modelscope": modelscope, "ollama": ollama}


@pytest.fixture
async def pulls(tmp_path: Path, hubs: dict[str, Hub]) -> AsyncIterator[Pulls]:
    store = tmp_path / "store"
    store.mkdir()
    made = Pulls(store, hubs)
    yield made
    for library in made.opened:
        await library.close()
