"""A Jinja environment for templates that nobody has read: Hugging Face's dialect, sandboxed and bounded."""

from __future__ import annotations

import functools
import json
import re
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import jinja2
from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from jinja2.parser import Parser
    from jinja2.runtime import Context

__all__ = [
    "MAX_OUTPUT_CHARACTERS",
    "MAX_TEMPLATE_CHARACTERS",
    "LimitError",
    "TemplateEnvironment",
    "bound_nodes",
    "render_bounded",
]

MAX_TEMPLATE_CHARACTERS: Final = 512 * 1024
"""Longest template source; the longest of well-known models is about 30,000 characters."""

MAX_OUTPUT_CHARACTERS: Final = 64 * 1024 * 1024
"""Longest rendered prompt: as much as a request body may have."""

_MAX_ITERATIONS: Final = 2_000_000
_MAX_SECONDS: Final = 5.0
_MAX_NUMBER: Final = 1_000_000  # of what a text method or a filter is told to pad, repeat, indent or cut to
_MAX_MADE: Final = 4 * MAX_OUTPUT_CHARACTERS  # characters that operators and filters of one render make in memory
_MAX_EXPONENT: Final = 64
_WIDE_FORMAT = re.compile(r"%[^a-zA-Z%]*(\d{5,}|\*)")


class LimitError(TemplateError):
    """A template ran too long or made too much."""


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """What `transformers` renders chat templates with, plus bounds on turns of loops, time, and what is made in memory.

    One render at a time: the budget of the running render is kept here.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, clock: Callable[[], datetime] = datetime.now) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation])
        self.filters["tojson"] = _to_json
        self.filters = {name: self._bounded_filter(name, function) for name, function in self.filters.items()}
        self.filters["cardcage_loop"] = lambda items: _Bounded(self, items)
        self.filters["cardcage_concat"] = lambda items: self._join("", items)
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda template: clock().strftime(template)
        self._turns_left = _MAX_ITERATIONS
        self._made_left = _MAX_MADE
        self._deadline = 0.0

    def start(self) -> None:
        """Give the render that begins now its budget."""
        self._turns_left = _MAX_ITERATIONS
        self._made_left = _MAX_MADE
        self._deadline = time.monotonic() + _MAX_SECONDS

    def spend_turn(self) -> None:
        """Count one turn of a loop.

        Raises:
            LimitError: The budget of turns or time is used up.
        """
        self._turns_left -= 1
        if self._turns_left < 0 or (self._turns_left % 256 == 0 and time.monotonic() > self._deadline):
            raise LimitError("the template loops for too long")

    def spend_made(self, size: int) -> None:
        """Count what is about to be made.

        Raises:
            LimitError: The budget is used up.
        """
        self._made_left -= size
        if self._made_left < 0:
            raise LimitError("the template makes too much text")

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse operations whose result has no measure."""
        if operator == "+" and _is_sized(left) and _is_sized(right):
            self.spend_made(_weight(left) + _weight(right))
        elif operator == "*":
            for sized, count in ((left, right), (right, left)):
                if _is_sized(sized) and isinstance(count, int):
                    self.spend_made(_weight(sized) * max(0, count))
        elif operator == "**" and not (_is_small(left, _MAX_NUMBER) and _is_small(right, _MAX_EXPONENT)):
            raise LimitError("the template computes too large a number")
        elif operator == "%" and isinstance(left, str):
            _check_format(left)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Bound what the methods of texts make (`replace`, `join`, `ljust`, ...)."""
        text = getattr(obj, "__self__", None)
        if isinstance(text, str):
            self._check_arguments(args)
            name = getattr(obj, "__name__", "")
            if name == "join" and args:
                return self._join(text, args[0])
            if name == "replace" and len(args) >= 2:
                self._spend_replace(text, args[0], args[1])
        return super().call(context, obj, *args, **kwargs)

    def _bounded_filter(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter that takes no huge numbers and counts what it makes."""

        @functools.wraps(function)  # keeps the mark that says whether Jinja passes its context first
        def bounded(*args: Any, **kwargs: Any) -> Any:
            plain = args[1:] if args and isinstance(args[0], (nodes.EvalContext, jinja2.Environment)) else args
            self._check_arguments([*plain[1:], *kwargs.values()])
            if name == "replace" and len(plain) >= 3:
                self._spend_replace(str(plain[0]), str(plain[1]), str(plain[2]))
            elif name == "format" and plain:
                _check_format(str(plain[0]))
            result = function(*args, **kwargs)
            if isinstance(result, str):
                self.spend_made(len(result))
            return result

        if name == "join":
            return lambda value, d="", attribute=None: self._join(
                str(d), value if attribute is None else (self.getitem(item, attribute) for item in value)
            )
        return bounded

    def _check_arguments(self, arguments: Iterable[Any]) -> None:
        for argument in arguments:
            if isinstance(argument, int) and abs(argument) > _MAX_NUMBER:
                raise LimitError("the template pads, repeats or cuts by too large a number")

    def _spend_replace(self, text: str, old: Any, new: Any) -> None:
        if isinstance(old, str) and isinstance(new, str):
            self.spend_made(len(text) + text.count(old) * len(new))

    def _join(self, separator: str, items: Iterable[Any]) -> str:
        texts = []
        for item in _Bounded(self, items):
            text = str(item)
            self.spend_made(len(text) + len(separator))
            texts.append(text)
        return separator.join(texts)


class _Generation(Extension):
    """`{% generation %}`: marks the assistant's tokens for training; rendering takes it as if it were not there."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja wants it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Bounded:
    """The items of a loop, each counted."""

    def __init__(self, environment: TemplateEnvironment, items: Iterable[Any]) -> None:
        self._environment = environment
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            self._environment.spend_turn()
            yield item

    def __len__(self) -> int:
        return len(self._items)  # type: ignore[arg-type]  # a TypeError where it has none, as the loop expects


def bound_nodes(template: nodes.Template) -> None:
    """Have every loop and every `~` of a parsed template counted."""
    for loop in template.find_all(nodes.For):
        loop.iter = nodes.Filter(loop.iter, "cardcage_loop", [], [], None, None, lineno=loop.lineno)
    _ConcatTransformer().visit(template)


class _ConcatTransformer(NodeTransformer):
    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802 - as Jinja names it
        self.generic_visit(node)
        items = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(items, "cardcage_concat", [], [], None, None, lineno=node.lineno)


def render_bounded(environment: TemplateEnvironment, template: jinja2.Template, variables: dict[str, Any]) -> str:
    """Render within the bounds.

    Raises:
        TemplateError: What the template raises itself, and `LimitError`.
    """
    environment.start()
    length = 0
    chunks = []
    for chunk in template.generate(variables):
        length += len(chunk)
        if length > MAX_OUTPUT_CHARACTERS:
            raise LimitError(f"the rendered prompt is longer than {MAX_OUTPUT_CHARACTERS} characters")
        environment.spend_turn()
        chunks.append(chunk)
    return "".join(chunks)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML and non-ASCII characters, which no chat model has seen in training."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _is_small(number: Any, limit: float) -> bool:
    return isinstance(number, (int, float)) and abs(number) <= limit


def _is_sized(value: Any) -> bool:
    return isinstance(value, (str, list, tuple))


def _weight(value: str | list[Any] | tuple[Any, ...]) -> int:
    """Characters, or what list items weigh against them."""
    return len(value) if isinstance(value, str) else 16 * len(value)


def _check_format(template: str) -> None:
    if _WIDE_FORMAT.search(template):
        raise LimitError("the template formats too wide")
