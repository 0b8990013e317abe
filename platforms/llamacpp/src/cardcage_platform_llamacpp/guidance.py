"""Answers of a given form: JSON Schemas and tool calls, enforced by llguidance. Worker process only.

The parser of llguidance follows an answer token by token. To ask it about one token costs some microseconds, a mask of the whole
vocabulary 0.01 to 3 ms.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from cardcage_platform_llamacpp.schemas import ready_schema
from cardcage_sdk.errors import EngineFailedError, InvalidSchemaError
from cardcage_sdk.text.grammar import answer_frame, forced_tools

if TYPE_CHECKING:
    import numpy.typing as npt

    from cardcage_platform_llamacpp.binding import Vocabulary
    from cardcage_platform_llamacpp.sampling import Candidates
    from cardcage_sdk.chat import ChatRequest

__all__ = ["Form", "GuidanceTokenizer", "Matcher", "form_of"]

MAX_CALLS: Final = 8
"""Calls in one answer: a small model that may go on calling does not stop."""

_SPACE: Final = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
"""White space of JSON: one blank after a comma or colon. Where more is free, small models write line breaks for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What an answer must look like.

    Attributes:
        text: The grammar in llguidance's own notation.
        param: The request's field that it comes from.
    """

    text: str
    param: str


def form_of(request: ChatRequest, *, tool_format: str | None) -> Form | None:
    """The form that a request demands, but for a client's own grammar.

    Raises:
        InvalidRequestError: A tool call is demanded of a tool that is not there.
        InvalidSchemaError: A schema that cannot be enforced, as far as can be seen before it is compiled.
    """
    frame = answer_frame(request)
    if frame is None:
        return None
    param = "tools" if forced_tools(request) else "response_format"
    schema = json.dumps({**ready_schema(frame.schema, param), "x-guidance": _SPACE})
    # Models of the bare form write one call and nothing around it.
    if not frame.opening or tool_format == "json":
        return Form(text=LLMatcher.grammar_from_json_schema(schema), param=param)
    call = f"{json.dumps(frame.opening)} %json {schema} {json.dumps(frame.closing)}"
    more = f' ("\\n" call){{0,{MAX_CALLS - 1}}}' if frame.may_repeat else ""
    return Form(text=LLMatcher.grammar_from_lark(f"start: call{more}\ncall: {call}\n"), param=param)


class _Tokens:
    """A vocabulary as llguidance wants to see it (the attributes' names are its own).

    Tokens that the prompter shows, as tags of tool calls, are the text that they show; other control tokens are special and
    fit nowhere but at the end.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        control = {token: text for text, token in vocabulary.control.items()}
        self._vocabulary = vocabulary
        self.eos_token_id = vocabulary.eos
        self.bos_token_id = vocabulary.bos if vocabulary.bos >= 0 else None
        self.tokens = [piece or control.get(token, "").encode() for token, piece in enumerate(vocabulary.pieces)]
        self.special_token_ids = [token for token in control if not vocabulary.pieces[token]]

    def __call__(self, text: str | bytes) -> list[int]:
        plain = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        return self._vocabulary.tokenize(plain, add_special=False, parse_special=False)


class GuidanceTokenizer:
    """What llguidance knows of a vocabulary: one for a model, 0.12 s for 49,000 tokens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.size = vocabulary.size
        self.end_tokens = vocabulary.end_tokens
        ends = sorted(vocabulary.end_tokens) or [vocabulary.eos]
        self.handle = LLTokenizer(TokenizerWrapper(_Tokens(vocabulary)), eos_token=ends)
        # Fuel is work, not time, so a form is refused or not alike on every machine. A state takes 1 to 2 kB.
        self.limits = LLParserLimits(max_lexer_states=50_000, max_grammar_size=200_000, verbose_errors=False)


class Matcher:
    """A compiled form and how far one answer has come in it."""

    def __init__(self, tokenizer: GuidanceTokenizer, form: Form) -> None:
        """Compile.

        Raises:
            InvalidSchemaError: It cannot be enforced, or no answer would satisfy it; llguidance's words name the keyword.
        """
        self._tokenizer = tokenizer
        self._matcher: Any = None
        try:
            self._matcher = LLMatcher(tokenizer.handle, form.text, log_level=0, limits=tokenizer.limits)
            # A warning says that something is not enforced.
            problem = self._matcher.get_error() or " ".join(self._matcher.get_grammar_warnings())
            if not problem and not self._matcher.is_accepting():
                problem = "" if self._mask().any() else "no answer satisfies it"
        except ValueError as error:
            problem = str(error)
        except EngineFailedError:
            problem = "no answer satisfies it"
        if problem:
            raise _refusal(problem, form.param)

    @property
    def is_complete(self) -> bool:
        """Nothing can follow but the end."""
        return bool(self._matcher.is_stopped())

    def allows(self, token: int, candidates: Candidates) -> bool:
        """Whether this token may come next."""
        if token in self._tokenizer.end_tokens:
            return bool(self._matcher.is_accepting())
        return bool(self._matcher.validate_tokens([token]) == 1)

    def rule_out(self, candidates: Candidates) -> None:
        """Give every token that may not come next a logit of minus infinity.

        Raises:
            EngineFailedError: The form needs more work than its limits allow.
        """
        candidates.rule_out(~self._mask())

    def _mask(self) -> npt.NDArray[np.bool_]:
        try:
            data = self._matcher.compute_bitmask()
        except ValueError as error:
            raise EngineFailedError(f"The answer's form is too much work to follow: {error}") from error
        if self._matcher.is_error():
            raise EngineFailedError(f"The answer's form is too much work to follow: {self._matcher.get_error()}")
        bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little")
        return bits[: self._tokenizer.size].astype(np.bool_)

    def accept(self, token: int) -> None:
        """Go on by a token that `allows` or `rule_out` left possible.

        Raises:
            EngineFailedError: The form needs more work than its limits allow.
        """
        if not self._matcher.consume_token(token):
            raise EngineFailedError(f"The answer's form is too much work to follow: {self._matcher.get_error()}")

    def close(self) -> None:
        """Free it."""
        self._matcher = None


def _refusal(message: str, param: str) -> InvalidSchemaError:
    return InvalidSchemaError(f"The schema cannot be enforced: {_named(' '.join(message.split())[:400])}", param=param)


_KEYWORDS: Final[Mapping[str, str]] = {
    "unknown format": "format",
    "patternproperty": "patternProperties",
    "regex": "pattern",
    "pointer '": "$ref",
    "invalid type": "type",
    "min/maxproperties": "minProperties or maxProperties",
    "schema must be": "a subschema",
}
"""Whom llguidance means where it does not name the keyword itself."""


def _named(message: str) -> str:
    low = message.lower()
    keyword = next((keyword for words, keyword in _KEYWORDS.items() if words in low), None)
    return message if keyword is None or f"'{keyword}'" in message else f"'{keyword}': {message}"
