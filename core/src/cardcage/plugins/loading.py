"""Load one plugin: import its module, call its hook, check and construct what it declares."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from abc import ABC
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import pluggy

from cardcage.plugins.contract import check_declared_version, check_requirements
from cardcage.plugins.noise import noise_on_stderr
from cardcage_sdk import hookspecs
from cardcage_sdk.capabilities import Capabilities
from cardcage_sdk.dialect import Dialect
from cardcage_sdk.errors import PluginContractError, PluginError, PluginLoadError
from cardcage_sdk.platform import Platform
from cardcage_sdk.sources import Source

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from cardcage.plugins.records import Candidate, Kind

__all__ = ["Declared", "load_candidate"]

HOOKS: dict[Kind, str] = {
    "platform": "register_platforms",
    "dialect": "register_dialects",
    "source": "register_sources",
}

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
_ENGINE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What one plugin brought, constructed."""

    platforms: tuple[Platform, ...] = ()
    dialects: tuple[Dialect, ...] = ()
    sources: tuple[Source, ...] = ()


def load_candidate(candidate: Candidate) -> Declared:
    """Import, ask and construct; nothing that the plugin's code raises gets out as itself.

    Raises:
        PluginLoadError: Its code raised, with type and text of what it raised.
        PluginContractError: It was written for another contract, or breaks this one.
    """
    check_requirements(candidate)
    module = _guarded(candidate, "import", lambda: _import(candidate))
    if hasattr(module, "CARDCAGE_CONTRACT"):
        check_declared_version(candidate, module.CARDCAGE_CONTRACT)
    manager = pluggy.PluginManager(hookspecs.PROJECT_NAME)
    manager.add_hookspecs(hookspecs)
    try:
        manager.register(module, name=candidate.module)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise PluginContractError(_who(candidate), " ".join(str(error).split())) from error

    platforms: tuple[Platform, ...] = _declared(candidate, manager, "platform", Platform)
    dialects: tuple[Dialect, ...] = _declared(candidate, manager, "dialect", Dialect)
    sources: tuple[Source, ...] = _declared(candidate, manager, "source", Source)
    if not platforms and not dialects and not sources:
        hooks = HOOKS[candidate.kind] if candidate.kind else " or ".join(HOOKS.values())
        raise PluginContractError(_who(candidate), f"implements no hook {hooks} that declares anything")
    for platform in platforms:
        _check_platform(candidate, platform)
    for dialect in dialects:
        _check_dialect(candidate, dialect)
    for source in sources:
        _check_name(candidate, source)
    return Declared(platforms=platforms, dialects=dialects, sources=sources)


def _who(candidate: Candidate) -> str:
    return candidate.name or candidate.distribution


def _guarded(candidate: Candidate, stage: str, call: Callable[[], _T]) -> _T:
    """The boundary to a plugin's code: whatever it raises becomes a recorded reason and stops nothing."""
    try:
        with noise_on_stderr():
            return call()
    except PluginError:
        raise
    except (Exception, SystemExit) as error:  # named boundary: a plugin may raise anything at start-up
        text = " ".join(str(error).split()) or "no message"
        raise PluginLoadError(_who(candidate), f"{stage} raised {type(error).__name__}: {text}") from error


def _import(candidate: Candidate) -> ModuleType:
    if candidate.file is None:
        return importlib.import_module(candidate.module)
    if not candidate.file.is_file():
        raise PluginLoadError(_who(candidate), f"there is no file '{candidate.file}'")
    spec = importlib.util.spec_from_file_location(candidate.module, candidate.file)
    if spec is None or spec.loader is None:
        raise PluginLoadError(_who(candidate), f"'{candidate.file}' is not a Python source file")
    module = importlib.util.module_from_spec(spec)
    # Before it runs, as the import system does: dataclasses look their module up while it is being executed.
    sys.modules[candidate.module] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[candidate.module]
        raise
    return module


def _declared(candidate: Candidate, manager: pluggy.PluginManager, kind: Kind, base: type) -> tuple[Any, ...]:
    """Call one hook of this one plugin and construct the classes that it returns."""
    if candidate.kind not in {None, kind}:
        return ()
    hook = getattr(manager.hook, HOOKS[kind])
    for implementation in hook.get_hookimpls():
        # pluggy would hand the coroutine over as the result, and nobody would await it.
        if inspect.iscoroutinefunction(implementation.function):
            raise PluginContractError(_who(candidate), f"{HOOKS[kind]} must be a plain function, not async")
    results: list[Any] = _guarded(candidate, HOOKS[kind], hook)
    instances: list[Any] = []
    for result in results:
        if not isinstance(result, list | tuple):
            raise PluginContractError(
                _who(candidate), f"{HOOKS[kind]} must return a list of classes, not {type(result).__name__}"
            )
        for cls in result:
            if not (isinstance(cls, type) and issubclass(cls, base)):
                raise PluginContractError(
                    _who(candidate), f"{HOOKS[kind]} returned {cls!r}, which is no subclass of {base.__name__}"
                )
            _check_abstract(candidate, cls)
            instances.append(_guarded(candidate, f"{cls.__name__}()", cls))
    return tuple(instances)


def _check_abstract(candidate: Candidate, cls: type) -> None:
    missing = sorted(getattr(cls, "__abstractmethods__", ())) if issubclass(cls, ABC) else []
    if missing:
        raise PluginContractError(_who(candidate), f"{cls.__name__} does not implement {', '.join(missing)}")


def _check_name(candidate: Candidate, instance: Platform | Dialect | Source) -> None:
    cls = type(instance).__name__
    name = getattr(instance, "name", None)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise PluginContractError(
            _who(candidate), f"{cls}.name must be a lower-case id of letters, digits, '-' and '_', not {name!r}"
        )
    if candidate.name is not None and name != candidate.name:
        raise PluginContractError(
            _who(candidate), f"{cls}.name is '{name}', but its entry point is named '{candidate.name}'"
        )


def _check_platform(candidate: Candidate, platform: Platform) -> None:
    _check_name(candidate, platform)
    cls = type(platform).__name__
    engine = getattr(platform, "engine", None)
    if not isinstance(engine, str) or not _ENGINE.fullmatch(engine):
        raise PluginContractError(_who(candidate), f"{cls}.engine must be 'package.module:Class', not {engine!r}")
    if not isinstance(getattr(platform, "capabilities", None), Capabilities):
        raise PluginContractError(_who(candidate), f"{cls}.capabilities must be Capabilities(...)")


def _check_dialect(candidate: Candidate, dialect: Dialect) -> None:
    _check_name(candidate, dialect)
    cls = type(dialect).__name__
    prefixes = getattr(dialect, "prefixes", None)
    if not isinstance(prefixes, tuple) or not prefixes:
        raise PluginContractError(_who(candidate), f"{cls}.prefixes must be a tuple of paths, not {prefixes!r}")
    for prefix in prefixes:
        if not isinstance(prefix, str) or not prefix.startswith("/"):
            raise PluginContractError(_who(candidate), f"{cls}.prefixes: {prefix!r} must begin with '/'")
