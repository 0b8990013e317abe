"""The conformance suite of dialects, for pytest."""

from __future__ import annotations

import importlib
import json
import re
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from cardcage_sdk.dialect import Reply
from cardcage_sdk.errors import (
    AuthenticationError,
    BusyError,
    CardcageError,
    EngineError,
    InternalError,
    MethodNotAllowedError,
    QueueFullError,
    RequestError,
    RouteNotFoundError,
    error_classes,
    from_wire,
)
from cardcage_sdk.testing.empty_service import EmptyService

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cardcage_sdk.chat import JsonValue
    from cardcage_sdk.dialect import Dialect

__all__ = ["DialectSuite", "sample_error"]

_NAME = re.compile(r"[a-z][a-z0-9-]*")
_MESSAGE = "What went wrong, in one sentence"

# A plausible value for each structured field of the error tree.
_FIELDS: dict[str, Any] = {
    "allowed": ["GET"],
    "candidates": ["one", "two"],
    "code": "x",
    "context_tokens": 2048,
    "exit_code": None,
    "file": "model.gguf",
    "feature": "logprobs",
    "free_bytes": 1,
    "kind": "chat",
    "leases": 1,
    "limit_bytes": 1024,
    "log_tail": "last line",
    "maximum": 4,
    "method": "PATCH",
    "model": "smollm2",
    "needed_bytes": 2,
    "origin": "https://elsewhere.example",
    "path": "/somewhere",
    "places": 48,
    "platform": "rkllm",
    "plugin": "some-plugin",
    "prompt_tokens": 4096,
    "reason": "not installed",
    "requested": 9,
    "required_bytes": 2,
    "retry_after_seconds": 1.5,
    "seconds": 30.0,
    "signal": "SIGSEGV",
    "source": "somewhere",
    "task": "embed",
    "variants": [{"label": "q4", "platform": "cpu", "chips": [], "size_bytes": 1, "reason": "too large"}],
    "waited_seconds": 300.0,
}


def sample_error(cls: type[CardcageError]) -> CardcageError:
    """An instance of an error class with plausible values in all its fields."""
    fields = {name: _FIELDS.get(name) for name in cls.FIELDS}
    return from_wire({"class": cls.__name__, "message": _MESSAGE, "param": None, "fields": fields})


class DialectSuite:
    """Proves that a dialect fits into the frame and renders every error of the tree.

    In a test module of your own::

        class TestMine(DialectSuite):
            dialect = MyDialect

    Attributes:
        dialect: The class.
        settings: Its table of the configuration.
    """

    dialect: ClassVar[type[Dialect]]
    settings: ClassVar[Mapping[str, JsonValue]] = {}

    def test_name_and_prefixes(self) -> None:
        """They are of the form that configuration and routing need."""
        dialect = self.dialect()
        assert _NAME.fullmatch(dialect.name), f"name '{dialect.name}' must be lower-case letters, digits and hyphens"
        assert dialect.prefixes, "a dialect must own at least one prefix"
        assert len(set(dialect.prefixes)) == len(dialect.prefixes), "a prefix is named twice"
        for prefix in dialect.prefixes:
            assert prefix.startswith("/"), f"prefix '{prefix}' must begin with a slash"
            assert prefix == "/" or not prefix.endswith("/"), f"prefix '{prefix}' must not end with a slash"
        for path in dialect.any_origin_paths:
            assert self._is_own(path), f"any_origin_paths has '{path}', which is under none of {dialect.prefixes}"

    @pytest.mark.parametrize("cls", error_classes(), ids=lambda cls: cls.__name__)
    def test_every_error_has_a_reply(self, cls: type[CardcageError]) -> None:
        """Each class of the tree is rendered with a fitting status and a body that says what is wrong."""
        dialect = self.dialect()
        error = sample_error(cls)
        for prefix in dialect.prefixes:
            reply = dialect.error_reply(error, f"{prefix.rstrip('/')}/somewhere")
            assert isinstance(reply, Reply), f"error_reply() must return a Reply, not {type(reply).__name__}"
            _check_status(error, reply)
            _check_headers(error, reply)
            _check_body(error, reply)

    def test_blueprint_builds_and_keeps_to_its_prefixes(self) -> None:
        """The routes can be built with nothing but a service, and all lie under the prefixes."""
        # By name, for the sdk itself depends on no web framework; whoever has a dialect has it installed.
        quart = importlib.import_module("quart")
        blueprint = self.dialect().blueprint(EmptyService(), self.settings)
        assert isinstance(blueprint, quart.Blueprint), f"blueprint() must return a quart.Blueprint, not {blueprint!r}"
        app = quart.Quart("dialect_suite", static_folder=None)
        app.register_blueprint(blueprint)
        rules = [rule.rule for rule in app.url_map.iter_rules()]
        assert rules, "the blueprint has no route"
        for rule in rules:
            assert self._is_own(rule), f"route '{rule}' is under none of {self.dialect.prefixes}"

    def _is_own(self, path: str) -> bool:
        return any(prefix in {"/", path} or path.startswith(f"{prefix}/") for prefix in self.dialect.prefixes)


def _check_status(error: CardcageError, reply: Reply) -> None:
    name = type(error).__name__
    assert 400 <= reply.status <= 599, f"{name} has status {reply.status}, which is no error"
    if isinstance(error, RequestError):
        assert reply.status < 500, f"{name} is the client's fault and has status {reply.status}"
    if isinstance(error, (EngineError, InternalError)):
        assert reply.status >= 500, f"{name} is not the client's fault and has status {reply.status}"
    if isinstance(error, AuthenticationError):
        assert reply.status == 401, f"{name} has status {reply.status}, not 401"


def _check_headers(error: CardcageError, reply: Reply) -> None:
    for key, value in reply.headers.items():
        assert not re.search(r"[\r\n\0]", key + value), f"header {key!r} of {type(error).__name__} has a line end in it"
    if isinstance(error, BusyError):
        retry = {key.lower(): value for key, value in reply.headers.items()}.get("retry-after", "")
        assert retry.isdigit(), f"{type(error).__name__} may be retried, and Retry-After is {retry!r}"


def _check_body(error: CardcageError, reply: Reply) -> None:
    name = type(error).__name__
    assert reply.body, f"{name} has an empty body"
    text = reply.body.decode("utf-8")
    if "json" in reply.content_type:
        json.loads(text, parse_constant=lambda word: pytest.fail(f"the body of {name} has {word}, which is no JSON"))
    # Some APIs answer these in fixed words that clients match.
    if not isinstance(error, InternalError | RouteNotFoundError | MethodNotAllowedError | QueueFullError):
        assert _MESSAGE in text, f"the body of {name} does not say what went wrong: {text}"
