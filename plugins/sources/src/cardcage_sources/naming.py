"""What the file names of models tell: quantisation, size, parts, chip. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["NameParts", "chip_of", "part_of", "quantisation_of", "split_name"]

_QUANTISATION = re.compile(
    r"(?:^|[-._])((?:UD-)?(?:I?Q\d(?:_[0-9A-Z]+)*|TQ\d_\d|MXFP4(?:_MOE)?|BF16|F16|FP16|F32|FP32))(?=$|[-._])",
    re.IGNORECASE,
)
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.[^.]+)")
_SIZE = re.compile(r"(?:^|[-_.])((?:\d+x)?\d+(?:\.\d+)?[bm](?:-a\d+(?:\.\d+)?b)?)(?=$|[-_.])", re.IGNORECASE)
_CHIP = re.compile(r"(?:^|[-_.])(rk\d{4}[a-z]?|rv\d{4}[a-z]?|rk182[0-9x])(?=$|[-_.])", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class NameParts:
    """A model's name in the catalog's form: lower case, size apart."""

    name: str
    size: str


def quantisation_of(file_name: str) -> str | None:
    """`Q4_K_M` of `Qwen2.5-0.5B-Instruct-Q4_K_M.gguf`, upper case; None where the name tells none."""
    stem = file_name.rpartition("/")[2].rpartition(".")[0]
    part = _PART.fullmatch(file_name.rpartition("/")[2])
    found = _QUANTISATION.findall(part[1] if part else stem)
    return str(found[-1]).upper() if found else None


def part_of(file_name: str) -> tuple[str, int, int] | None:
    """Name without the part, its number and how many there are, for `x-00001-of-00003.gguf`; None for a whole file."""
    found = _PART.fullmatch(file_name)
    return (found[1] + found[4], int(found[2]), int(found[3])) if found else None


def chip_of(file_name: str) -> str | None:
    """`rk3588` of `Qwen3-4B_W8A8_RK3588.rkllm`; None where the name tells none."""
    found = _CHIP.search(file_name.rpartition("/")[2].rpartition(".")[0])
    return found[1].lower() if found else None


def split_name(text: str, *, quantisation: str | None = None) -> NameParts:
    """`Qwen2.5-0.5B-Instruct-GGUF` with `Q4_K_M` becomes `qwen2.5-instruct` and `0.5b-q4_k_m`."""
    name = re.sub(r"[-_.]gguf$", "", text, flags=re.IGNORECASE)
    if quantisation:
        name = re.sub(rf"[-._]{re.escape(quantisation)}(?=$|[-._])", "", name, flags=re.IGNORECASE)
    size = ""
    if found := _SIZE.search(name):
        size = found[1]
        name = name[: found.start()] + name[found.end() :]
    name = re.sub(r"[\s/:@()]+", "-", name).strip("-_.").lower() or "model"
    return NameParts(name=name, size="-".join(part for part in (size, quantisation) if part).lower())
