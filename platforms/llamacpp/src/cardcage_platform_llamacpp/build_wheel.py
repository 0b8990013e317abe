"""Build the llama-cpp-python wheel that this machine can run, prove it, and keep it.

PyPI has llama-cpp-python as source only. Its default build compiles a lot that Python never loads, and on CPUs with
AMX the library that GCC 12 makes of it dies of SIGSEGV at its first prompt (`_tile_loadconfig` reads 64 bytes but
tells the compiler 8, so dead-store elimination drops the rest of the tile configuration). This command

1. builds the libraries that the bindings load and nothing else, with the compiler flags that cure the crash,
2. installs the wheel in a throw-away environment and decodes a prompt with it in a child process,
3. falls back to slower but safer flags, and says so, when that child dies,
4. keeps the proven wheel under `$XDG_CACHE_HOME/cardcage/wheels`, keyed by everything that can make it wrong:
   version, recipe, CPU flags, compiler, Python ABI and the caller's own compiler settings.

It needs the standard library, a C++ compiler and pip's access to a package index, and runs before anything else of
Cardcage is installed: `python platforms/llamacpp/src/cardcage_platform_llamacpp/build_wheel.py`. Its only line on
standard output is the path of the wheel.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import platform
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DISTRIBUTION = "llama-cpp-python"
VERSION = "0.3.36"
# Raise when a change here makes wheels of an earlier recipe wrong.
RECIPE = 1

# What the bindings import at start-up; everything else in the wheel's metadata is pulled by the final install.
RUNTIME_REQUIREMENTS = ("numpy", "jinja2", "diskcache", "typing-extensions")

# The package forces LLAMA_BUILD_COMMON on in CMake's cache, so no -D turns it off, and building the target `llama`
# alone then fails at install. A normal variable hides the cache entry. "common" is two thirds of the compile time.
# Model graphs are built once per batch shape: -O1 is as good as -O3 for them and compiles faster; the listed files are
# those on the path of every token. ggml, where the time of a decode goes, is not touched by this.
CMAKE_HOOK = """\
set(LLAMA_BUILD_COMMON OFF)
function(cardcage_tune)
    target_compile_options(llama PRIVATE -O1)
    foreach(name llama-batch llama-context llama-grammar llama-graph llama-kv-cache llama-sampler llama-vocab unicode)
        set(path "${CMAKE_CURRENT_SOURCE_DIR}/src/${name}.cpp")
        if(EXISTS "${path}")
            set_source_files_properties("${path}" TARGET_DIRECTORY llama PROPERTIES COMPILE_OPTIONS -O3)
        endif()
    endforeach()
endfunction()
cmake_language(DEFER CALL cardcage_tune)
"""

# The wheel holds each library under three names (a wheel has no symbolic links) and all of them in two places.
# The loader needs lib<x>.so (opened by the bindings) and lib<x>.so.<major> (the name the libraries ask each other for).
WHEEL_EXCLUDE = "lib/**;include/**;bin/**;llama_cpp/lib/*.so.*.*"

SMOKE_PROMPT_TOKENS = 96
SMOKE_STEPS = 4
SMOKE_TIMEOUT_SECONDS = 120.0


class BuildError(Exception):
    """The wheel could not be had; the message is one line for the person at the terminal."""


@dataclass(frozen=True, slots=True)
class FlagSet:
    """One way to compile, with what it costs."""

    name: str
    compiler_flags: str
    cmake_args: str
    note: str


CURED = FlagSet(
    "amx-cured", "-fno-dse -fno-tree-dse", "", "AMX on, dead-store elimination off: prompts about 3 times faster"
)
WITHOUT_AMX = FlagSet(
    "no-amx", "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16", "", "AMX off: prompts are about 3 times slower"
)
NATIVE = FlagSet("native", "", "", "for this CPU")
PORTABLE = FlagSet("portable", "", "-DGGML_NATIVE=OFF", "generic instructions only: slower, but runs anywhere")
FLAG_SETS = {flags.name: flags for flags in (CURED, WITHOUT_AMX, NATIVE, PORTABLE)}


def cpu_flags() -> tuple[str, ...]:
    """The CPU's feature flags, sorted; empty where the kernel does not tell."""
    with contextlib.suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return tuple(sorted(set(value.split())))
    return ()


def flag_sets_to_try(flags: tuple[str, ...]) -> tuple[FlagSet, ...]:
    """Fastest first; each later one is for a CPU or compiler on which the one before it dies."""
    if "amx_tile" in flags:
        return (CURED, WITHOUT_AMX, PORTABLE)
    return (NATIVE, PORTABLE)


def find_compiler() -> str | None:
    """The C++ compiler that CMake will take."""
    chosen = os.environ.get("CXX", "").split()
    for name in (*chosen[:1], "c++", "g++", "clang++"):
        path = shutil.which(name)
        if path:
            return path
    return None


def compiler_version(compiler: str) -> str:
    """First line of the compiler's own version text."""
    result = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    return (result.stdout or result.stderr).partition("\n")[0].strip()


def cache_directory() -> Path:
    """Where wheels are kept for this user."""
    base = os.environ.get("XDG_CACHE_HOME")
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache"
    return root / "cardcage" / "wheels"


def facts(compiler: str) -> dict[str, Any]:
    """Everything that can make a kept wheel wrong for this machine."""
    return {
        "version": VERSION,
        "recipe": RECIPE,
        "machine": platform.machine(),
        "cpu_flags_sha256": hashlib.sha256(" ".join(cpu_flags()).encode()).hexdigest(),
        "python_abi": f"{sys.implementation.cache_tag}-{platform.libc_ver()[0]}",
        "compiler": compiler_version(compiler),
        "environment": {name: os.environ.get(name, "") for name in ("CC", "CXX", "CFLAGS", "CXXFLAGS", "CMAKE_ARGS")},
    }


def key_of(known: dict[str, Any], forced: FlagSet | None) -> str:
    """A directory name that is readable and unique to the facts."""
    digest = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]
    suffix = f"-{forced.name}" if forced else ""
    return f"{VERSION}-{known['machine']}-{known['python_abi']}-{digest}{suffix}"


def kept_wheel(entry: Path) -> Path | None:
    """The wheel of a cache entry, if it is whole."""
    try:
        record = json.loads((entry / "recipe.json").read_text(encoding="utf-8"))
        wheel = entry / str(record["wheel"])
        if hashlib.sha256(wheel.read_bytes()).hexdigest() == record["sha256"]:
            return wheel
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def say(text: str) -> None:
    """Progress goes to standard error: standard output carries the path alone."""
    print(text, file=sys.stderr, flush=True)


def tail(text: str, lines: int = 25) -> str:
    """The end of a log, which is where compilers put the reason."""
    return "\n".join(text.strip().splitlines()[-lines:])


# --- the smoke test's model ---------------------------------------------------------------------------------------


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: object) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<IB", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    message = f"no GGUF type for {value!r}"
    raise TypeError(message)


F32, Q4_0, Q4_1, Q8_0 = 0, 2, 3, 8


def _random_weights(rng: random.Random, kind: int, count: int) -> bytes:
    """Quantised blocks of 32 weights around zero, about 0.05 wide."""
    if kind == F32:
        return struct.pack(f"<{count}f", *([1.0] * count))
    blocks = count // 32
    if kind == Q8_0:
        scale = struct.pack("<e", 0.0007)
        return b"".join(scale + rng.randbytes(32) for _ in range(blocks))
    scale = struct.pack("<e", 0.012) if kind == Q4_0 else struct.pack("<ee", 0.012, -0.09)
    return b"".join(scale + rng.randbytes(16) for _ in range(blocks))


def write_gguf(path: Path, metadata: dict[str, object], tensors: list[tuple[str, int, tuple[int, ...], bytes]]) -> None:
    """Write a GGUF v3 file: enough of the format for a model of random weights.

    Args:
        path: Written in place.
        metadata: bool, unsigned int, float or str values.
        tensors: name, GGML type, dimensions with the contiguous one first, data.
    """
    header = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    header += [_string(name) + _value(value) for name, value in metadata.items()]
    offset = 0
    for name, kind, shape, data in tensors:
        header.append(_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset))
        offset += (len(data) + 31) // 32 * 32
    head = b"".join(header)
    with path.open("wb") as out:
        out.write(head + bytes(-len(head) % 32))
        for _, _, _, data in tensors:
            out.write(data + bytes(-len(data) % 32))


def write_smoke_model(path: Path) -> None:
    """A one-layer llama of random Q4_1, Q4_0 and Q8_0 weights, shaped so that AMX takes every product."""
    rng = random.Random(9265)
    width, inner, vocabulary = 256, 512, 512
    shapes: list[tuple[str, int, tuple[int, ...]]] = [
        ("token_embd.weight", Q8_0, (width, vocabulary)),
        ("output.weight", Q8_0, (width, vocabulary)),
        ("output_norm.weight", F32, (width,)),
        ("blk.0.attn_norm.weight", F32, (width,)),
        ("blk.0.attn_q.weight", Q4_1, (width, width)),
        ("blk.0.attn_k.weight", Q4_1, (width, width)),
        ("blk.0.attn_v.weight", Q4_0, (width, width)),
        ("blk.0.attn_output.weight", Q4_1, (width, width)),
        ("blk.0.ffn_norm.weight", F32, (width,)),
        ("blk.0.ffn_gate.weight", Q4_1, (width, inner)),
        ("blk.0.ffn_up.weight", Q4_0, (width, inner)),
        ("blk.0.ffn_down.weight", Q4_1, (inner, width)),
    ]
    tensors = []
    for name, kind, shape in shapes:
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        tensors.append((name, kind, shape, _random_weights(rng, kind, count)))
    metadata: dict[str, object] = {
        "general.architecture": "llama",
        "general.name": "cardcage smoke test",
        "llama.context_length": 512,
        "llama.embedding_length": width,
        "llama.block_count": 1,
        "llama.feed_forward_length": inner,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 4,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": width // 4,
        "llama.vocab_size": vocabulary,
        "tokenizer.ggml.model": "none",
    }
    write_gguf(path, metadata, tensors)


# --- the smoke test -----------------------------------------------------------------------------------------------


def smoke(model: Path) -> None:
    """Decode a prompt in one batch, then single tokens. Runs in the throw-away environment, in a child.

    Single tokens take another code path than prompts, so neither alone is proof. The same is done with the weights in
    their plain layout: a build that lives but computes nonsense is refused too.
    """
    import llama_cpp  # type: ignore[import-not-found,unused-ignore]

    llama_cpp.llama_backend_init()
    rows: list[list[float]] = []
    for repacked in (True, False):
        model_params = llama_cpp.llama_model_default_params()
        model_params.use_extra_bufts = repacked
        handle = llama_cpp.llama_model_load_from_file(str(model).encode(), model_params)
        context_params = llama_cpp.llama_context_default_params()
        context_params.n_ctx = 256
        context_params.n_batch = SMOKE_PROMPT_TOKENS
        context_params.n_threads = context_params.n_threads_batch = min(2, os.cpu_count() or 1)
        context = llama_cpp.llama_init_from_model(handle, context_params) if handle else None
        if not context:
            raise SystemExit("the smoke model did not load")
        vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(handle))
        batch = llama_cpp.llama_batch_init(SMOKE_PROMPT_TOKENS, 0, 1)
        position = 0
        for length in (SMOKE_PROMPT_TOKENS, *[1] * SMOKE_STEPS):
            batch.n_tokens = length
            for row in range(length):
                batch.token[row] = (position * 37 + 11) % vocabulary
                batch.pos[row] = position
                batch.n_seq_id[row] = 1
                batch.seq_id[row][0] = 0
                batch.logits[row] = row == length - 1
                position += 1
            if llama_cpp.llama_decode(context, batch) != 0:
                raise SystemExit("llama_decode failed")
            rows.append(llama_cpp.llama_get_logits_ith(context, -1)[:vocabulary])
        llama_cpp.llama_batch_free(batch)
        llama_cpp.llama_free(context)
        llama_cpp.llama_model_free(handle)
    half = len(rows) // 2
    worst = max(_distance(fast, plain) for fast, plain in zip(rows[:half], rows[half:], strict=True))
    print(json.dumps({"prompt_tokens": SMOKE_PROMPT_TOKENS, "steps": SMOKE_STEPS, "distance": round(worst, 4)}))
    if not worst < 0.25:  # NaN is a failure too
        raise SystemExit(f"fast and plain kernels disagree: relative distance {worst:.3f}")


def _distance(left: list[float], right: list[float]) -> float:
    """Root mean square difference over root mean square of `right`."""
    return float((sum((a - b) ** 2 for a, b in zip(left, right, strict=True)) / sum(b * b for b in right)) ** 0.5)


# --- building -----------------------------------------------------------------------------------------------------


def _environment(flags: FlagSet, hook: Path, jobs: int) -> dict[str, str]:
    """The caller's environment with our flags after the caller's own."""
    environment = dict(os.environ)

    def append(name: str, text: str) -> None:
        environment[name] = f"{environment.get(name, '')} {text}".strip()

    append("CFLAGS", flags.compiler_flags)
    append("CXXFLAGS", flags.compiler_flags)
    append("CMAKE_ARGS", f"-DLLAVA_BUILD=OFF -DCMAKE_PROJECT_llama.cpp_INCLUDE={hook} {flags.cmake_args}")
    environment["CMAKE_BUILD_PARALLEL_LEVEL"] = str(jobs)
    environment["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    return environment


def _make_environment(directory: Path) -> Path:
    """The throw-away environment's interpreter, with pip in it."""
    try:
        venv.create(directory, with_pip=True)
    except (OSError, subprocess.CalledProcessError) as error:
        message = "cannot make a virtual environment: install your system's python3-venv package"
        raise BuildError(message) from error
    return directory / "bin" / "python"


def _run_pip(python: Path, arguments: list[str], environment: dict[str, str], what: str) -> None:
    command = [str(python), "-m", "pip", *arguments]
    started = time.monotonic()
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    done = threading.Event()

    def tick() -> None:
        while not done.wait(20):
            say(f"  {what}: {time.monotonic() - started:.0f} s so far")

    threading.Thread(target=tick, daemon=True).start()
    try:
        output, _ = process.communicate()
    finally:
        done.set()
        if process.poll() is None:
            process.terminate()
            process.wait()
    if process.returncode != 0:
        message = f"{what} failed (pip ended with {process.returncode}); the end of its output:\n{tail(output)}"
        raise BuildError(message)


def _compile(python: Path, work: Path, flags: FlagSet, jobs: int) -> Path:
    hook = work / "cardcage.cmake"
    hook.write_text(CMAKE_HOOK, encoding="utf-8")
    out = work / f"wheel-{flags.name}"
    arguments = ["wheel", "--no-deps", "--wheel-dir", str(out), "--no-binary", DISTRIBUTION]
    # pip's cache of built wheels does not know the compiler's flags: it could hand out, or be left with, a wrong one.
    arguments += ["--no-cache-dir"]
    # make would work, but ninja keeps both cores busy to the end; pip fetches it where it is missing.
    for setting in ("build.targets=llama", "ninja.make-fallback=false", f"wheel.exclude={WHEEL_EXCLUDE}"):
        arguments += ["--config-settings", setting]
    arguments.append(f"{DISTRIBUTION}=={VERSION}")
    _run_pip(python, arguments, _environment(flags, hook, jobs), f"building {DISTRIBUTION} {VERSION} ({flags.name})")
    return next(out.glob("*.whl"))


def _smoke_test(python: Path, wheel: Path, model: Path) -> dict[str, Any]:
    """Install and decode; returns what the child measured, or how it died under "failure"."""
    install = [
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--force-reinstall",
        str(wheel),
    ]
    installed = subprocess.run(install, capture_output=True, text=True, check=False)
    if installed.returncode != 0:
        message = f"the built wheel does not install:\n{tail(installed.stderr)}"
        raise BuildError(message)
    command = [str(python), str(Path(__file__).resolve()), "--smoke", str(model)]
    environment = {**os.environ, "GGML_NO_BACKTRACE": "1", "OMP_WAIT_POLICY": "passive"}
    try:
        result = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=SMOKE_TIMEOUT_SECONDS
        )
    except subprocess.TimeoutExpired:
        return {"failure": f"nothing decoded within {SMOKE_TIMEOUT_SECONDS:.0f} s"}
    if result.returncode < 0:
        return {"failure": f"died by signal {-result.returncode}"}
    if result.returncode > 0:
        return {"failure": tail(result.stderr, 1) or f"ended with {result.returncode}"}
    return dict(json.loads(result.stdout.splitlines()[-1]))


def build(entry: Path, known: dict[str, Any], candidates: tuple[FlagSet, ...], jobs: int) -> Path:
    """Build and prove a wheel, and put it at `entry`.

    Raises:
        BuildError: With the reason, or with how the last candidate's smoke test died.
    """
    with tempfile.TemporaryDirectory(prefix="cardcage-wheel-") as temporary:
        work = Path(temporary)
        python = _make_environment(work / "env")
        model = work / "smoke.gguf"
        requirements = subprocess.Popen(
            [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *RUNTIME_REQUIREMENTS],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            failures: list[dict[str, str]] = []
            for flags in candidates:
                say(f"building {DISTRIBUTION} {VERSION}, {flags.name} ({flags.note}); 2 to 4 minutes on 2 cores")
                started = time.monotonic()
                wheel = _compile(python, work, flags, jobs)
                build_seconds = time.monotonic() - started
                if requirements.returncode is None:
                    _, errors = requirements.communicate()
                    if requirements.returncode != 0:
                        message = f"cannot install {', '.join(RUNTIME_REQUIREMENTS)}:\n{tail(errors)}"
                        raise BuildError(message)
                write_smoke_model(model)
                outcome = _smoke_test(python, wheel, model)
                if "failure" not in outcome:
                    record = {
                        **known,
                        "flag_set": flags.name,
                        "compiler_flags": flags.compiler_flags,
                        "cmake_args": flags.cmake_args,
                        "build_seconds": round(build_seconds, 1),
                        "smoke": outcome,
                        "failed_before": failures,
                        "wheel": wheel.name,
                        "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
                    }
                    say(f"built in {build_seconds:.0f} s and decoded a {SMOKE_PROMPT_TOKENS}-token prompt")
                    return _keep(entry, wheel, record)
                failures.append({"flag_set": flags.name, "failure": str(outcome["failure"])})
                say(f"the {flags.name} build is no good on this machine: its smoke test {outcome['failure']}")
        finally:
            if requirements.poll() is None:
                requirements.terminate()
                requirements.wait()
    message = "no build survived its smoke test: " + "; ".join(f"{f['flag_set']} {f['failure']}" for f in failures)
    raise BuildError(message)


def _keep(entry: Path, wheel: Path, record: dict[str, Any]) -> Path:
    """Move a proven wheel into the cache; the entry appears whole or not at all."""
    side = entry.with_name(f".{entry.name}.{os.getpid()}")
    shutil.rmtree(side, ignore_errors=True)
    side.mkdir(parents=True)
    shutil.copyfile(wheel, side / wheel.name)
    (side / "recipe.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    shutil.rmtree(entry, ignore_errors=True)
    side.rename(entry)
    return entry / wheel.name


def obtain(cache: Path, *, force: bool, jobs: int, forced: FlagSet | None) -> Path:
    """The kept wheel for this machine, built first if there is none."""
    compiler = find_compiler()
    if compiler is None:
        message = "no C++ compiler found: install one (Debian: apt install g++ make) and run this again"
        raise BuildError(message)
    if shutil.which("make") is None and shutil.which("ninja") is None:
        message = "make not found: install it (Debian: apt install make) and run this again"
        raise BuildError(message)
    known = facts(compiler)
    entry = cache / key_of(known, forced)
    if not force and (wheel := kept_wheel(entry)):
        return wheel
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{entry.name}.lock").open("w") as lock:
        # Two builds at once would take twice as long: the second waits and finds the first one's wheel.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not force and (wheel := kept_wheel(entry)):
            return wheel
        return build(entry, known, (forced,) if forced else flag_sets_to_try(cpu_flags()), jobs)


def find_kept(cache: Path, forced: FlagSet | None) -> Path:
    """The kept wheel for this machine.

    Raises:
        BuildError: There is none.
    """
    compiler = find_compiler()
    wheel = kept_wheel(cache / key_of(facts(compiler), forced)) if compiler else None
    if wheel is None:
        message = "no wheel is kept for this machine; run without --print-path to build one"
        raise BuildError(message)
    return wheel


def install(wheel: Path) -> None:
    """Install into the environment of the running interpreter, by its own pip or by uv."""
    commands = [[sys.executable, "-m", "pip", "install", str(wheel)]]
    if uv := shutil.which("uv"):
        commands.append([uv, "pip", "install", "--python", sys.executable, str(wheel)])
    for command in commands:
        if subprocess.run(command, stdout=sys.stderr, check=False).returncode == 0:
            return
    message = f"could not install {wheel} into {sys.prefix}"
    raise BuildError(message)


def main(arguments: list[str] | None = None) -> int:
    """Command line; prints the path of the wheel."""
    parser = argparse.ArgumentParser(
        prog="build_wheel", description="Build, prove and keep the llama-cpp-python wheel."
    )
    parser.add_argument("--print-path", action="store_true", help="print the kept wheel's path or fail; build nothing")
    parser.add_argument("--force", action="store_true", help="build even when a wheel is kept")
    parser.add_argument("--install", action="store_true", help="install the wheel into this Python's environment")
    parser.add_argument("--cache-dir", type=Path, help="keep wheels there (default: the user's cache)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="compiler processes at once")
    parser.add_argument("--flag-set", choices=sorted(FLAG_SETS), help="build this flag set only (kept apart)")
    parser.add_argument("--smoke", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.smoke:
        smoke(options.smoke)
        return 0
    cache: Path = (options.cache_dir or cache_directory()).absolute()
    forced = FLAG_SETS[options.flag_set] if options.flag_set else None
    try:
        if options.print_path:
            wheel = find_kept(cache, forced)
        else:
            wheel = obtain(cache, force=options.force, jobs=max(1, options.jobs), forced=forced)
        if options.install:
            install(wheel)
    except BuildError as error:
        say(f"build_wheel: {error}")
        return 1
    print(wheel)
    return 0


if __name__ == "__main__":
    sys.exit(main())
