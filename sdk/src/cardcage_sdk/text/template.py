"""Chat templates with the semantics of Hugging Face's `transformers`. Needs the extra `cardcage-sdk[text]`.

A template is code from a model file that nobody has read, so it runs in a sandbox, within bounds (`sandbox`). What a template
cannot do (tools, tool results, a system role) is found out by rendering small conversations when it is compiled, and done for it
(`conversation`).
"""

from __future__ import annotations

import re
import secrets
import threading
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from jinja2 import meta
from jinja2.exceptions import SecurityError, TemplateError

from cardcage_sdk.chat import ChatRequest, Message, TextPart, ToolCall, ToolSpec
from cardcage_sdk.errors import EngineFailedError, InvalidModelError, InvalidRequestError
from cardcage_sdk.text.conversation import TemplateFacts, conversation, offered_tools, tool_dict
from cardcage_sdk.text.sandbox import (
    MAX_TEMPLATE_CHARACTERS,
    LimitError,
    TemplateEnvironment,
    bound_nodes,
    render_bounded,
)
from cardcage_sdk.text.segments import Guard, Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

__all__ = ["CHATML", "ChatTemplate", "Segment", "find_reasoning_tags", "opens_reasoning"]

CHATML: Final = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""A template for models that bring none; most small chat models are trained on it or understand it."""

_REASONING_TAGS: Final = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<reasoning>", "</reasoning>"))
_RESERVED: Final = frozenset({"messages", "tools", "add_generation_prompt", "documents"})


class ChatTemplate:
    """One compiled template. Safe to use from several threads; one renders at a time.

    Attributes:
        facts: What the template does, found by rendering.
        variables: Names that the template reads, `enable_thinking` for instance.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str = "",
        eos_token: str = "",
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Compile a template.

        Args:
            source: Jinja, as in `tokenizer_config.json` or a GGUF's metadata.
            bos_token: Text of the begin token, where templates print it.
            eos_token: Text of the end token.
            clock: Local time for templates that tell the model the date.

        Raises:
            InvalidModelError: Too long, or no valid template.
        """
        if len(source) > MAX_TEMPLATE_CHARACTERS:
            raise InvalidModelError(
                f"The chat template has {len(source)} characters, more than {MAX_TEMPLATE_CHARACTERS}"
            )
        self._environment = TemplateEnvironment(clock)
        self._rendering = threading.Lock()  # the environment holds the budget of one render
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._environment.start()
        try:
            tree = self._environment.parse(source)
            self.variables = frozenset(meta.find_undeclared_variables(tree))
            bound_nodes(tree)
            code = self._environment.compile(tree)
            self._template = self._environment.template_class.from_code(
                self._environment, code, self._environment.make_globals(None)
            )
        except (TemplateError, RecursionError, SyntaxError, ValueError) as error:
            raise InvalidModelError(f"The chat template cannot be compiled: {error}") from error
        self.facts = self._find_facts()

    @property
    def can_switch_thinking(self) -> bool:
        """The template reads `enable_thinking`."""
        return "enable_thinking" in self.variables

    def render(self, request: ChatRequest) -> str:
        """The prompt of a conversation, up to where the assistant's answer begins.

        Raises:
            InvalidRequestError: The template refuses this conversation (`raise_exception`), fails at it, or it is too long.
            EngineFailedError: The template did what the sandbox forbids.
        """
        try:
            return self._render(request, self.facts)
        except SecurityError as error:
            raise EngineFailedError(f"The model's chat template does something forbidden: {error}") from error
        except TemplateError as error:
            raise InvalidRequestError(f"The model's chat template refuses: {error}", param="messages") from error
        except Exception as error:  # boundary to code of a model: it may raise anything at odd conversations
            raise InvalidRequestError(
                f"The model's chat template fails at this conversation: {type(error).__name__}: {error}",
                param="messages",
            ) from error

    def segments(self, request: ChatRequest, *, control: Collection[str] = ()) -> tuple[Segment, ...]:
        """The prompt in stretches that the template wrote and stretches that the client did.

        Tokenise the first with special tokens and the second without, and no text of a client becomes control.

        Args:
            request: As for `render`.
            control: Spellings of the model's special tokens. They matter where the template transforms contents: then only
                these spellings, not whole contents, can be told apart.

        Returns:
            Stretches that joined give what `render` gives, save that a template which looks for such a spelling in a
            content (as some look for `</think>`) does not find it there.

        Raises:
            InvalidRequestError, EngineFailedError: As `render`.
        """
        plain = self.render(request)
        guard = Guard(control, nonce=secrets.token_hex(8))
        whole = guard.split(self.render(guard.hide_contents(request)))
        if "".join(segment.text for segment in whole) == plain:
            return whole
        guard = Guard(control, nonce=secrets.token_hex(8))
        return guard.split(self.render(guard.hide_spellings(request)))

    def _render(self, request: ChatRequest, facts: TemplateFacts) -> str:
        variables: dict[str, Any] = {
            **self._tokens,
            **{name: value for name, value in request.template_arguments.items() if name not in _RESERVED},
            "messages": conversation(request, facts),
            "add_generation_prompt": True,
            "documents": None,
        }
        tools = offered_tools(request) if facts.handles_tools else ()
        # transformers passes None, and templates test `tools is not none` as well as `if tools`.
        variables["tools"] = [tool_dict(tool) for tool in tools] or None
        if request.enable_thinking is not None:
            variables["enable_thinking"] = request.enable_thinking
        if request.reasoning_effort is not None:
            variables["reasoning_effort"] = request.reasoning_effort
        with self._rendering:
            return render_bounded(self._environment, self._template, variables)

    # --- what the template can do

    def _find_facts(self) -> TemplateFacts:
        facts = TemplateFacts()
        if not self._shows("Qzcontent", [_user("Qzcontent")], facts):
            parts = replace(facts, wants_parts=True)
            if self._shows("Qzcontent", [_user("Qzcontent")], parts):
                facts = parts
        system = Message(role="system", content=(TextPart("Qzsystem"),))
        facts = replace(facts, handles_system=self._shows("Qzsystem", [system, _user("hi")], facts))
        tools = (ToolSpec(name="qztool", description="d", parameters={"type": "object", "properties": {}}),)
        facts = replace(facts, handles_tools=self._shows("qztool", [_user("hi")], facts, tools=tools))
        turns = [_user("hi"), _calling(), _answer("Qzresult"), _user("go on")]
        # Encoded by the template, an object has double quotes; printed as it is, it has Python's single ones.
        for facts_tried in (facts, replace(facts, wants_argument_objects=False)):
            if self._shows('"qzkey"', turns, facts_tried, tools=tools):
                facts = facts_tried
                break
        else:
            facts = replace(facts, handles_tool_calls=False)
        return replace(facts, handles_tool_results=self._shows("Qzresult", turns, facts, tools=tools))

    def _shows(
        self, needle: str, messages: list[Message], facts: TemplateFacts, tools: tuple[ToolSpec, ...] = ()
    ) -> bool:
        """The template renders these messages and the text is in the prompt."""
        request = ChatRequest(id="probe", model="", messages=tuple(messages), tools=tools)
        try:
            return needle in self._render(request, facts)
        except LimitError as error:
            raise InvalidModelError(f"The chat template does not end at a conversation of one turn: {error}") from error
        except Exception:  # noqa: BLE001 - boundary to code of a model: a template that fails at it cannot do it
            return False


def find_reasoning_tags(source: str) -> tuple[str, str] | None:
    """The reasoning tags that a template speaks of, or None."""
    return next((tags for tags in _REASONING_TAGS if tags[0] in source and tags[1] in source), None)


def opens_reasoning(prompt: str, tags: tuple[str, str] | None) -> bool:
    """The prompt ends with an opening reasoning tag, so that the answer begins inside of it."""
    return tags is not None and re.search(re.escape(tags[0]) + r"\s*\Z", prompt) is not None


def _user(text: str) -> Message:
    return Message(role="user", content=(TextPart(text),))


def _calling() -> Message:
    return Message(role="assistant", tool_calls=(ToolCall(id="call00001", name="qzcall", arguments='{"qzkey": 1}'),))


def _answer(text: str) -> Message:
    return Message(role="tool", content=(TextPart(text),), tool_call_id="call00001", name="qzcall")
