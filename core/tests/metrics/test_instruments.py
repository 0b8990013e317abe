from __future__ import annotations

import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

from cardcage.metrics import Metrics
from cardcage_sdk.capabilities import Task
from cardcage_sdk.events import Finished, Timings, Usage


def values(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    page, _ = metrics.page("text/plain")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


class Loaded:
    """Which models are loaded, as a test sets it; shows nothing of its own."""

    def __init__(self, *models: str) -> None:
        self.models = list(models)

    def collect(self):
        return ()


def test_two_applications_in_one_process_share_nothing() -> None:
    first, second = Metrics(), Metrics()
    first.on_end(Task.CHAT, "finished")
    key = ("cardcage_requests_total", (("outcome", "finished"), ("task", "chat")))
    assert values(first)[key] == 1
    assert key not in values(second)
    assert not [family.name for family in prometheus_client.REGISTRY.collect() if family.name.startswith("cardcage")]


def test_a_choice_is_counted_whole() -> None:
    metrics = Metrics()
    usage = Usage(prompt_tokens=100, completion_tokens=20, cached_tokens=64)
    metrics.on_choice("m", Finished(reason="stop", usage=usage, timings=Timings(decode_seconds=0.4)))
    # The second choice of the same request: its prompt is the same one.
    metrics.on_choice("m", Finished(reason="stop", usage=usage, choice=1))
    metrics.on_choice("m", Finished(reason="stop"))
    seen = values(metrics)
    model = (("model", "m"),)
    assert seen["cardcage_prompt_tokens_total", model] == 100
    assert seen["cardcage_cached_prompt_tokens_total", model] == 64
    assert seen["cardcage_completion_tokens_total", model] == 40
    assert seen["cardcage_time_per_output_token_seconds_count", model] == 1
    assert seen["cardcage_time_per_output_token_seconds_sum", model] == pytest.approx(0.02)


def test_all_series_of_a_model_begin_at_zero_together() -> None:
    metrics = Metrics()
    metrics.on_loaded("m", 1.0)
    seen = values(metrics)
    for name in ("prompt_tokens_total", "completion_tokens_total", "time_to_first_token_seconds_count"):
        assert seen[f"cardcage_{name}", (("model", "m"),)] == 0
    assert seen["cardcage_model_load_seconds_sum", (("model", "m"),)] == 1.0


def test_a_models_series_are_shown_once_more_after_it_was_unloaded() -> None:
    metrics, loaded = Metrics(), Loaded("m", "n")
    metrics.add_state(loaded, loaded_models=lambda: loaded.models)
    metrics.on_prompt("m", 7)
    metrics.on_prompt("n", 8)
    loaded.models = ["n"]
    key = ("cardcage_prompt_tokens_total", (("model", "m"),))
    assert values(metrics)[key] == 7
    assert key not in values(metrics)
    assert values(metrics)["cardcage_prompt_tokens_total", (("model", "n"),)] == 8
    metrics.on_prompt("m", 1)
    assert values(metrics)[key] == 1


def test_ids_that_come_and_go_leave_nothing() -> None:
    metrics, loaded = Metrics(), Loaded()
    metrics.add_state(loaded, loaded_models=lambda: loaded.models)
    empty = len(values(metrics))
    for number in range(500):
        metrics.on_loaded(f"random{number}", 0.1)
        metrics.on_queued(f"random{number}", 0.1)
    values(metrics)
    assert len(values(metrics)) == empty


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", "text/plain"),
        ("text/html", "text/plain"),
        ("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5", "application/openmetrics-text"),
    ],
)
def test_the_form_is_what_the_scraper_accepts(accept: str, expected: str) -> None:
    metrics = Metrics()
    metrics.on_prompt("m", 1)
    page, content_type = metrics.page(accept)
    assert content_type.startswith(expected)
    assert page.endswith(b"# EOF\n") == ("openmetrics" in expected)
    assert b"_created" not in page
