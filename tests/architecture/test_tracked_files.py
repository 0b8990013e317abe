"""What must never be committed, and that documents name what exists."""

from __future__ import annotations

import re
import subprocess

from workspace import ROOT

BUILD_PRODUCTS = re.compile(r"(^|/)(uv\.lock|package-lock\.json|[^/]*\.(gguf|onnx|rkllm|rknn|so|whl))$")
REGISTRY_ADDRESS = re.compile(r"https?://[^ \"'\s]*(pypi|pythonhosted|npmjs|/simple)\b", re.IGNORECASE)
LINK = re.compile(r"\[[^\]]*\]\((?!https?://|#|mailto:)([^)#\s]+)(#[^)]*)?\)")


def tracked() -> list[str]:
    run = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30)
    return [name for name in run.stdout.splitlines() if (ROOT / name).is_file()]


def test_no_build_product_is_tracked() -> None:
    names = tracked()
    assert len(names) > 20
    assert [name for name in names if BUILD_PRODUCTS.search(name)] == []


def test_no_registry_address_is_tracked() -> None:
    for name in tracked():
        text = (ROOT / name).read_bytes().decode("utf-8", "replace")
        assert not REGISTRY_ADDRESS.search(text), name


def test_constraints_pin_exactly_and_hold_no_address() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert len(lines) > 30
    for line in lines:
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!-]+( ?;.*)?", line), line


def test_links_between_documents_lead_somewhere() -> None:
    for name in tracked():
        if not name.endswith(".md"):
            continue
        file = ROOT / name
        for target, _ in LINK.findall(file.read_text()):
            assert (file.parent / target).exists(), f"{name} links to {target}"
