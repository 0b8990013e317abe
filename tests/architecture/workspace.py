"""What the architecture tests read: the members of the workspace and their modules."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Member:
    """One distribution of the workspace."""

    path: Path
    metadata: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.metadata["project"]["name"])

    @property
    def package(self) -> Path:
        (package,) = [child for child in (self.path / "src").iterdir() if (child / "__init__.py").exists()]
        return package

    def modules(self) -> list[str]:
        """Dotted names of every module that can be imported without running it as a program."""
        names = []
        for file in sorted(self.package.rglob("*.py")):
            parts = file.relative_to(self.package.parent).with_suffix("").parts
            if parts[-1] == "__main__":
                continue
            names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
        return names


def members() -> list[Member]:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]["workspace"]["members"]
    paths = sorted(path for pattern in patterns for path in ROOT.glob(pattern) if (path / "pyproject.toml").exists())
    return [Member(path=path, metadata=tomllib.loads((path / "pyproject.toml").read_text())) for path in paths]


def member_id(member: Member) -> str:
    return member.name
