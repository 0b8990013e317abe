"""Small files of procfs and sysfs, any of which may not be there."""

from __future__ import annotations

from pathlib import Path

__all__ = ["ROOT", "cgroup_directories", "read_bytes", "read_text"]

ROOT = Path("/")


def read_bytes(path: Path) -> bytes | None:
    """Content of a file, or None where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return None


def read_text(path: Path) -> str | None:
    """Content of a file as text, or None where it cannot be read."""
    data = read_bytes(path)
    return None if data is None else data.decode("utf-8", "replace")


def cgroup_directories(root: Path, controller: str) -> list[Path]:
    """Directories of this process's control groups, innermost first, of version 2 and, for `controller`, of version 1.

    A limit anywhere on the way up holds. Inside a container the group's path may lead nowhere while the mount is the group
    itself; so the mount is always the last.
    """
    directories: list[Path] = []
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if controllers == "":
            mount = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            mount = root / "sys/fs/cgroup" / controller
        else:
            continue
        directory = mount / name.lstrip("/")
        while directory != mount and mount in directory.parents:
            directories.append(directory)
            directory = directory.parent
        directories.append(mount)
    return directories
