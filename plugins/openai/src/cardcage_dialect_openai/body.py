"""From the bytes of a request body to a checked wire model, with one clear sentence where that fails. Pure."""

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from cardcage_sdk.client_json import check_plain, decode_json
from cardcage_sdk.errors import InvalidRequestError

__all__ = ["check_plain", "param_path", "parse_body", "parse_value", "read_json"]

Model = TypeVar("Model", bound=BaseModel)

_SHAPES = {"dict_type": "an object", "model_type": "an object", "list_type": "an array"}
"""JSON's words for errors that pydantic tells in Python's."""


def parse_body(model: type[Model], data: bytes) -> Model:
    """Read a JSON body and check it against a wire model.

    Raises:
        InvalidRequestError: Not JSON, not an object, or a field is wrong; `param` is the path of the first wrong field.
    """
    return parse_value(model, read_json(data))


def read_json(data: bytes) -> dict[str, Any]:
    """Read a JSON object, whatever content type the request named; see `decode_json`.

    Raises:
        InvalidRequestError: Not JSON in UTF-8, NaN or Infinity in it, nested too deeply, or not an object.
    """
    value = decode_json(data)
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
    if detail["type"] in _SHAPES:
        return f"must be {_SHAPES[detail['type']]}"
    message = detail["msg"]
    for start in ("Input should be", "Value should"):
        if message.startswith(start):
            return "must be" + message[len(start) :]
    return message if message.startswith("must ") else f"is wrong: {message}"
