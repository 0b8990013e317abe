"""From the bytes of a request body to a checked wire model. Pure."""

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from cardcage_sdk.client_json import decode_json
from cardcage_sdk.errors import InvalidRequestError

__all__ = ["parse_body"]

Model = TypeVar("Model", bound=BaseModel)


def parse_body(model: type[Model], data: bytes) -> Model:
    """Read a JSON body, whatever content type the request named, and check it against a wire model.

    Raises:
        InvalidRequestError: Empty, not JSON, not an object, or a field is wrong; the first one is named.
    """
    if not data.strip():
        raise InvalidRequestError("missing request body")
    value = decode_json(data)
    if not isinstance(value, dict):
        raise InvalidRequestError("The request body must be a JSON object")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        path = ".".join(str(part) for part in details[0]["loc"])
        message = details[0]["msg"].removeprefix("Input should be ")
        raise InvalidRequestError(f"json: field '{path}' must be {message}", param=path) from error
