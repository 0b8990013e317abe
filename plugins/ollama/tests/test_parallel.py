"""Twenty clients that want two models where there is room for one."""

from __future__ import annotations

import contextlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ollama
import pytest
from ollama_serving import Server, serve

CLIENTS = 20
TURNS = 4


def alternate(server: Server, number: int, wishes: list[dict[str, object]]) -> list[str]:
    client = ollama.Client(host=server.url, timeout=60, trust_env=False)
    answers = []
    with contextlib.closing(client):
        for turn in range(TURNS):
            wish = wishes[(number + turn) % len(wishes)]
            chunks = client.chat(messages=[{"role": "user", "content": "hi"}], stream=True, **wish)  # type: ignore[call-overload]
            answers.append("".join(chunk.message.content or "" for chunk in chunks))
    return answers


@pytest.mark.parametrize("kind", ["models", "contexts"])
def test_all_finish_and_nothing_is_loaded_more_often_than_needed(tmp_path: Path, kind: str) -> None:
    with serve(
        tmp_path, 'num_ctx = "exact"', more="[scheduling]\nmax_loaded_models = 1\n[server]\nport = 0\n", port=False
    ) as server:
        a, b = server.add(answer="from a", delay_seconds=0.005), server.add(answer="from b", delay_seconds=0.005)
        wishes: list[dict[str, object]] = [{"model": a}, {"model": b}]
        expected = ["from a", "from b"]
        if kind == "contexts":
            wishes = [{"model": a, "options": {"num_ctx": 1024}}, {"model": a, "options": {"num_ctx": 2048}}]
            expected = ["from a", "from a"]
        with ThreadPoolExecutor(CLIENTS) as pool:
            answers = list(pool.map(lambda number: alternate(server, number, wishes), range(CLIENTS)))
        assert answers == [[expected[(number + turn) % 2] for turn in range(TURNS)] for number in range(CLIENTS)]
        # Whoever wants the loaded model is served before it goes, so the eighty requests take about one load for each turn;
        # a client that comes a moment late costs one more. (core's tests count exactly, where nobody can come late.)
        loads = [line for line in server.log.splitlines() if '"model loaded"' in line]
        assert 2 <= len(loads) <= 2 * TURNS + 2
        evictions = [json.loads(line) for line in server.log.splitlines() if '"evicting"' in line]
        assert len(evictions) == len(loads) - 1
        # Nothing was evicted while busy: no request ended for it, and none had to be sent again.
        assert '"draining"' not in server.log
        assert not [line for line in server.log.splitlines() if '"status": 50' in line]


def test_less_context_is_served_by_more(tmp_path: Path) -> None:
    with serve(tmp_path, more="[scheduling]\nmax_loaded_models = 1\n[server]\nport = 0\n", port=False) as server:
        name = server.add(answer="x", delay_seconds=0.005)
        wishes: list[dict[str, object]] = [{"model": name, "options": {"num_ctx": size}} for size in (1024, 2048)]
        with ThreadPoolExecutor(CLIENTS) as pool:
            answers = list(pool.map(lambda number: alternate(server, number, wishes), range(CLIENTS)))
        assert answers == [["x"] * TURNS] * CLIENTS
        assert len([line for line in server.log.splitlines() if '"model loaded"' in line]) <= 2
