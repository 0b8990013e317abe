"""From the bytes of a request body to a checked wire model, with one clear sentence where that fails. Pure."""

import json
import re
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from cardcage_sdk.errors import InvalidRequestError

__all__ = ["check_plain", "param_path", "parse_body", "parse_value", "read_json"]

Model = TypeVar("Model", bound=BaseModel)

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_REPLACEMENT = "\ufffd"

_MAX_DEPTH = 200


def parse_body(model: type[Model], data: bytes) -> Model:
    """Read a JSON body and check it against a wire model.

    Raises:
        InvalidRequestError: Not JSON, not an object, or a field is wrong; `param` is the path of the first wrong field.
    """
    return parse_value(model, read_json(data))


def read_json(data: bytes) -> dict[str, Any]:
    """Read a JSON object, whatever content type the request named.

    Lone surrogates, which JavaScript writes for a cut emoji, become U+FFFD: nothing behind this could encode them.

    Raises:
        InvalidRequestError: Not JSON in UTF-8, NaN or Infinity in it, nested too deeply, or not an object.
    """
    try:
        value = json.loads(data, parse_constant=_refuse_constant)
        if _SURROGATE_ESCAPE.search(data):
            value = _without_surrogates(value)
    except RecursionError:
        raise InvalidRequestError("The request body is nested too deeply") from None
    except ValueError as error:  # JSONDecodeError, UnicodeDecodeError, and integers of too many digits
        reason = str(error) if data.strip() else "it is empty"
        raise InvalidRequestError(f"The request body is not valid JSON: {reason}") from error
    if not isinstance(value, dict):
        raise InvalidRequestError("The request body must be a JSON object")
    return value


def parse_value(model: type[Model], value: object, *, prefix: str = "") -> Model:
    """Check a decoded JSON value against a wire model.

    Args:
        model: The wire model.
        value: The JSON value.
        prefix: Path of the value in the body, where it is not the body itself.

    Raises:
        InvalidRequestError: Names the first wrong field and what it must be.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        path = param_path(details[0]["loc"], prefix=prefix)
        more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
        raise InvalidRequestError(f"'{path}' {_sentence(details[0])}{more}", param=path) from error


def check_plain(value: object, *, param: str) -> None:
    """Bound a JSON value that is handed on as it is (a schema, options): a worker's pipe takes no deeper and no larger one.

    Raises:
        InvalidRequestError: More than 200 levels deep, or an integer of more than 64 bits.
    """
    pending: list[tuple[object, int]] = [(value, 0)]
    while pending:
        item, depth = pending.pop()
        if depth > _MAX_DEPTH:
            raise InvalidRequestError(f"'{param}' is nested deeper than {_MAX_DEPTH} levels", param=param)
        if isinstance(item, int) and not -(2**63) <= item < 2**64:
            raise InvalidRequestError(f"'{param}' holds an integer of more than 64 bits", param=param)
        if isinstance(item, dict):
            pending.extend((child, depth + 1) for child in item.values())
        elif isinstance(item, list):
            pending.extend((child, depth + 1) for child in item)


def param_path(location: tuple[int | str, ...], *, prefix: str = "") -> str:
    """Write a location as clients know it: `messages[0].content`."""
    path = prefix
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
    return path


def _sentence(detail: ErrorDetails) -> str:
    if detail["type"] == "missing":
        return "is required"
    if detail["type"] == "extra_forbidden":
        return "is unknown"
    message = detail["msg"]
    for start in ("Input should be", "Value should"):
        if message.startswith(start):
            return "must be" + message[len(start) :]
    return message if message.startswith("must ") else f"is wrong: {message}"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _repaired(text: str) -> str:
    return _SURROGATE.sub(_REPLACEMENT, text)


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return _repaired(value)
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_repaired(key): _without_surrogates(item) for key, item in value.items()}
    return value
