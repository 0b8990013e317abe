"""The command that builds the runtime's wheel. One test really builds, and is a stage of its own."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from cardcage_platform_llamacpp import build_wheel
from cardcage_platform_llamacpp.build_wheel import BuildError, FlagSet

SCRIPT = Path(build_wheel.__file__)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a machine with a compiler and AMX whatever this one has."""
    monkeypatch.setattr(build_wheel, "find_compiler", lambda: "/usr/bin/c++")
    monkeypatch.setattr(build_wheel, "compiler_version", lambda _: "c++ 12.2.0")
    monkeypatch.setattr(build_wheel, "cpu_flags", lambda: ("amx_int8", "amx_tile", "avx512f"))
    return tmp_path / "wheels"


class FakeBuild:
    """Stands in for compiler and smoke test; `deadly` flag sets make wheels that die."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *deadly: str) -> None:
        self.built: list[str] = []
        self.deadly = deadly
        monkeypatch.setattr(build_wheel, "_make_environment", lambda _: Path(sys.executable))
        monkeypatch.setattr(build_wheel, "RUNTIME_REQUIREMENTS", ("--help",))
        monkeypatch.setattr(build_wheel, "_compile", self.compile)
        monkeypatch.setattr(build_wheel, "_smoke_test", self.smoke_test)

    def compile(self, python: Path, work: Path, flags: FlagSet, jobs: int) -> Path:
        self.built.append(flags.name)
        wheel = work / "llama_cpp_python-0.3.36-py3-none-linux_x86_64.whl"
        wheel.write_bytes(flags.name.encode())
        return wheel

    def smoke_test(self, python: Path, wheel: Path, model: Path) -> dict[str, Any]:
        if wheel.read_bytes().decode() in self.deadly:
            return {"failure": "died by signal 11"}
        return {"prompt_tokens": 96}


def obtain(cache: Path, *, force: bool = False) -> Path:
    return build_wheel.obtain(cache, force=force, jobs=1, forced=None)


def recipe(wheel: Path) -> dict[str, Any]:
    return dict(json.loads((wheel.parent / "recipe.json").read_text(encoding="utf-8")))


def test_builds_once_and_keeps(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeBuild(monkeypatch)
    first = obtain(cache)
    assert obtain(cache) == first
    assert fake.built == ["amx-cured"]
    assert recipe(first)["flag_set"] == "amx-cured"
    assert obtain(cache, force=True) == first
    assert len(fake.built) == 2
    assert [path.name for path in cache.iterdir() if path.name.startswith(".")] == [], "no side names are left"


@pytest.mark.parametrize("change", ["cpu", "compiler", "flags", "abi"])
def test_another_machine_gets_another_wheel(cache: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    fake = FakeBuild(monkeypatch)
    first = obtain(cache)
    match change:
        case "cpu":
            monkeypatch.setattr(build_wheel, "cpu_flags", lambda: ("amx_tile", "avx2"))
        case "compiler":
            monkeypatch.setattr(build_wheel, "compiler_version", lambda _: "c++ 13.1.0")
        case "flags":
            monkeypatch.setenv("CXXFLAGS", "-march=znver4")
        case "abi":
            monkeypatch.setattr(sys.implementation, "cache_tag", "cpython-399")
    assert obtain(cache) != first
    assert len(fake.built) == 2


def test_a_wheel_whose_smoke_test_dies_is_not_kept(cache: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    fake = FakeBuild(monkeypatch, "amx-cured")
    wheel = obtain(cache)
    assert fake.built == ["amx-cured", "no-amx"]
    assert recipe(wheel)["flag_set"] == "no-amx"
    assert recipe(wheel)["failed_before"] == [{"flag_set": "amx-cured", "failure": "died by signal 11"}]
    assert "amx-cured build is no good on this machine: its smoke test died by signal 11" in capsys.readouterr().err


def test_when_all_die_there_is_no_wheel_and_one_sentence(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeBuild(monkeypatch, *build_wheel.FLAG_SETS)
    with pytest.raises(BuildError, match=r"no build survived its smoke test: amx-cured died .* portable died"):
        obtain(cache)
    assert not list(cache.glob("*/*.whl"))


def test_a_damaged_wheel_is_built_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeBuild(monkeypatch)
    wheel = obtain(cache)
    wheel.write_bytes(b"cut short")
    obtain(cache)
    assert len(fake.built) == 2


def test_a_cpu_without_amx_gets_a_plain_native_build() -> None:
    names = [flags.name for flags in build_wheel.flag_sets_to_try(("avx2",))]
    assert names == ["native", "portable"]


def test_without_a_compiler_it_says_what_to_install(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": str(tmp_path), "CXX": ""}
    command = [sys.executable, str(SCRIPT), "--cache-dir", str(tmp_path / "wheels")]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert "apt install g++ make" in line


def test_print_path_builds_nothing(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--print-path", "--cache-dir", str(tmp_path / "wheels")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stdout == ""
    assert not (tmp_path / "wheels").exists()


def test_it_runs_as_a_file_with_the_standard_library_only() -> None:
    """`-I -S` leaves out site-packages: this is what runs before anything of Cardcage is installed."""
    result = subprocess.run(
        [sys.executable, "-I", "-S", str(SCRIPT), "--help"], capture_output=True, text=True, check=True
    )
    assert "--print-path" in result.stdout


@pytest.fixture
def installed_wheel(kit) -> Path:
    """The wheel that this environment runs on, where it is still in the cache."""
    result = subprocess.run([sys.executable, str(SCRIPT), "--print-path"], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        pytest.skip("no wheel in the cache of the user who runs the tests")
    return Path(result.stdout.strip())


def test_the_kept_wheel_holds_each_library_where_the_bindings_look(installed_wheel: Path) -> None:
    with zipfile.ZipFile(installed_wheel) as wheel:
        names = wheel.namelist()
        record = next(name for name in names if name.endswith(".dist-info/RECORD"))
        recorded = {row[0] for row in csv.reader(wheel.read(record).decode().splitlines())}
        assert recorded == set(names)
        assert wheel.testzip() is None
    libraries = sorted(name for name in names if ".so" in name)
    assert all(name.startswith("llama_cpp/lib/") for name in libraries)
    assert "llama_cpp/lib/libllama.so" in libraries
    assert recipe(installed_wheel)["smoke"]["prompt_tokens"] == build_wheel.SMOKE_PROMPT_TOKENS


@pytest.mark.heavy
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not os.environ.get("CARDCAGE_HEAVY"), reason="builds llama.cpp (2 to 4 minutes): make test-heavy")
@pytest.mark.skipif("amx_tile" not in build_wheel.cpu_flags(), reason="the fault needs a CPU with AMX")
def test_without_the_cure_the_smoke_test_dies(tmp_path: Path) -> None:
    """The proof that the smoke test can fail: a default build on an AMX machine with GCC 12."""
    if " 12." not in build_wheel.compiler_version(build_wheel.find_compiler() or "c++"):
        pytest.skip("the fault is GCC 12's")
    command = [sys.executable, str(SCRIPT), "--flag-set", "native", "--cache-dir", str(tmp_path / "wheels")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "native died by signal 11" in result.stderr
