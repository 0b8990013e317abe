"""Read-only facts about this machine, from procfs, sysfs and the device tree.

Every function takes the root directory that the files are under, so that a test, or a support case, can bring those of another
machine. Nothing here opens a device or raises because a file is missing: what is not known is None or empty.
"""

from cardcage_sdk.hardware.cpu import CpuFacts, read_cpu
from cardcage_sdk.hardware.devicetree import BoardTree, read_device_tree
from cardcage_sdk.hardware.memory import MemoryFacts, read_memory

__all__ = ["BoardTree", "CpuFacts", "MemoryFacts", "read_cpu", "read_device_tree", "read_memory"]
