"""Throughput of one loaded model at 1, 4 and 8 concurrent streams, as ratios to one stream.

Every round runs all widths one after the other in turning order, so that drift of the machine hits each alike; ratios are taken
inside a round. Counted are generated tokens over the wall time from the first request sent to the last token received, prefill
included.

    python bench/throughput.py [--rounds 15] [--max-tokens 64] [--model DIR]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from functools import partial
from pathlib import Path

from pairing import Measured, measure, median_interval
from server import DEFAULT_MODEL, run_streams, serving

WIDTHS = (1, 4, 8)
TOPICS = ("the sea", "a bridge", "winter", "bread", "a lighthouse", "the moon", "a garden", "rivers")


def tokens_per_second(url: str, width: int, max_tokens: int, salt: int) -> float:
    """Aggregate rate of `width` streams at once. Each prompt is new, so that no cached prefix helps more than the template's."""
    prompts = [
        f"Round {salt}. Tell a long story about {TOPICS[i % len(TOPICS)]}, with many details." for i in range(width)
    ]
    start = time.perf_counter()
    answers = run_streams(url, prompts, max_tokens)
    return sum(answer.tokens for answer in answers) / (time.perf_counter() - start)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL)
    arguments = parser.parse_args()
    rates: dict[int, list[Measured]] = {width: [] for width in WIDTHS}
    with serving(arguments.model, instances=max(WIDTHS)) as server:
        tokens_per_second(server.url, max(WIDTHS), arguments.max_tokens, salt=-1)  # warm up
        for number in range(arguments.rounds):
            turn = number % len(WIDTHS)
            for width in WIDTHS[turn:] + WIDTHS[:turn]:
                rates[width].append(
                    measure(
                        partial(tokens_per_second, server.url, width, arguments.max_tokens, number),
                        own=[server.pid, os.getpid()],
                    )
                )
    print(
        f"{arguments.rounds} rounds, {arguments.max_tokens} tokens a stream, {os.cpu_count()} cores, {arguments.model.name}"
    )
    for width in WIDTHS:
        values = [run.value for run in rates[width]]
        foreign = max(run.foreign_cpu_seconds / run.seconds for run in rates[width])
        print(
            f"{width} streams: median {statistics.median(values):6.1f} tokens/s   most foreign CPU: {foreign:.2f} cores"
        )
    for width in WIDTHS[1:]:
        ratios = [many.value / one.value for many, one in zip(rates[width], rates[1], strict=True)]
        print(f"{width} streams over one: {median_interval(ratios)}")


if __name__ == "__main__":
    main()
