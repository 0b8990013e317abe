"""Structured logs on standard error: one JSON object or one readable line an event, without secrets."""

from __future__ import annotations

import logging
import re
import sys
from typing import TYPE_CHECKING, Literal

import structlog

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from typing import Any, TextIO

__all__ = ["LEVELS", "TRACE", "configure_logs", "redact"]

TRACE = 5
"""Below debug: also what the web framework and the event loop have to say."""

LEVELS = {
    "trace": TRACE,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
}
"""LlamaPi's names."""

SECRET_KEYS = frozenset({"api_key", "authorization", "password", "secret", "x-api-key", "cookie"})

_SECRET_TEXT = re.compile(r"(?i)((?:api_?key|access_token|token|secret|password)=|bearer\s+)[^\s&\"'#;,]+")


def redact(text: str) -> str:
    """A text without keys in queries and bearer tokens."""
    return _SECRET_TEXT.sub(r"\1***", text)


def configure_logs(
    *,
    level: Literal["trace", "debug", "info", "warn", "error"] = "info",
    log_format: Literal["auto", "console", "json"] = "auto",
    stream: TextIO | None = None,
) -> None:
    """Set logging up for this process; the last call counts.

    Everything, the standard library's loggers included, goes through one chain of processors. Loggers of other packages
    are heard from `info` (below that only at `trace`), so that `debug` stays about this server.

    Args:
        level: LlamaPi's name of the lowest level shown.
        log_format: `auto` is `console` on a terminal and `json` elsewhere.
        stream: Where to write; standard error if None. Never standard output, which belongs to commands.
    """
    target = stream if stream is not None else sys.stderr
    is_console = log_format == "console" or (log_format == "auto" and target.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    renderer: list[structlog.typing.Processor]
    if is_console:
        renderer = [_redact_event, structlog.dev.ConsoleRenderer(colors=target.isatty())]
    else:
        renderer = [
            structlog.processors.format_exc_info,
            _redact_event,
            structlog.processors.JSONRenderer(ensure_ascii=False, default=str),
        ]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
    )
    handler = logging.StreamHandler(target)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    logging.addLevelName(TRACE, "TRACE")
    number = LEVELS[level]
    root.setLevel(number if number == TRACE else max(number, logging.INFO))
    logging.getLogger("cardcage").setLevel(number)
    # It logs each start of listening at info, which `serve` says itself.
    logging.getLogger("hypercorn").setLevel(number if number == TRACE else max(number, logging.WARNING))
    logging.getLogger("httpx").setLevel(number if number == TRACE else max(number, logging.WARNING))


def _redact_event(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key, value in event.items():
        if key.lower() in SECRET_KEYS:
            event[key] = "***"
        elif isinstance(value, str):
            event[key] = redact(value)
    return event
