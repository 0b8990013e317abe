"""Free memory from files as kernels write them."""

from __future__ import annotations

from pathlib import Path

from cardcage.workers.memory import MemoryReader, MemorySample


def write(directory: Path, **files: str) -> Path:
    directory.mkdir(exist_ok=True)
    for name, text in files.items():
        (directory / name.replace("__", ".")).write_text(text)
    return directory


def test_the_host_alone(tmp_path):
    proc = write(
        tmp_path / "proc", meminfo="MemTotal:  9 kB\nMemAvailable:   512 kB\n", vmstat="nr_free 1\noom_kill 3\n"
    )
    assert MemoryReader(proc=proc, cgroup=tmp_path / "none").sample() == MemorySample(free_bytes=524_288, kills=3)


def test_a_control_group_bounds_it_less_its_page_cache(tmp_path):
    proc = write(tmp_path / "proc", meminfo="MemAvailable:   5120 kB\n", vmstat="oom_kill 3\n")
    group = write(
        tmp_path / "group",
        memory__max="1000000\n",
        memory__current="900000\n",
        memory__stat="anon 1\nfile 200000\n",
        memory__events="low 0\noom_kill 2\n",
    )
    assert MemoryReader(proc=proc, cgroup=group).sample() == MemorySample(free_bytes=300_000, kills=5)
    write(group, memory__max="max\n")
    assert MemoryReader(proc=proc, cgroup=group).sample().free_bytes == 5120 * 1024


def test_a_machine_that_tells_nothing(tmp_path):
    assert MemoryReader(proc=tmp_path, cgroup=tmp_path).sample() == MemorySample(free_bytes=None, kills=0)


def test_this_machine():
    sample = MemoryReader().sample()
    assert sample.free_bytes is not None
    assert sample.free_bytes > 1 << 20
