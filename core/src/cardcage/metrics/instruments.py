"""What is counted and timed as it happens. Every metric of this module is in docs/reference/metrics.md; a test compares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import choose_encoder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from prometheus_client import Metric
    from prometheus_client.registry import Collector

    from cardcage_sdk.capabilities import Task
    from cardcage_sdk.events import Finished

__all__ = ["Metrics"]

REQUEST_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
FIRST_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)
WAIT_BUCKETS = (0.001, 0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.1, 0.15, 0.25, 0.5, 1, 2.5)
LOAD_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)


class _WithoutCreated:
    """A registry without the `_created` series that the library adds to each counter and histogram: they double the page."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if sample.name != f"{metric.name}_created"]
            yield metric


class Metrics:
    """The metrics of one application; no global registry is touched.

    Implements `cardcage.service.counters.Observer`. Used in the event loop's thread.

    Labels are bounded: routes are those of the application, statuses HTTP's, and models those that are loaded. A model's
    series are shown once more after it was unloaded, so that no count is lost, and then dropped.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        ProcessCollector(registry=registry)
        self.http_requests = Counter(
            "cardcage_http_requests",
            "HTTP requests and WebSockets that have ended.",
            ["dialect", "route", "method", "status"],
            registry=registry,
        )
        self.http_seconds = Histogram(
            "cardcage_http_request_duration_seconds",
            "From the head of a request to the end of its answer, streams included.",
            ["dialect", "route"],
            buckets=REQUEST_BUCKETS,
            registry=registry,
        )
        self.http_active = Gauge(
            "cardcage_http_requests_active", "HTTP requests and WebSockets that are being answered.", registry=registry
        )
        self._requests = Counter(
            "cardcage_requests", "Model requests that have ended.", ["task", "outcome"], registry=registry
        )
        self._prompt_tokens = Counter(
            "cardcage_prompt_tokens", "Prompt tokens of requests that ended whole.", ["model"], registry=registry
        )
        self._cached_tokens = Counter(
            "cardcage_cached_prompt_tokens",
            "Prompt tokens that did not have to be computed again.",
            ["model"],
            registry=registry,
        )
        self._completion_tokens = Counter(
            "cardcage_completion_tokens", "Generated tokens of requests that ended whole.", ["model"], registry=registry
        )
        self._first_token = Histogram(
            "cardcage_time_to_first_token_seconds",
            "From a request's arrival to the first piece of its answer: load, queue and prefill included.",
            ["model"],
            buckets=FIRST_TOKEN_BUCKETS,
            registry=registry,
        )
        self._per_token = Histogram(
            "cardcage_time_per_output_token_seconds",
            "Decoding time of an answer by its tokens.",
            ["model"],
            buckets=TOKEN_BUCKETS,
            registry=registry,
        )
        self._queue = Histogram(
            "cardcage_queue_wait_seconds",
            "What requests that got an instance had waited for it.",
            ["model"],
            buckets=WAIT_BUCKETS,
            registry=registry,
        )
        self._load = Histogram(
            "cardcage_model_load_seconds",
            "From the start of a worker to the end of its self-test.",
            ["model"],
            buckets=LOAD_BUCKETS,
            registry=registry,
        )
        self._by_model = (
            self._prompt_tokens,
            self._cached_tokens,
            self._completion_tokens,
            self._first_token,
            self._per_token,
            self._queue,
            self._load,
        )
        self._seen_models: set[str] = set()
        self._loaded_models: Callable[[], Collection[str]] = tuple

    def add_state(self, collector: Collector, *, loaded_models: Callable[[], Collection[str]]) -> None:
        """Show what a collector finds at each scrape, and keep series of these models only."""
        self.registry.register(collector)
        self._loaded_models = loaded_models

    def page(self, accept: str) -> tuple[bytes, str]:
        """The page of this moment and its content type, in the newest form that the scraper accepts."""
        encode, content_type = choose_encoder(accept)
        page: bytes = encode(_WithoutCreated(self.registry))
        for model in self._seen_models - set(self._loaded_models()):
            for instrument in self._by_model:
                instrument.remove(model)
            self._seen_models.discard(model)
        return page, content_type

    # --- Observer

    def on_queued(self, model: str, seconds: float) -> None:
        """See `Observer`."""
        self._see(model)
        self._queue.labels(model).observe(seconds)

    def on_first_token(self, model: str, seconds: float) -> None:
        """See `Observer`."""
        self._see(model)
        self._first_token.labels(model).observe(seconds)

    def on_choice(self, model: str, finished: Finished) -> None:
        """See `Observer`."""
        self._see(model)
        usage, timings = finished.usage, finished.timings
        if usage is None:
            return
        self._completion_tokens.labels(model).inc(usage.completion_tokens)
        # The choices of a request have one prompt.
        if finished.choice == 0:
            self._prompt_tokens.labels(model).inc(usage.prompt_tokens)
            self._cached_tokens.labels(model).inc(usage.cached_tokens or 0)
        if timings is not None and timings.decode_seconds is not None and usage.completion_tokens > 1:
            self._per_token.labels(model).observe(timings.decode_seconds / usage.completion_tokens)

    def on_prompt(self, model: str, tokens: int) -> None:
        """See `Observer`."""
        self._see(model)
        self._prompt_tokens.labels(model).inc(tokens)

    def on_end(self, task: Task, outcome: str) -> None:
        """See `Observer`."""
        self._requests.labels(task.value, outcome).inc()

    def on_loaded(self, model: str, seconds: float) -> None:
        """See `Observer`."""
        self._see(model)
        self._load.labels(model).observe(seconds)

    def _see(self, model: str) -> None:
        """Begin all series of a model at zero, so that a rate is right from its first request on."""
        if model not in self._seen_models:
            self._seen_models.add(model)
            for instrument in self._by_model:
                instrument.labels(model)
