"""The server itself is killed: nothing of it may stay."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

SERVER = """
import asyncio, json, sys
from pathlib import Path
from cardcage.catalog import Catalog
from cardcage.config import Config
from cardcage.plugins.registry import PluginRegistry
from cardcage.service import ModelService
from cardcage_sdk.chat import ChatRequest, Message, TextPart
from cardcage_sdk.service import LoadRequest
from cardcage_sdk.testing.platforms import FaultyPlatform

async def main():
    home = Path(sys.argv[1])
    config = Config(store=home, data_dir=home)
    service = ModelService(config=config, registry=PluginRegistry.of(FaultyPlatform()), catalog=Catalog(home))
    await service.load(LoadRequest(model_id="m", model_path=str(home / "m.faulty.json")))
    print(json.dumps(list(service.worker_pids)), file=sys.stderr, flush=True)
    message = Message(role="user", content=(TextPart("go"),))
    async for _ in service.chat(ChatRequest(id="r", model="m", messages=(message,))):
        print("an event", file=sys.stderr, flush=True)

asyncio.run(main())
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("kind", ["hang", "hang_gil"])
async def test_a_worker_that_hangs_dies_with_its_server(tmp_path, kind):
    (tmp_path / "m.faulty.json").write_text(f'{{"kind": "{kind}", "phase": "decode", "after_tokens": 2}}')
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVER, str(tmp_path), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    assert server.stderr is not None
    pids = []
    while (line := await server.stderr.readline()) != b"an event\n":
        assert line, "the server ended early"
        if line.startswith(b"["):
            pids = [int(word) for word in line.strip(b"[]\n").split(b",")]
    assert len(pids) == 1
    assert is_running(pids[0])
    server.send_signal(signal.SIGKILL)
    await server.wait()
    while is_running(pids[0]):  # noqa: ASYNC110 - the kernel sets no event here
        await asyncio.sleep(0.002)
