"""A real service over real worker processes of the scripted and faulty engines."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Mapping
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
from cardcage_sdk.capabilities import Capabilities, Task
from cardcage_sdk.chat import ChatRequest, JsonValue, Message, Sampling, TextPart
from cardcage_sdk.errors import CardcageError
from cardcage_sdk.events import ChatEvent, TextDelta
from cardcage_sdk.models import ModelArtifact
from cardcage_sdk.options import PlatformOptions
from cardcage_sdk.platform import Device, MemoryEstimate, Platform, ProbeReport, Recovery, Scaling
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

    async def load(
        self,
        model_id: str,
        name: str,
        *,
        instances: int = 1,
        places: int | None = None,
        options: dict[str, Any] | None = None,
        **members: Any,
    ) -> LoadResult:
        """Write a model file and load it."""
        path = self.write(f"{model_id}.{name}.json", **members)
        return await self.service.load(
            LoadRequest(
                model_id=model_id,
                model_path=str(path),
                instance_count=instances,
                request_queue_size=places,
                options=options or {},
            )
        )

    def store_model(self, name: str, size: str, platform: str = "scripted", **members: Any) -> None:
        """Put a model into the store."""
        directory = self.directory / "store" / platform / "cpu" / f"{name}-{size}"
        directory.mkdir(parents=True)
        file = directory / f"{name}.{platform}.json"
        file.write_text(json.dumps(members), encoding="utf-8")
        (directory / "model.toml").write_text(
            f'schema = 1\nname = "{name}"\nsize = "{size}"\nkind = "chat"\nplatform = "{platform}"\nchips = ["cpu"]\n'
            f'[[files]]\nname = "{file.name}"\nsize_bytes = {file.stat().st_size}\n',
            encoding="utf-8",
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

    async def until(self, condition: Callable[[], object]) -> None:
        """Turn the loop until what another task or process does has happened; the test's time limit is the deadline."""
        while not condition():  # noqa: ASYNC110 - what processes do sets no event here
            await asyncio.sleep(0.002)

    def is_running(self, pid: int) -> bool:
        """A process of this id exists and is no zombie."""
        return is_running(pid)

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


class NarrowOptions(PlatformOptions):
    """See `engines/narrow.py`."""

    delay_seconds: float | None = None
    count_file: str | None = None
    succeed: int | None = None
    gate_file: str | None = None
    die_by: str | None = None
    grandchild_file: str | None = None


class NarrowPlatform(Platform):
    """Instances are processes; memory, bound and recovery are what a test says."""

    name = "narrow"
    engine = "narrow:NarrowEngine"
    capabilities = Capabilities(tasks=frozenset({Task.CHAT}), cancel_seconds=1.0)
    option_model = NarrowOptions
    uses_cpu = True

    def __init__(
        self,
        *,
        host_bytes: int = 1 << 20,
        device_bytes: int = 0,
        devices: tuple[Device, ...] = (),
        scaling: Scaling | None = None,
        recovery: Recovery | None = None,
        report: ProbeReport | None = None,
        name: str = "narrow",
    ) -> None:
        self.need = MemoryEstimate(host_bytes=host_bytes, device_bytes=device_bytes)
        self.report = report or ProbeReport.available(devices=devices)
        self.scaling = scaling or Scaling()  # type: ignore[misc]
        self.name = name  # type: ignore[misc]
        self.offer = recovery
        self.probes = 0

    def probe(self) -> ProbeReport:
        self.probes += 1
        return self.report

    def claims(self, artifact: ModelArtifact) -> bool:
        return artifact.path.name.endswith(".narrow.json")

    def estimate(self, artifact: ModelArtifact, options: Mapping[str, JsonValue]) -> MemoryEstimate:
        return self.need

    def recovery(self, options: Mapping[str, JsonValue], error: CardcageError) -> Recovery | None:
        return self.offer

    @property
    def plugin(self) -> PlatformPlugin:
        """As the registry holds it."""
        return PlatformPlugin(
            name=self.name, platform=self, distribution="test", version="0", plugin_file=str(ENGINES / "narrow.py")
        )


@pytest.fixture
def narrow() -> type[NarrowPlatform]:
    """The platform class of `engines/narrow.py`."""
    return NarrowPlatform


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
