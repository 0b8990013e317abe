"""A real service over real worker processes of the scripted and faulty engines."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cardcage.catalog import Catalog
from cardcage.config import Config, SchedulingConfig, SecurityConfig, ServerConfig
from cardcage.plugins.records import PlatformPlugin
from cardcage.plugins.registry import PluginRegistry
from cardcage.scheduling.plan import RestartPolicy
from cardcage.service import ModelService
from cardcage.workers.memory import MemoryReader
from cardcage.workers.settings import SupervisionSettings
from cardcage.workers.supervisor import Supervisor
from cardcage_sdk.chat import ChatRequest, Message, Sampling, TextPart
from cardcage_sdk.events import ChatEvent, TextDelta
from cardcage_sdk.platform import Platform
from cardcage_sdk.service import LoadRequest, LoadResult
from cardcage_sdk.testing.platforms import FaultyBatchPlatform, FaultyPlatform, ScriptedBatchPlatform, ScriptedPlatform

ENGINES = Path(__file__).parent.parent / "engines"


@dataclass
class Cage:
    """A service with what a test needs beside it."""

    service: ModelService
    supervisor: Supervisor
    directory: Path
    numbers: itertools.count[int]

    def write(self, name: str, **members: Any) -> Path:
        """Write a model file, as `hello.scripted.json`."""
        path = self.directory / name
        path.write_text(json.dumps(members), encoding="utf-8")
        return path

    async def load(self, model_id: str, name: str, *, instances: int = 1, places: int | None = None, **members: Any) -> LoadResult:
        """Write a model file and load it."""
        path = self.write(f"{model_id}.{name}.json", **members)
        return await self.service.load(
            LoadRequest(model_id=model_id, model_path=str(path), instance_count=instances, request_queue_size=places)
        )

    def request(self, model: str, text: str = "hello", **fields: Any) -> ChatRequest:
        """A chat request with an id of its own."""
        sampling = fields.pop("sampling", Sampling())
        return ChatRequest(
            id=f"r{next(self.numbers)}",
            model=model,
            messages=(Message(role="user", content=(TextPart(text),)),),
            sampling=sampling,
            **fields,
        )

    async def events(self, request: ChatRequest) -> list[ChatEvent]:
        """All events of a request."""
        return [event async for event in self.service.chat(request)]

    async def text(self, model: str, text: str = "hello", **fields: Any) -> str:
        """The whole answer."""
        return text_of(await self.events(self.request(model, text, **fields)))

    def pids(self, model: str) -> list[int]:
        """Worker processes of a model."""
        return [pid for pid, owner in self.service.worker_pids.items() if owner == model]


def text_of(events: list[ChatEvent]) -> str:
    """The answer's text."""
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def children() -> list[int]:
    """Child processes of this process, zombies included."""
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        found += [int(pid) for pid in (task / "children").read_text().split()]
    return found


def is_running(pid: int) -> bool:
    """A process of this id exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


CageMaker = Callable[..., Cage]


@pytest.fixture
async def make_cage(tmp_path: Path) -> AsyncIterator[CageMaker]:
    """Make services; at the end all are stopped, and no process, zombie or lease may be left."""
    made: list[Cage] = []

    def make(
        *platforms: Platform,
        plugins: tuple[PlatformPlugin, ...] = (),
        supervision: dict[str, Any] | None = None,
        memory: MemoryReader | None = None,
        cores: int | None = None,
        **settings: Any,
    ) -> Cage:
        bound = platforms or (ScriptedPlatform(), ScriptedBatchPlatform(), FaultyPlatform(), FaultyBatchPlatform())
        registry = PluginRegistry(
            platforms=[
                *(PlatformPlugin(name=one.name, platform=one, distribution="test", version="0") for one in bound),
                *plugins,
            ]
        )
        store = tmp_path / "store"
        store.mkdir(exist_ok=True)
        config = Config(
            store=store,
            data_dir=tmp_path / "data",
            server=ServerConfig(**settings.pop("server", {})),
            scheduling=SchedulingConfig(**settings.pop("scheduling", {})),
            security=SecurityConfig(**settings.pop("security", {})),
            **settings,
        )
        quick = {"restart": RestartPolicy(first_delay_seconds=0.01, max_delay_seconds=0.05), **(supervision or {})}
        supervisor = Supervisor(SupervisionSettings(**quick), memory=memory, cores=cores)
        cage = Cage(
            service=ModelService(config=config, registry=registry, catalog=Catalog(store), supervisor=supervisor),
            supervisor=supervisor,
            directory=tmp_path,
            numbers=itertools.count(1),
        )
        made.append(cage)
        return cage

    yield make
    for cage in made:
        await cage.service.stop()
        assert cage.service.active_requests == 0
        assert cage.service.models() == []
        assert cage.supervisor.workers == ()
    assert children() == []


@pytest.fixture
def cage(make_cage: CageMaker) -> Cage:
    """A service with default settings."""
    return make_cage()
