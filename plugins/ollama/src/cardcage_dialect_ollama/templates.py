"""Templates of requests: Jinja, as every engine here renders. Ollama's own are Go's, which nothing here runs. Pure."""

import re

from cardcage_sdk.errors import InvalidModelError, InvalidRequestError
from cardcage_sdk.text.template import ChatTemplate

__all__ = ["check_template", "compile_template"]

_GO = re.compile(r"\{\{-?\s*(?:\.|\$|/\*|(?:if|else|end|range|with|define|block|template|and|or|eq|ne|not)\b)")


def check_template(source: str) -> str:
    """Refuse what is no Jinja template.

    Raises:
        InvalidRequestError: It is one of Go's, or does not compile.
    """
    compile_template(source)
    return source


def compile_template(source: str) -> ChatTemplate:
    """Compile a template.

    Raises:
        InvalidRequestError: As `check_template`.
    """
    if _GO.search(source):
        raise InvalidRequestError(
            "template is one of Go's text/template, which is not supported here; write it in Jinja, over `messages`",
            param="template",
        )
    try:
        return ChatTemplate(source)
    except InvalidModelError as error:
        raise InvalidRequestError(f"template: {error.message}", param="template") from error
