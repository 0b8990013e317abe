"""Digests, as Ollama's clients write them. Pure."""

import re

from cardcage_sdk.errors import InvalidRequestError

__all__ = ["decode_digest"]

_DIGEST = re.compile(r"sha256[:-]([0-9a-fA-F]{64})")


def decode_digest(text: str) -> str:
    """The hash in a digest, lower case.

    Raises:
        InvalidRequestError: It has another form.
    """
    found = _DIGEST.fullmatch(text)
    if found is None:
        raise InvalidRequestError("invalid digest format", param="digest")
    return found[1].lower()
