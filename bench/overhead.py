"""What server, pipe and worker cost at one stream, over the bare step loop of the same engine.

A: one streamed request through HTTP. B: the same request through the engine's own `add`/`step` in a process that does
nothing else, started with the worker's environment. Both greedy, on the same weights and threads; pairs are interleaved
and each swaps its order. The client only collects bytes until the end, as one on another machine would cost nothing here.
The ratio is wall time per token of A over that of B, from request to last token.

    python bench/overhead.py [--pairs 21] [--max-tokens 128] [--model DIR] [--platform NAME]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path

from pairing import Measured, measure, median_interval
from server import DEFAULT_MODEL, serving, stream_bytes

PROMPT = "Pair {number}. Tell a long story about a lighthouse keeper and the sea, with many details."


def bare_loop(platform_name: str, model: Path, threads: int) -> None:
    """Child process: load the engine, then answer one line of input (a prompt as JSON) with one line of output."""
    from cardcage.catalog import Catalog
    from cardcage_sdk.chat import ChatRequest, Message, Sampling, TextPart
    from cardcage_sdk.events import Failed, Finished, Text
    from cardcage_sdk.models import LoadOptions
    from cardcage_sdk.options import validate_options

    platform = load_platform(platform_name)
    module, _, name = platform.engine.partition(":")
    engine = getattr(__import__(module, fromlist=[name]), name)()
    engine.load(
        Catalog(model.parent).artifact(model),
        LoadOptions(
            slots=1,
            max_slots=1,
            cpu_threads=threads or len(os.sched_getaffinity(0)),
            options=validate_options(platform, {}),
        ),
    )
    print("ready", flush=True)
    for number, line in enumerate(sys.stdin):
        asked = json.loads(line)
        request = ChatRequest(
            id=f"bare-{number}",
            model="bench",
            messages=(Message(role="user", content=(TextPart(asked["prompt"]),)),),
            sampling=Sampling(temperature=0.0, max_tokens=asked["max_tokens"]),
        )
        engine.prepare(request)
        engine.add(request)
        tokens, running = 0, True
        while running:
            for _, output in engine.step():
                if isinstance(output, Text):
                    tokens += len(output.token_ids)
                elif isinstance(output, Failed):
                    raise output.error
                elif isinstance(output, Finished):
                    tokens = output.usage.completion_tokens if output.usage else tokens
                    running = False
        print(json.dumps({"tokens": tokens}), flush=True)


def load_platform(name: str):
    """Construct a platform as core does, from its entry point."""
    (entry,) = entry_points(group="cardcage.platforms", name=name)
    (cls,) = entry.load().register_platforms()
    return cls()


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=21)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL)
    parser.add_argument("--platform", default="llamacpp")
    parser.add_argument("--threads", type=int, default=0, help="engine threads on both sides; 0 is every core")
    parser.add_argument("--bare-loop", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.bare_loop:
        bare_loop(arguments.platform, arguments.model, arguments.threads)
        return

    from cardcage_sdk.options import validate_options

    platform = load_platform(arguments.platform)
    # By itself a lone model gets every core, as the bare loop does without --threads.
    options = {"threads": arguments.threads} if arguments.threads else {}
    environment = {**os.environ, **platform.worker_environment(validate_options(platform, {}))}
    command = [
        sys.executable,
        __file__,
        "--bare-loop",
        "--platform",
        arguments.platform,
        "--model",
        str(arguments.model),
    ]
    with (
        serving(arguments.model, instances=1, options=options) as server,
        subprocess.Popen(
            [*command, "--threads", str(arguments.threads)],
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as bare,
    ):
        assert bare.stdin is not None
        assert bare.stdout is not None
        if bare.stdout.readline() != "ready\n":
            raise SystemExit("the bare loop did not come up")

        def through_server(prompt: str) -> float:
            return float(stream_bytes(server.url, prompt, arguments.max_tokens))

        def through_loop(prompt: str) -> float:
            bare.stdin.write(json.dumps({"prompt": prompt, "max_tokens": arguments.max_tokens}) + "\n")
            bare.stdin.flush()
            return float(json.loads(bare.stdout.readline())["tokens"])

        own = [server.pid, bare.pid, os.getpid()]
        pairs: list[tuple[Measured, Measured]] = []
        for number in range(-2, arguments.pairs):
            prompt = PROMPT.format(number=number)
            sides = [through_server, through_loop]
            if number % 2:
                sides.reverse()
            runs = {side: measure(partial(side, prompt), own=own) for side in sides}
            if number >= 0:
                pairs.append((runs[through_server], runs[through_loop]))
        bare.stdin.close()
        bare.wait(timeout=30)
    unequal = sum(server_run.value != loop_run.value for server_run, loop_run in pairs)
    ratios = [(a.seconds / a.value) / (b.seconds / b.value) for a, b in pairs]
    foreign = max(run.foreign_cpu_seconds / run.seconds for pair in pairs for run in pair)
    threads = arguments.threads or "all"
    print(f"{arguments.pairs} pairs, {arguments.max_tokens} tokens, {threads} threads, model {arguments.model.name}")
    print(f"pairs with unequal token counts: {unequal}   most foreign CPU in a run: {foreign:.2f} cores")
    print(f"seconds a token, server over bare loop: {median_interval(ratios)}")


if __name__ == "__main__":
    main()
