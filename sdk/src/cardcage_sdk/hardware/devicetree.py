"""The device tree, which names the board and its chip on ARM and RISC-V machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cardcage_sdk.hardware.files import ROOT, read_bytes

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["BoardTree", "read_device_tree"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardTree:
    """What the root node of the device tree says; empty on machines without one.

    Attributes:
        compatible: From the board itself to its chip, as `("radxa,rock-5b", "rockchip,rk3588")`.
        model: Name of the board for people.
    """

    compatible: tuple[str, ...] = ()
    model: str = ""


def read_device_tree(root: Path = ROOT) -> BoardTree:
    """Read the root node."""
    for directory in (root / "proc/device-tree", root / "sys/firmware/devicetree/base"):
        compatible = _strings(directory / "compatible")
        if compatible:
            return BoardTree(compatible=compatible, model=" ".join(_strings(directory / "model")))
    return BoardTree()


def _strings(path: Path) -> tuple[str, ...]:
    """The strings of a property, each of which ends with a null byte."""
    data = read_bytes(path) or b""
    return tuple(part.decode("utf-8", "replace") for part in data.split(b"\0") if part)
