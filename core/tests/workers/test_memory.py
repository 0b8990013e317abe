"""Free memory, and kills for want of it, from files as kernels write them."""

from __future__ import annotations

from pathlib import Path

from cardcage.workers.memory import MemoryReader, MemorySample


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_host_alone(tmp_path):
    write(tmp_path / "proc/meminfo", "MemTotal:  9000 kB\nMemAvailable:   512 kB\n")
    write(tmp_path / "proc/vmstat", "nr_free_pages 1\noom_kill 3\n")
    assert MemoryReader(root=tmp_path).sample() == MemorySample(free_bytes=524_288, kills=3)


def test_kills_within_the_control_group_count_too(tmp_path):
    write(tmp_path / "proc/meminfo", "MemTotal:  9000 kB\nMemAvailable:   5120 kB\n")
    write(tmp_path / "proc/vmstat", "oom_kill 3\n")
    write(tmp_path / "proc/self/cgroup", "0::/a.slice/b.service\n")
    write(tmp_path / "sys/fs/cgroup/a.slice/b.service/memory.max", "1000000\n")
    write(tmp_path / "sys/fs/cgroup/a.slice/b.service/memory.current", "900000\n")
    write(tmp_path / "sys/fs/cgroup/a.slice/b.service/memory.events", "low 0\noom 4\noom_kill 2\n")
    assert MemoryReader(root=tmp_path).sample() == MemorySample(free_bytes=100_000, kills=5)


def test_a_machine_that_tells_nothing(tmp_path):
    assert MemoryReader(root=tmp_path).sample() == MemorySample(free_bytes=None, kills=0)


def test_this_machine():
    sample = MemoryReader().sample()
    assert sample.free_bytes is not None
    assert sample.free_bytes > 1 << 20
