"""Was a plugin written for this contract?"""

from __future__ import annotations

from importlib import metadata

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from cardcage.plugins.records import Candidate
from cardcage_sdk.errors import PluginContractError
from cardcage_sdk.hookspecs import CONTRACT_VERSION

__all__ = ["check_declared_version", "check_requirements"]

SDK = "cardcage-sdk"


def major(version: tuple[int, int]) -> tuple[int, ...]:
    """The part that must be equal: while the major is 0, the minor counts as the major."""
    return version if version[0] == 0 else version[:1]


def check_declared_version(candidate: Candidate, declared: object) -> None:
    """Check `CARDCAGE_CONTRACT` of a plugin module.

    Raises:
        PluginContractError: Another major, or not a pair of numbers.
    """
    if (
        not isinstance(declared, tuple)
        or len(declared) != 2
        or not all(isinstance(part, int) and not isinstance(part, bool) for part in declared)
    ):
        raise PluginContractError(
            candidate.name or candidate.module, f"CARDCAGE_CONTRACT must be a pair of numbers, not {declared!r}"
        )
    if major(declared) != major(CONTRACT_VERSION):
        written, ours = _dotted(declared), _dotted(CONTRACT_VERSION)
        upgrade = candidate.distribution if declared < CONTRACT_VERSION else "cardcage and cardcage-sdk"
        raise PluginContractError(
            candidate.name or candidate.module,
            f"was written for contract {written}, this is contract {ours}: upgrade {upgrade}",
        )


def check_requirements(candidate: Candidate) -> None:
    """Check the range on the sdk in the distribution's metadata against the sdk that is installed.

    pip does the same at installation, but not when the sdk is upgraded beside the plugin later. A distribution that
    names no range is taken as it is.

    Raises:
        PluginContractError: The installed sdk lies outside the range.
    """
    installed = Version(metadata.version(SDK))
    for text in candidate.requirements:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue  # another package's metadata; the installer's business, not ours
        if canonicalize_name(requirement.name) != SDK or (requirement.marker and not requirement.marker.evaluate()):
            continue
        if not requirement.specifier.contains(installed, prereleases=True):
            lower = [
                Version(spec.version.removesuffix(".*"))
                for spec in requirement.specifier
                if spec.operator in {">=", ">", "==", "~="}
            ]
            is_newer = any(version > installed for version in lower)
            upgrade = "cardcage and cardcage-sdk" if is_newer else candidate.distribution
            raise PluginContractError(
                candidate.name or candidate.module,
                f"was written for {SDK}{requirement.specifier}, installed is {installed}: upgrade {upgrade}",
            )


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
