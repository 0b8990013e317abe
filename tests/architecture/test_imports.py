"""Who may import whom, and that importing anything changes nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from workspace import ROOT, members

IMPORT_EVERYTHING = r"""
import json, os, signal, sys, threading, logging, warnings

def snapshot():
    return {
        "threads": sorted(t.name for t in threading.enumerate()),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "children": open("/proc/self/task/%d/children" % os.getpid()).read().split(),
        "signals": [str(signal.getsignal(s)) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP)],
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "path": list(sys.path),
        "log_handlers": [str(h) for h in logging.getLogger().handlers],
    }

name, native = sys.argv[1], json.loads(sys.argv[2])
before = snapshot()
__import__(name)
after = snapshot()
changed = {key: [before[key], after[key]] for key in before if before[key] != after[key]}
print("RESULT" + json.dumps({"changed": changed, "modules": sorted(sys.modules)}))
"""

ALLOWED_IN_A_PLATFORM_DECLARATION = {
    "cardcage_sdk": "the contract",
    "pluggy": "the sdk's hook markers",
    "msgpack": "the sdk's pipe",
    "pydantic": "option models, through cardcage_sdk.options",
    "pydantic_core": "pydantic",
    "annotated_types": "pydantic",
    "typing_extensions": "pydantic",
    "typing_inspection": "pydantic",
}


def import_in_clean_process(name: str) -> dict[str, object]:
    run = subprocess.run(
        [sys.executable, "-c", IMPORT_EVERYTHING, name, "[]"], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, f"importing {name} failed:\n{run.stderr}"
    printed, _, result = run.stdout.partition("RESULT")
    assert printed == "", f"importing {name} printed {printed!r}"
    assert run.stderr == "", f"importing {name} wrote to stderr: {run.stderr!r}"
    return dict(json.loads(result))


def runtime_modules() -> list[str]:
    """All modules but the engine side of platforms, whose import loads a native library by design, in a worker only."""
    return [name for member in members() for name in member.modules()]


@pytest.mark.parametrize("name", runtime_modules())
def test_importing_a_module_has_no_side_effect(name: str) -> None:
    changed = import_in_clean_process(name)["changed"]
    assert changed == {}, f"importing {name} changed {changed}"


@pytest.mark.parametrize("member", [m for m in members() if m.path.parent.name == "platforms"], ids=lambda m: m.name)
def test_a_platform_declares_itself_without_its_runtime(member) -> None:
    (module,) = member.metadata["project"]["entry-points"]["cardcage.platforms"].values()
    loaded = {str(name).partition(".")[0] for name in import_in_clean_process(module)["modules"]}
    own = member.package.name
    strangers = {
        name
        for name in loaded - set(sys.stdlib_module_names) - {own, "__main__", *ALLOWED_IN_A_PLATFORM_DECLARATION}
        if not name.startswith(("_", "__editable__", "sitecustomize", "cython_runtime", "distutils-precedence"))
    }
    assert strangers == set(), f"{module} imports {strangers}; the engine's imports belong into the worker"


def test_what_a_worker_imports_costs_no_pydantic() -> None:
    for name in ("cardcage_sdk", "cardcage_sdk.worker", "cardcage_sdk.ipc", "cardcage_sdk.text"):
        modules = import_in_clean_process(name)["modules"]
        assert isinstance(modules, list)
        assert not {"pydantic", "quart"} & set(modules), name


def test_import_contracts_hold() -> None:
    run = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_core_holds_no_platform_name() -> None:
    names = {
        name
        for m in members()
        if m.path.parent.name == "platforms"
        for name in m.metadata["project"]["entry-points"]["cardcage.platforms"]
    }
    assert names, "the workspace has platforms"
    for file in (ROOT / "core/src").rglob("*.py"):
        found = {name for name in names if name in file.read_text().lower()}
        assert not found, f"{file.relative_to(ROOT)} names the platform {found}"
