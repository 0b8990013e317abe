"""Embeddings through the server against a bare onnxruntime loop, one-by-one requests, and sentence-transformers.

Every round runs all sides one after the other in turning order, each on the same texts of 16 tokens (special tokens included)
with the same number of threads; ratios are taken inside a round.

- `clients`: 32 clients, each with one text a request, through HTTP, server, pipe and worker.
- `one by one`: one client, one text a request.
- `bare`: a process with nothing but onnxruntime and the tokenizer, batches of the size that took the least CPU time in the
  warm-up.
- `st`: sentence-transformers with its ONNX backend, where `--sentence-transformers PYTHON` names an interpreter that has it
  (`make peers`); it is given the best batch size of its own.
- `budget` and `count`: the same bare loop over 64 texts of 5 to 200 words, batched by this platform's batcher, and 32 at a time
  in the order of arrival.

`--large` instead sends 10,000 mixed texts to one worker in one request and from 64 callers, checks every vector's place, and
prints the worker's memory.

    python bench/embeddings.py [--rounds 15] [--threads 1] [--model DIR] [--sentence-transformers PYTHON] [--large]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pairing import Measured, measure, median_interval, own_cpu_seconds, process_tree
from server import ROOT, Server, serving

DEFAULT_MODEL = ROOT / ".cardcage/models/onnx/cpu/all-minilm-l6-v2-22m"
CLIENTS = 32
TEXTS_A_CLIENT = 8
BATCH_SIZES = (1, 4, 8, 16, 32)
# Each is one token of the model, so that 14 of them and the two special tokens are 16.
WORDS = (  # noqa: SIM905  A list of thirty lines is no better to read.
    "water house river light music paper story table garden window market letter winter summer bridge forest mountain "
    "silver golden island harbor castle doctor teacher student engine camera planet animal flower"
).split()


def short_texts(numbers: random.Random, count: int) -> list[str]:
    """Texts of 16 tokens each."""
    return [" ".join(numbers.choices(WORDS, k=14)) for _ in range(count)]


def mixed_texts(numbers: random.Random, count: int) -> list[str]:
    """Texts of 5 to 200 words, short ones more often than long ones, as real ones are."""
    return [" ".join(numbers.choices(WORDS, k=int(5 * 40 ** (numbers.random() ** 1.5)))) for _ in range(count)]


# --- the bare loop: a child process, one JSON line in, one out ---


class BareLoop:
    """onnxruntime and a tokenizer, with the session options of the platform but nothing else of it."""

    def __init__(self, model: Path, threads: int) -> None:
        import onnxruntime as ort
        from tokenizers import Tokenizer

        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = ort.InferenceSession(str(model / "model.onnx"), options, providers=["CPUExecutionProvider"])
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(256)

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Token ids of each text."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch(texts)]

    def vectors(self, batch: list[list[int]]) -> Any:
        """float32, shape (len(batch), width), length 1."""
        import numpy as np

        length = max(map(len, batch))
        ids = np.zeros((len(batch), length), dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, tokens in enumerate(batch):
            ids[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = 1
        feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        (hidden,) = self._session.run(None, feed)
        pooled = (hidden * mask[:, :, None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
        return pooled / np.linalg.norm(pooled, axis=1, keepdims=True)

    def by_count(self, texts: list[str], size: int) -> None:
        """So many at a time, in the order of arrival."""
        tokens = self.encode(texts)
        for start in range(0, len(tokens), size):
            self.vectors(tokens[start : start + size])

    def by_budget(self, texts: list[str], budget: int) -> None:
        """As the platform does it."""
        import numpy as np

        from cardcage_platform_onnx.batching import Batcher, Item

        batcher = Batcher(budget_tokens=budget)
        for index, tokens in enumerate(self.encode(texts)):
            batcher.put(Item(request_id="bench", index=index, ids=np.array(tokens, dtype=np.int32)))
        while batch := batcher.take():
            self.vectors([item.ids.tolist() for item in batch])


def bare_child(model: Path, threads: int) -> None:
    """Serve lines: {"texts": [...], "size": n} or {"texts": [...], "budget": n}."""
    loop = BareLoop(model, threads)
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        start = time.process_time()
        if "budget" in asked:
            loop.by_budget(asked["texts"], asked["budget"])
        else:
            loop.by_count(asked["texts"], asked["size"])
        print(json.dumps({"cpu": time.process_time() - start}), flush=True)


PEER = """
import json, os, sys, time
os.environ["HF_HUB_OFFLINE"] = "1"
folder, threads = sys.argv[1], int(sys.argv[2])
import onnxruntime as ort, torch
from sentence_transformers import SentenceTransformer
torch.set_num_threads(threads)
options = ort.SessionOptions()
options.intra_op_num_threads = threads
options.inter_op_num_threads = 1
options.add_session_config_entry("session.intra_op.allow_spinning", "0")
kwargs = {"provider": "CPUExecutionProvider", "file_name": "model.onnx", "session_options": options}
model = SentenceTransformer(folder, backend="onnx", model_kwargs=kwargs)
print("ready", flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    start = time.process_time()
    model.encode(asked["texts"], batch_size=asked["size"], normalize_embeddings=True, show_progress_bar=False)
    print(json.dumps({"cpu": time.process_time() - start}), flush=True)
"""


def peer_folder(model: Path, folder: Path) -> Path:
    """The model as sentence-transformers wants it: its own small files around the same ONNX file."""
    words = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
    (folder / "1_Pooling").mkdir(parents=True)
    kinds = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds)
    ]
    config = {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "hidden_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "intermediate_size": 1536,
        "vocab_size": len(words),
        "max_position_embeddings": 512,
    }
    pooling = {"word_embedding_dimension": 384, "pooling_mode_mean_tokens": True}
    tokenizer = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 256}
    for name, content in (
        ("modules.json", modules),
        ("config.json", config),
        ("1_Pooling/config.json", pooling),
        ("sentence_bert_config.json", {"max_seq_length": 256, "do_lower_case": False}),
        ("tokenizer_config.json", tokenizer),
    ):
        (folder / name).write_text(json.dumps(content))
    (folder / "vocab.txt").write_text("\n".join(sorted(words, key=lambda word: words[word])) + "\n", encoding="utf-8")
    for name in ("model.onnx", "tokenizer.json"):
        (folder / name).symlink_to(model / name)
    return folder


class Child:
    """A process that answers one JSON line for each that it is sent."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        while True:
            line = self._process.stdout.readline()
            if line == "ready\n":
                return
            if not line:
                assert self._process.stderr is not None
                raise SystemExit(f"{command[0]} did not come up:\n{self._process.stderr.read()[-2000:]}")

    def ask(self, **asked: Any) -> float:
        """Texts per second."""
        start = time.perf_counter()
        self._exchange(asked)
        return len(asked["texts"]) / (time.perf_counter() - start)

    def best_size(self, texts: list[str]) -> int:
        """The batch size that takes the least CPU time, which a busy machine changes less than it changes wall time."""
        costs: dict[int, list[float]] = {}
        for _ in range(5):
            for size in BATCH_SIZES:
                costs.setdefault(size, []).append(self._exchange({"texts": texts, "size": size})["cpu"])
        return min(BATCH_SIZES, key=lambda size: statistics.median(costs[size]))

    def _exchange(self, asked: dict[str, Any]) -> dict[str, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        answer: dict[str, float] = json.loads(self._process.stdout.readline())
        return answer

    def end(self) -> None:
        """Close its input and wait."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)


# --- the clients ---


class Connection:
    """One kept-alive connection that posts embedding requests: as little of a client as there can be."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port

    async def open(self) -> None:
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)

    async def post(self, text: str) -> None:
        """One request, its answer read whole."""
        body = json.dumps({"model": "bench", "input": text, "encoding_format": "base64"}).encode()
        head = f"POST /v1/embeddings HTTP/1.1\r\nhost: {self._host}\r\ncontent-type: application/json\r\n"
        self._writer.write(head.encode() + f"content-length: {len(body)}\r\n\r\n".encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        if not answer.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"the server answered {answer!r}")
        lengths = [line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        await self._reader.readexactly(int(lengths[0].split(b":")[1]))

    def close(self) -> None:
        """Disconnect."""
        self._writer.close()


class Clients:
    """Clients of a server. They connect before the clock starts, since the server closes what is idle while others run."""

    def __init__(self, server: Server) -> None:
        host, _, port = server.url.rpartition("//")[2].partition(":")
        self._host, self._port = host, int(port)

    def together(self, texts: list[str]) -> float:
        """All clients at once, each with its share of the texts; texts per second."""
        return asyncio.run(self._run([texts[number::CLIENTS] for number in range(CLIENTS)]))

    def one_by_one(self, texts: list[str]) -> float:
        """One client, one request after the other; texts per second."""
        return asyncio.run(self._run([texts]))

    async def _run(self, shares: list[list[str]]) -> float:
        connections = [Connection(self._host, self._port) for _ in shares]
        for connection in connections:
            await connection.open()
        start = time.perf_counter()
        await asyncio.gather(*(self._send(c, share) for c, share in zip(connections, shares, strict=True)))
        seconds = time.perf_counter() - start
        for connection in connections:
            connection.close()
        return sum(map(len, shares)) / seconds

    @staticmethod
    async def _send(connection: Connection, texts: list[str]) -> None:
        for text in texts:
            await connection.post(text)


# --- the runs ---


def compare(arguments: argparse.Namespace) -> None:
    """All sides, interleaved."""
    import tempfile

    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
    threads = str(arguments.threads)
    bare_command = [sys.executable, __file__, "--bare-child", "--model", str(arguments.model), "--threads", threads]
    with serving(arguments.model, instances=1, options={"threads": arguments.threads}) as server:
        bare = Child(bare_command, environment)
        peer = None
        if arguments.sentence_transformers is not None:
            folder = peer_folder(
                arguments.model.absolute(), Path(tempfile.mkdtemp(prefix="bench-embeddings-")) / "model"
            )
            peer = Child([str(arguments.sentence_transformers), "-c", PEER, str(folder), threads], environment)
        clients = Clients(server)
        numbers = random.Random(1)
        warm = short_texts(numbers, CLIENTS * 4)
        best = bare.best_size(warm)
        best_peer = peer.best_size(warm) if peer is not None else 0
        clients.together(warm)
        clients.one_by_one(warm[:8])
        own = [server.pid, bare.pid, os.getpid(), *([peer.pid] if peer else [])]
        runs: dict[str, list[Measured]] = {}
        cpu: dict[str, list[float]] = {}
        for number in range(arguments.rounds):
            texts = short_texts(numbers, CLIENTS * TEXTS_A_CLIENT)
            mixed = mixed_texts(numbers, 64)
            sides: dict[str, Callable[[], float]] = {
                "clients": partial(clients.together, texts),
                "bare": partial(bare.ask, texts=texts, size=best),
                "one by one": partial(clients.one_by_one, texts[:64]),
                "budget": partial(bare.ask, texts=mixed, budget=256),
                "count": partial(bare.ask, texts=mixed, size=32),
            }
            if peer is not None:
                sides["st"] = partial(peer.ask, texts=texts, size=best_peer)
            names = list(sides)
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                before = cpu_seconds(server)
                runs.setdefault(name, []).append(measure(sides[name], own=own))
                if name == "clients":
                    for who, seconds in cpu_seconds(server).items():
                        cpu.setdefault(who, []).append((seconds - before[who]) / len(texts))
        bare.end()
        if peer is not None:
            peer.end()
    report(arguments, runs, cpu, best=best, best_peer=best_peer)


def cpu_seconds(server: Server) -> dict[str, float]:
    """CPU seconds so far of this process (the client), the server and its worker, each without its children."""
    times = os.times()
    whole, children = own_cpu_seconds([server.pid]), own_cpu_seconds(process_tree(server.pid)[1:])
    return {"client": times.user + times.system, "server": whole - children, "worker": children}


def report(
    arguments: argparse.Namespace,
    runs: dict[str, list[Measured]],
    cpu: dict[str, list[float]],
    *,
    best: int,
    best_peer: int,
) -> None:
    """Print medians and ratios."""
    print(
        f"{arguments.rounds} rounds, {CLIENTS * TEXTS_A_CLIENT} texts of 16 tokens, {arguments.threads} threads, "
        f"{os.cpu_count()} cores, {arguments.model.name}; best batch of the bare loop {best}"
        + (f", of sentence-transformers {best_peer}" if best_peer else "")
    )
    for name, measured in runs.items():
        foreign = max(run.foreign_cpu_seconds / run.seconds for run in measured)
        median = statistics.median(run.value for run in measured)
        print(f"{name:>10}: median {median:7.1f} texts/s   most foreign CPU: {foreign:.2f} cores")
    for name, values in cpu.items():
        print(f"CPU of {name} with {CLIENTS} clients: {1000 * statistics.median(values):.2f} ms a text")
    compared = [
        ("clients", "bare", f"{CLIENTS} clients over the bare loop"),
        ("clients", "one by one", f"{CLIENTS} clients over one by one"),
        ("budget", "count", "mixed texts, by budget over 32 at a time"),
    ]
    if "st" in runs:
        compared.append(("clients", "st", f"{CLIENTS} clients over sentence-transformers"))
    for first, second, words in compared:
        ratios = [a.value / b.value for a, b in zip(runs[first], runs[second], strict=True)]
        print(f"{words}: {median_interval(ratios)}")


def large(arguments: argparse.Namespace) -> None:
    """10,000 texts at once, and what they cost in memory."""
    import tomllib

    import numpy as np

    from cardcage_platform_onnx.plugin import OnnxPlatform
    from cardcage_sdk.embeddings import EmbedRequest
    from cardcage_sdk.models import LoadOptions, ModelArtifact, ModelFile
    from cardcage_sdk.testing.launch import launch

    model = arguments.model.absolute()
    files = tuple(ModelFile(name=file.name, size_bytes=file.stat().st_size) for file in model.iterdir())
    extra = tomllib.loads((model / "model.toml").read_text())["onnx"]
    artifact = ModelArtifact(path=model, name=model.name, files=files, extra=extra)
    texts = mixed_texts(random.Random(2), 10_000)

    def request(name: str, part: list[str]) -> EmbedRequest:
        return EmbedRequest(id=name, model="m", inputs=tuple(part))

    def rows(result: Any) -> Any:
        return np.frombuffer(result.vectors, "<f4").reshape(-1, result.dimensions)

    def memory(pid: int) -> str:
        fields = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
        )
        return ", ".join(f"{name} {int(fields[name].split()[0]) / 1024:.0f} MiB" for name in ("VmRSS", "VmHWM"))

    async def main() -> None:
        options = LoadOptions(cpu_threads=arguments.threads)
        async with launch(OnnxPlatform(), artifact, load_options=options) as worker:
            pid = worker.process.pid
            print(f"loaded: {memory(pid)}")
            start = time.perf_counter()
            whole = rows(await worker.connection.embed(request("whole", texts)))
            tokens = time.perf_counter() - start
            print(f"one request of {len(texts)} texts: {len(texts) / tokens:.1f} texts/s; {memory(pid)}")
            start = time.perf_counter()
            parts = [texts[number::64] for number in range(64)]
            results = await asyncio.gather(
                *(worker.connection.embed(request(f"part{n}", part)) for n, part in enumerate(parts))
            )
            seconds = time.perf_counter() - start
            print(f"the same from 64 callers: {len(texts) / seconds:.1f} texts/s; {memory(pid)}")
            worst = max(float(np.abs(rows(result) - whole[number::64]).max()) for number, result in enumerate(results))
            print(f"largest difference of any component between the two ways: {worst:.1e}")
            if worst > 1e-5:
                raise SystemExit("a text's vector is not at its place")
            print(f"idle again: {memory(pid)}")

    asyncio.run(main())


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL)
    parser.add_argument("--sentence-transformers", type=Path, metavar="PYTHON")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--bare-child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.bare_child:
        bare_child(arguments.model, arguments.threads)
    elif arguments.large:
        large(arguments)
    else:
        compare(arguments)


if __name__ == "__main__":
    main()
