"""One chain for every logger, and no secret through it."""

import io
import json
import logging

import pytest
import structlog

from cardcage.logs import configure_logs, redact


@pytest.fixture
def restored_logging():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in ("cardcage", "hypercorn", "httpx"):
        logging.getLogger(name).setLevel(logging.NOTSET)
    structlog.reset_defaults()


def lines(stream):
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("GET /v1/models?api_key=sk-1&x=2", "GET /v1/models?api_key=***&x=2"),
        ("/x?a=1&apikey=sk-1", "/x?a=1&apikey=***"),
        ("/x?access_token=abc#f", "/x?access_token=***#f"),
        ("Authorization: Bearer sk-abc-1", "Authorization: Bearer ***"),
        ("max_tokens=5", "max_tokens=5"),
        ("nothing to hide", "nothing to hide"),
    ],
)
def test_secrets_are_cut_out_of_text(text, shown):
    assert redact(text) == shown


@pytest.mark.usefixtures("restored_logging")
def test_json_lines_with_bound_context_and_without_secrets():
    stream = io.StringIO()
    configure_logs(level="debug", log_format="json", stream=stream)
    with structlog.contextvars.bound_contextvars(request_id="r1"):
        structlog.get_logger("cardcage.x").debug("event", api_key="sk-1", url="/x?api_key=sk-2", number=3)
        logging.getLogger("other.library").warning("from %s with Bearer sk-3", "outside")
    first, second = lines(stream)
    assert (first["event"], first["level"], first["request_id"], first["number"]) == ("event", "debug", "r1", 3)
    assert (first["api_key"], first["url"]) == ("***", "/x?api_key=***")
    assert (second["event"], second["logger"]) == ("from outside with Bearer ***", "other.library")
    assert "sk-" not in stream.getvalue()


@pytest.mark.usefixtures("restored_logging")
def test_a_traceback_is_one_line_without_secrets():
    stream = io.StringIO()
    configure_logs(log_format="json", stream=stream)
    try:
        int("bad ?api_key=sk-9")
    except ValueError:
        structlog.get_logger("cardcage.x").exception("failed")
    (line,) = lines(stream)
    assert "ValueError" in line["exception"]
    assert "sk-9" not in stream.getvalue()


@pytest.mark.usefixtures("restored_logging")
@pytest.mark.parametrize(
    ("level", "ours", "others"),
    [
        ("trace", {"debug", "info", "warning", "error"}, {"debug", "info", "warning", "error"}),
        ("debug", {"debug", "info", "warning", "error"}, {"info", "warning", "error"}),
        ("info", {"info", "warning", "error"}, {"info", "warning", "error"}),
        ("warn", {"warning", "error"}, {"warning", "error"}),
        ("error", {"error"}, {"error"}),
    ],
)
def test_levels(level, ours, others):
    stream = io.StringIO()
    configure_logs(level=level, log_format="json", stream=stream)
    for name in ("debug", "info", "warning", "error"):
        getattr(structlog.get_logger("cardcage.x"), name)("a")
        getattr(logging.getLogger("library"), name)("b")
    assert {line["level"] for line in lines(stream) if line["event"] == "a"} == ours
    assert {line["level"] for line in lines(stream) if line["event"] == "b"} == others


@pytest.mark.usefixtures("restored_logging")
def test_the_console_form_is_readable_and_has_no_colours_in_a_pipe():
    stream = io.StringIO()
    configure_logs(log_format="console", stream=stream)
    structlog.get_logger("cardcage.x").info("hello", who="world")
    assert "hello" in stream.getvalue()
    assert "who=world" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()
