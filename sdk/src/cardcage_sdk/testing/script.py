"""What a scripted engine says: the file that tells it, and the tokens that come of a request."""

from __future__ import annotations

import json
import math
import random
import re
import zlib
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from cardcage_sdk.capabilities import SAMPLING_PARAMETERS, Capabilities, Feature, Task
from cardcage_sdk.chat import ChatRequest
from cardcage_sdk.errors import ContextLengthExceededError, InvalidModelError
from cardcage_sdk.events import Accepted, TokenLogprob, TopLogprob
from cardcage_sdk.testing.schema import check_schema, sample
from cardcage_sdk.text.toolcalls import CALL_CLOSE, CALL_OPEN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cardcage_sdk.chat import JsonValue
    from cardcage_sdk.models import ModelArtifact

__all__ = ["SCRIPTED_CAPABILITIES", "Script", "Token", "read_script", "vector"]

SCRIPTED_CAPABILITIES = Capabilities(
    tasks=frozenset(Task),
    features=frozenset(
        {
            Feature.CHOICES,
            Feature.LOGPROBS,
            Feature.LOGIT_BIAS,
            Feature.SEED,
            Feature.JSON_OBJECT,
            Feature.JSON_SCHEMA,
            Feature.TOOLS,
            Feature.FORCED_TOOLS,
            Feature.RAW_PROMPT,
            Feature.TOKEN_PROMPT,
            Feature.THINKING,
            Feature.DIMENSIONS,
        }
    ),
    sampling=SAMPLING_PARAMETERS,
    max_parallel=8,
    max_choices=8,
    embed_in_flight=8,
    cancel_seconds=1.0,
)
"""What a scripted engine honours, or at least takes: its words do not depend on `top_p` and the like."""

_WORD = re.compile(r"\s*\S+|\s+")
_SCRIPT_NAME = re.compile(r".*\.(scripted|faulty)(-batch)?\.json")
_TURN_TOKENS = 4  # of the frame around each message


@dataclass(frozen=True, slots=True)
class Token:
    """One token of an answer: its bytes, and what stands for its id."""

    data: bytes

    @property
    def id(self) -> int:
        """An id that depends on the bytes only."""
        return zlib.crc32(self.data) & 0xFFFFF

    @property
    def text(self) -> str:
        """The bytes as text, U+FFFD for what is no character on its own."""
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A model file of the scripted platform: a JSON object with any of these members. Load options override them.

    Attributes:
        answer: What is said where no other member decides.
        answers: With a temperature above 0, one of them by seed (or by chance); at 0 the first.
        rules: Answers for requests whose last user text contains a text: `{"contains": "answer"}`, the first that fits.
        echo: Say what the user said last.
        reasoning: Thought before each answer, unless the request switches thinking off.
        opens_reasoning: The prompt already ends with the opening tag, as some chat templates have it.
        piece_bytes: Cut the answer into tokens of so many bytes, characters or not; None cuts at words.
        delay_seconds: Time of one token, or of one step of the batch form.
        prefill_seconds: Time before the first token; not in the batch form, and not in the self-test.
        prefill_steps: Steps, or progress outputs, before the first token; not in the self-test.
        load_seconds: Time of a load.
        context_tokens: Size of the context.
        dimensions: Length of a vector.
        tasks: What the model does.
        ignores: Names of request fields that are declared and then not honoured, for tests of the conformance kit.
    """

    answer: str = "The quick brown fox jumps over the lazy dog."
    answers: tuple[str, ...] = ()
    rules: Mapping[str, str] = field(default_factory=dict)
    echo: bool = False
    reasoning: str = ""
    opens_reasoning: bool = False
    piece_bytes: int | None = None
    delay_seconds: float = 0.0
    prefill_seconds: float = 0.0
    prefill_steps: int = 0
    load_seconds: float = 0.0
    context_tokens: int = 4096
    dimensions: int = 16
    tasks: tuple[str, ...] = ("chat", "embed", "rerank")
    ignores: tuple[str, ...] = ()

    def prepare(self, request: ChatRequest) -> Accepted:
        """Count the prompt and check what the request asks for.

        Raises:
            ContextLengthExceededError: No room for one token.
            InvalidSchemaError: A schema that no value can be made for.
        """
        count = self.count_prompt(request)
        if count >= self.context_tokens and "context" not in self.ignores:
            raise ContextLengthExceededError(prompt_tokens=count, context_tokens=self.context_tokens)
        if "schema_errors" not in self.ignores:
            if request.response_format.kind == "json_schema":
                check_schema(request.response_format.schema)
            for tool in request.tools:
                check_schema(tool.parameters or {})
        return Accepted(prompt_tokens=count, starts_in_reasoning=self.opens_reasoning and self._thinks(request))

    def count_prompt(self, request: ChatRequest) -> int:
        """Tokens of the prompt: words, and a few a message."""
        if request.prompt is not None:
            return len(request.prompt) if isinstance(request.prompt, tuple) else len(_WORD.findall(request.prompt))
        return sum(len(_WORD.findall(message.text)) + _TURN_TOKENS for message in request.messages)

    def tokens(self, request: ChatRequest, choice: int) -> list[Token]:
        """The whole answer of one choice."""
        text = self._text(request, choice)
        if self._thinks(request):
            opening = "" if self.opens_reasoning else "<think>\n"
            text = f"{opening}{self.reasoning}\n</think>\n\n{text}"
        data = text.encode("utf-8", "surrogatepass")
        if self.piece_bytes is None:
            pieces = [piece.encode("utf-8", "surrogatepass") for piece in _WORD.findall(text)]
        else:
            pieces = [data[start : start + self.piece_bytes] for start in range(0, len(data), self.piece_bytes)]
        banned = {
            token_id
            for token_id, bias in ({} if "logit_bias" in self.ignores else request.sampling.logit_bias or {}).items()
            if bias <= -100
        }
        return [token for token in map(Token, pieces) if token.id not in banned]

    def limit(self, request: ChatRequest) -> int:
        """Most tokens that the answer may have."""
        room = max(1, self.context_tokens - self.count_prompt(request))
        wanted = None if "max_tokens" in self.ignores else request.sampling.max_tokens
        return room if wanted is None else min(room, wanted)

    def logprobs(self, request: ChatRequest, token: Token) -> tuple[TokenLogprob, ...]:
        """The log-probability of a token with as many alternatives as asked for."""
        if request.logprobs is None or "logprobs" in self.ignores:
            return ()
        candidates = [token, *(Token(f" other{number}".encode()) for number in range(1, request.logprobs))]
        top = tuple(
            TopLogprob(token=item.text, token_id=item.id, logprob=-0.1 - rank, data=item.data)
            for rank, item in enumerate(candidates[: request.logprobs])
        )
        return (TokenLogprob(token=token.text, token_id=token.id, logprob=-0.1, data=token.data, top=top),)

    def _thinks(self, request: ChatRequest) -> bool:
        may_think = request.enable_thinking is not False or "thinking" in self.ignores
        return bool(self.reasoning) and request.prompt is None and may_think

    def _text(self, request: ChatRequest, choice: int) -> str:
        forced = _forced_call(request) if "tool_choice" not in self.ignores else None
        if forced is not None:
            return forced
        kind = request.response_format.kind
        if kind == "json_schema" and "json_schema" not in self.ignores:
            return json.dumps(sample(request.response_format.schema), ensure_ascii=False)
        if kind == "json_object" and "json_object" not in self.ignores:
            return json.dumps({"answer": self.answer}, ensure_ascii=False)
        asked = request.last_user_text
        for contained, answer in self.rules.items():
            if contained in asked:
                return answer
        if self.echo:
            return asked
        if self.answers:
            return self.answers[self._draw(request, choice) % len(self.answers)]
        return self.answer

    def _draw(self, request: ChatRequest, choice: int) -> int:
        """Which of the answers, as a sampler would choose: none to choose from at temperature 0."""
        if request.sampling.temperature in {None, 0}:
            return 0
        seed = None if "seed" in self.ignores else request.sampling.seed
        return random.Random(seed).randrange(1 << 30) + choice


def _forced_call(request: ChatRequest) -> str | None:
    """The text of the call that the request demands, with the least arguments that its schema allows."""
    if request.tool_choice.mode not in {"required", "named"} or not request.tools:
        return None
    name = request.tool_choice.name or request.tools[0].name
    tool = next((tool for tool in request.tools if tool.name == name), request.tools[0])
    call = {"name": tool.name, "arguments": sample(tool.parameters or {"type": "object"})}
    return f"{CALL_OPEN}\n{json.dumps(call, ensure_ascii=False)}\n{CALL_CLOSE}"


def vector(text: str | Sequence[int], dimensions: int, *, normalize: bool = True) -> list[float]:
    """A vector that depends on the input only, of length 1 where `normalize`."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else repr(tuple(text)).encode()
    source = random.Random(zlib.crc32(data))
    values = [source.gauss(0.0, 1.0) for _ in range(dimensions)]
    length = math.sqrt(math.fsum(value * value for value in values)) if normalize else 1.0
    return [value / length for value in values]


def read_script(artifact: ModelArtifact, options: Mapping[str, JsonValue]) -> tuple[Script, dict[str, JsonValue]]:
    """Read the model file, with the load options over it.

    Returns:
        The script, and the members that are none of its own.

    Raises:
        InvalidModelError: It is no JSON object, or a member has a wrong type.
    """
    path = artifact.path
    if path.is_dir():
        scripts = sorted(file for file in path.iterdir() if _SCRIPT_NAME.fullmatch(file.name))
        if not scripts:
            raise InvalidModelError(f"No *.scripted.json in '{path}'")
        path = scripts[0]
    try:
        members = json.loads(path.read_text(encoding="utf-8"))
        members = {**members, **{name: value for name, value in options.items() if value is not None}}
        own = {item.name for item in fields(Script)}
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in members.items() if name in own
        }
        return Script(**values), {name: value for name, value in members.items() if name not in own}
    except (ValueError, TypeError) as error:
        raise InvalidModelError(f"'{path}' is no script: {error}") from error
