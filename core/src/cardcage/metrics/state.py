"""What is read from the server at each scrape: models, workers, versions."""

from __future__ import annotations

import os
import platform
from collections import Counter
from importlib import metadata
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from prometheus_client import Metric

    from cardcage.service.counters import Observer
    from cardcage.workers.supervisor import WorkerCounters
    from cardcage_sdk.service import ModelStatus

__all__ = ["ObservableService", "ServerState", "resident_bytes"]


@runtime_checkable
class ObservableService(Protocol):
    """What the real service tells beyond `Service`. All is read in the event loop's thread."""

    @property
    def worker_counters(self) -> WorkerCounters:
        """Starts, crashes and hangs of workers since start."""
        ...

    @property
    def worker_pids(self) -> Mapping[int, str]:
        """Process id of every live worker, with its model's id."""
        ...

    def observe(self, observer: Observer) -> None:
        """Tell this observer from now on what happens to requests and loads."""
        ...


class ServerState(Collector):
    """Made anew at each scrape from what the service says then."""

    def __init__(self, *, models: Callable[[], Sequence[ModelStatus]], service: ObservableService | None) -> None:
        """Take what is asked.

        Args:
            models: The loaded models.
            service: Tells of workers; None (a service that is not core's own) leaves them out.
        """
        self._models = models
        self._service = service

    def describe(self) -> Iterator[Metric]:
        """Names without values, so that registering asks no service."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        """One scrape."""
        yield _build_info()
        yield from self._of_models()
        if self._service is not None:
            yield from _of_events(self._service.worker_counters)
            yield from _of_processes(self._service.worker_pids)

    def _of_models(self) -> Iterator[Metric]:
        info = GaugeMetricFamily(
            "cardcage_model_info", "1 for each loaded model.", labels=["model", "name", "platform", "kind"]
        )
        instances = GaugeMetricFamily("cardcage_model_instances", "Instances that can serve now.", labels=["model"])
        requested = GaugeMetricFamily(
            "cardcage_model_requested_instances", "Instances that were asked for.", labels=["model"]
        )
        running = GaugeMetricFamily(
            "cardcage_model_requests_running", "Requests that hold an instance.", labels=["model"]
        )
        queued = GaugeMetricFamily(
            "cardcage_model_requests_queued", "Requests that wait for an instance or for the load.", labels=["model"]
        )
        places = GaugeMetricFamily(
            "cardcage_model_queue_places", "Requests that may wait before others are refused.", labels=["model"]
        )
        for status in self._models():
            info.add_metric([status.id, status.name, status.platform, status.kind], 1)
            instances.add_metric([status.id], status.instance_count)
            requested.add_metric([status.id], status.requested_instance_count)
            running.add_metric([status.id], status.running)
            queued.add_metric([status.id], status.queued)
            places.add_metric([status.id], status.request_queue_size)
        yield from (info, instances, requested, running, queued, places)


def _build_info() -> Metric:
    info = GaugeMetricFamily(
        "cardcage_build_info", "1, with the versions of what runs.", labels=["version", "sdk_version", "python_version"]
    )
    info.add_metric([metadata.version("cardcage"), metadata.version("cardcage-sdk"), platform.python_version()], 1)
    return info


def _of_events(counters: WorkerCounters) -> Iterator[Metric]:
    for name, text, value in (
        ("starts", "Worker processes that were started.", counters.started),
        ("start_failures", "Workers that ended, or were ended, before they were ready.", counters.failed_before_ready),
        ("crashes", "Ready workers that died by themselves.", counters.crashed),
        ("hangs", "Ready workers that were ended because nothing moved.", counters.hung),
        (
            "overdue_cancels",
            "Workers that were ended because they kept a cancelled request.",
            counters.cancel_overdue,
        ),
        ("restarts", "Workers that took the place of one that had died.", counters.replaced),
    ):
        yield CounterMetricFamily(f"cardcage_worker_{name}", text, value=value)


def _of_processes(pids: Mapping[int, str]) -> Iterator[Metric]:
    count: Counter[str] = Counter()
    memory: Counter[str] = Counter()
    for pid, model in pids.items():
        count[model] += 1
        memory[model] += resident_bytes(pid)
    workers = GaugeMetricFamily(
        "cardcage_workers", "Worker processes, those that are loading included.", labels=["model"]
    )
    resident = GaugeMetricFamily(
        "cardcage_worker_resident_memory_bytes", "Resident memory of a model's workers, added up.", labels=["model"]
    )
    for model in count:
        workers.add_metric([model], count[model])
        resident.add_metric([model], memory[model])
    yield from (workers, resident)


def resident_bytes(pid: int) -> int:
    """Resident memory of a process in bytes; 0 where it has just ended."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as statm:
            pages = int(statm.read().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
