"""Facts of machines that are not here, from files as they have them."""

import os
from pathlib import Path

import pytest

from cardcage_sdk.hardware import BoardTree, CpuFacts, MemoryFacts, read_cpu, read_device_tree, read_memory

GIB = 1 << 30


def write(root: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


ROCK5 = {
    "proc/self/status": "Name:\tpython\nCpus_allowed_list:\t0-7\n",
    "proc/self/cgroup": "0::/\n",
    "proc/cpuinfo": (
        "processor\t: 0\nFeatures\t: fp asimd asimddp\nCPU part\t: 0xd05\n\n"
        "processor\t: 4\nFeatures\t: fp asimd asimddp sve\nCPU part\t: 0xd0b\n\nHardware\t: Rockchip RK3588\n"
    ),
    "proc/meminfo": "MemTotal:       16000000 kB\nMemFree:  1 kB\nMemAvailable:   12000000 kB\n",
    "proc/device-tree/compatible": b"radxa,rock-5b\0rockchip,rk3588\0",
    "proc/device-tree/model": b"Radxa ROCK 5B\0",
}


def test_a_board(tmp_path: Path) -> None:
    root = write(tmp_path, ROCK5)
    assert read_cpu(root) == CpuFacts(
        usable=8, allowed=8, model="Rockchip RK3588", flags=frozenset({"fp", "asimd", "asimddp"})
    )
    assert read_memory(root) == MemoryFacts(total_bytes=16_000_000 * 1024, available_bytes=12_000_000 * 1024)
    assert read_device_tree(root) == BoardTree(compatible=("radxa,rock-5b", "rockchip,rk3588"), model="Radxa ROCK 5B")


def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    assert read_cpu(tmp_path) == CpuFacts(usable=1, allowed=1)
    assert read_memory(tmp_path) == MemoryFacts()
    assert read_device_tree(tmp_path) == BoardTree()


@pytest.mark.parametrize(
    ("cpu_list", "quota", "allowed", "usable"),
    [
        ("0-3", "max 100000", 4, 4),
        ("0-3", "150000 100000", 4, 1),
        ("0-3", "250000 100000", 4, 2),
        ("0-3", "50000 100000", 4, 1),
        ("0-3", "900000 100000", 4, 4),
        ("1,3,5-6", "max 100000", 4, 4),
    ],
)
def test_limits_of_cpu_time(tmp_path: Path, cpu_list: str, quota: str, allowed: int, usable: int) -> None:
    files = {
        "proc/self/status": f"Cpus_allowed_list:\t{cpu_list}\n",
        "proc/self/cgroup": "0::/system.slice/cardcage.service\n",
        "sys/fs/cgroup/system.slice/cpu.max": quota,
        "sys/fs/cgroup/system.slice/cardcage.service/cpu.max": "max 100000",
    }
    facts = read_cpu(write(tmp_path, files))
    assert (facts.allowed, facts.usable) == (allowed, usable)


def test_limits_of_memory(tmp_path: Path) -> None:
    files = {
        **ROCK5,
        "proc/self/cgroup": "0::/a/b\n",
        "sys/fs/cgroup/a/memory.max": str(4 * GIB),
        "sys/fs/cgroup/a/memory.current": str(3 * GIB),
        "sys/fs/cgroup/a/memory.stat": f"anon {GIB}\ninactive_file {GIB}\nactive_file 0\n",
        "sys/fs/cgroup/a/b/memory.max": "max",
    }
    assert read_memory(write(tmp_path, files)) == MemoryFacts(total_bytes=4 * GIB, available_bytes=2 * GIB)


def test_control_groups_of_version_1(tmp_path: Path) -> None:
    files = {
        **ROCK5,
        "proc/self/cgroup": "4:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": str(2 * GIB),
        "sys/fs/cgroup/memory/memory.usage_in_bytes": str(GIB),
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
    }
    root = write(tmp_path, files)
    assert read_memory(root) == MemoryFacts(total_bytes=2 * GIB, available_bytes=GIB)
    assert read_cpu(root).usable == 2


def test_this_machine() -> None:
    assert 1 <= read_cpu().usable <= read_cpu().allowed == len(os.sched_getaffinity(0))
    memory = read_memory()
    assert memory.total_bytes is not None
    assert memory.available_bytes is not None
    assert 0 < memory.available_bytes <= memory.total_bytes
