"""Which variant of a model fits this machine, and why the others do not. Pure."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cardcage_sdk.errors import ModelNotFoundError, NoFittingVariantError, VariantRequiredError

if TYPE_CHECKING:
    from cardcage_sdk.sources import RemoteModel, RemoteVariant

__all__ = ["Choice", "Fit", "Machine", "PlatformFacts", "choose", "fits_of"]

MEMORY_FACTOR = 1.1
"""A loaded model takes its file's size, its context and buffers; this much is the least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformFacts:
    """What a platform says of this machine.

    Attributes:
        chips: Chips that it found, as people write them.
        memory_bytes: Memory of its largest device, or None where models live in the host's.
        file_patterns: See `Platform.file_patterns`.
    """

    id: str
    is_available: bool
    reason: str
    chips: tuple[str, ...]
    memory_bytes: int | None
    file_patterns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """This machine: platforms in the order of preference, and its memory (None where unknown)."""

    platforms: tuple[PlatformFacts, ...]
    memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A variant against this machine.

    Attributes:
        platforms: Platforms and the chip on each that it fits.
        reason: Why it fits none.
    """

    variant: RemoteVariant
    platforms: tuple[tuple[str, str], ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is to be fetched.

    Attributes:
        platform: The one platform that it is for; None lets the files decide once they are there.
        chip: The chip in its place in the store.
    """

    variant: RemoteVariant
    platform: str | None
    chip: str | None


def fits_of(model: RemoteModel, machine: Machine) -> list[Fit]:
    """Every variant against this machine, in the source's order."""
    fits: list[Fit] = []
    for variant in model.variants:
        answers = [(platform, _chip_or_reason(variant, platform, machine)) for platform in machine.platforms]
        good = tuple((platform.id, chip) for platform, (chip, reason) in answers if not reason)
        reasons = [f"{platform.id}: {reason}" for platform, (_, reason) in answers if reason]
        if variant.platform and variant.platform not in {platform.id for platform in machine.platforms}:
            reason = f"its platform {variant.platform} is not installed"
        else:
            reason = "; ".join(reasons) or "no platform is installed"
        fits.append(Fit(variant=variant, platforms=good, reason="" if good else reason))
    return fits


def _chip_or_reason(variant: RemoteVariant, platform: PlatformFacts, machine: Machine) -> tuple[str, str]:
    """The chip that the variant would run on, or why it does not on this platform."""
    if variant.platform is not None and variant.platform != platform.id:
        return "", f"it is made for {variant.platform}"
    if variant.platform is None and platform.file_patterns:
        names = [file.name.rpartition("/")[2].lower() for file in variant.files if not file.is_archive]
        has_archive = any(file.is_archive for file in variant.files)
        is_match = any(fnmatch.fnmatch(name, pattern.lower()) for name in names for pattern in platform.file_patterns)
        if not is_match and not has_archive:
            return "", f"it has no {' or '.join(platform.file_patterns)} file"
    if not platform.is_available:
        return "", platform.reason or "not available here"
    chip = platform.chips[0] if platform.chips else ""
    if variant.chips:
        here = {found.lower(): found for found in platform.chips}
        matching = [here[wanted.lower()] for wanted in variant.chips if wanted.lower() in here]
        if not matching:
            return "", f"made for {', '.join(variant.chips)}, here is {', '.join(platform.chips) or 'none of them'}"
        chip = matching[0]
    memory = platform.memory_bytes or machine.memory_bytes
    needed = int(variant.size_bytes * MEMORY_FACTOR)
    if memory is not None and needed > memory:
        return "", f"needs {_gigabytes(needed)} of memory, here are {_gigabytes(memory)}"
    return chip, ""


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB"


def choose(
    model: RemoteModel,
    machine: Machine,
    *,
    asked: str,
    tag: str = "",
    place: str = "",
    platform: str | None = None,
    chip: str | None = None,
) -> Choice:
    """Pick the variant to fetch.

    A platform that is named is taken as the caller's word: a model may be fetched for another machine.

    Args:
        model: What the source has.
        machine: What there is here.
        asked: The name as it was asked for, for messages.
        tag: Variant, size or file that the name asks for; empty or `latest` takes the best that fits.
        place: `platform-chip` that the name asks for.
        platform: Platform that the caller asks for.
        chip: Chip that the caller asks for.

    Raises:
        ModelNotFoundError: No variant has this tag, or is for this platform and chip.
        NoFittingVariantError: None fits this machine; with the reason for each.
        VariantRequiredError: Several platforms would take it and none was named.
    """
    tagged = [variant for variant in model.variants if _has_tag(variant, tag)]
    if not tagged:
        labels = ", ".join(variant.label for variant in model.variants if variant.label) or "no variants"
        raise ModelNotFoundError(asked, message=f"'{model.reference}' has no variant '{tag}'; it has {labels}")
    if platform is not None or place:
        return _choose_for_place(tagged, machine, asked=asked, place=place, platform=platform, chip=chip)
    narrowed = [
        variant for variant in tagged if chip is None or chip.lower() in {name.lower() for name in variant.chips}
    ]
    fits = fits_of(_only(model, tuple(narrowed or tagged)), machine)
    fitting = [fit for fit in fits if fit.platforms]
    if not fitting:
        raise NoFittingVariantError(asked, variants=[_described(fit.variant, reason=fit.reason) for fit in fits])
    offered = {name: (fit.variant, found) for fit in reversed(fitting) for name, found in reversed(fit.platforms)}
    declared = {fit.variant.platform for fit in fitting}
    if len(declared - {None}) > 1:
        raise VariantRequiredError(
            asked, variants=[{**_described(fit.variant), "platform": fit.platforms[0][0]} for fit in fitting]
        )
    # In the order of the configuration; the files themselves have the last word where the variant names no platform.
    first = next(facts.id for facts in machine.platforms if facts.id in offered)
    variant, found = offered[first]
    is_open = variant.platform is None
    return Choice(variant=variant, platform=None if is_open else first, chip=chip or (None if is_open else found))


def _choose_for_place(
    tagged: list[RemoteVariant],
    machine: Machine,
    *,
    asked: str,
    place: str,
    platform: str | None,
    chip: str | None,
) -> Choice:
    facts = {item.id: item for item in machine.platforms}
    known_here = [name for name in sorted(facts, key=len, reverse=True) if f"{place}-".startswith(f"{name}-")]
    wanted = platform or (known_here[0] if known_here else None)
    if wanted is None:
        wanted, _, rest = place.partition("-")
    else:
        rest = place.removeprefix(wanted).removeprefix("-")
    wanted_chip = chip or rest or None
    for variant in tagged:
        if variant.platform not in {None, wanted}:
            continue
        if wanted_chip and variant.chips and wanted_chip.lower() not in {name.lower() for name in variant.chips}:
            continue
        known = facts.get(wanted)
        if variant.platform is None and known is not None and known.file_patterns:
            _, reason = _chip_or_reason(variant, known, Machine(platforms=(), memory_bytes=None))
            if reason.startswith("it has no "):
                continue
        here = known.chips[0] if known is not None and known.chips else None
        found = wanted_chip or (variant.chips[0] if variant.chips else here)
        return Choice(variant=variant, platform=wanted, chip=found)
    where = f"{wanted}/{wanted_chip}" if wanted_chip else wanted
    have = ", ".join(variant.label or variant.platform or "one without a platform" for variant in tagged)
    raise ModelNotFoundError(asked, message=f"'{asked}' has no variant for {where}; it has {have}")


def _only(model: RemoteModel, variants: tuple[RemoteVariant, ...]) -> RemoteModel:
    return type(model)(source=model.source, reference=model.reference, variants=variants)


def _has_tag(variant: RemoteVariant, tag: str) -> bool:
    wanted = tag.casefold()
    if wanted in {"", "latest", variant.label.casefold(), variant.size.casefold()}:
        return True
    if variant.size.casefold().startswith(f"{wanted}-"):
        return True
    return any(wanted in {file.name.casefold(), file.name.casefold().rpartition("/")[2]} for file in variant.files)


def _described(variant: RemoteVariant, *, reason: str | None = None) -> dict[str, Any]:
    described: dict[str, Any] = {
        "label": variant.label,
        "platform": variant.platform,
        "chips": list(variant.chips),
        "size_bytes": variant.size_bytes,
    }
    return described if reason is None else {**described, "reason": reason}
