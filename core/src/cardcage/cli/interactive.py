"""A conversation on a terminal."""

from __future__ import annotations

import contextlib
import importlib
import sys
from typing import TYPE_CHECKING, Any

from cardcage.cli.conversation import Conversation, ask, print_stats
from cardcage.cli.exits import CommandError
from cardcage.cli.output import note

if TYPE_CHECKING:
    from collections.abc import Callable

    from cardcage.cli.client import ServerClient

__all__ = ["PARAMETERS", "command", "converse"]

PARAMETERS: dict[str, type[int | float]] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "max_tokens": int,
    "seed": int,
    "repeat_penalty": float,
    "frequency_penalty": float,
    "presence_penalty": float,
}
"""What `/set` knows, and its kind."""

HELP = """\
/help                   this list
/clear                  forget the conversation
/system [TEXT]          set the system prompt; without text, remove it
/set PARAMETER VALUE    set one of: {parameters}; without a value, back to the default
/show info              the model
/show params            what was set
/show system            the system prompt
/exit                   leave (so does Ctrl+D)
\"\"\"                     begin and end a text of several lines
Ctrl+C                  stop the answer"""


def converse(
    client: ServerClient, conversation: Conversation, *, describe: Callable[[], dict[str, Any]], show_stats: bool
) -> None:
    """Read and answer until Ctrl+D or `/exit`.

    Args:
        client: The server.
        conversation: Grows with each turn.
        describe: Facts of the model, for `/show info`.
        show_stats: Print the numbers after each answer.
    """
    # Line editing and history, where Python was built with it.
    with contextlib.suppress(ImportError):
        importlib.import_module("readline")
    note(f"{conversation.model}: /help lists the commands, Ctrl+D leaves")
    while True:
        try:
            text = _read()
        except EOFError:
            sys.stdout.write("\n")
            return
        except KeyboardInterrupt:
            sys.stdout.write("\n")
            note("Ctrl+D or /exit leaves")
            continue
        if not text.strip():
            continue
        if text.startswith("/"):
            if not command(text, conversation, describe):
                return
            continue
        try:
            answer = ask(client, conversation, text, echo=True)
        except CommandError as error:
            note(f"error: {error}")
            continue
        if show_stats:
            print_stats(answer)


def command(line: str, conversation: Conversation, describe: Callable[[], dict[str, Any]]) -> bool:
    """Carry a `/` command out; returns False where it leaves."""
    word, _, rest = line.strip().partition(" ")
    rest = rest.strip()
    match word:
        case "/exit" | "/quit" | "/bye":
            return False
        case "/help" | "/?":
            note(HELP.format(parameters=", ".join(PARAMETERS)))
        case "/clear":
            conversation.messages.clear()
            note("the conversation is forgotten")
        case "/system":
            conversation.system = rest or None
            note("the system prompt is set" if rest else "the system prompt is removed")
        case "/set":
            note(_set(rest, conversation))
        case "/show":
            note(_show(rest, conversation, describe))
        case _:
            note(f"unknown command '{word}'; /help lists the commands")
    return True


def _set(rest: str, conversation: Conversation) -> str:
    name, _, value = rest.partition(" ")
    kind = PARAMETERS.get(name)
    if kind is None:
        return f"'{name}' cannot be set; known are: {', '.join(PARAMETERS)}"
    if not value.strip():
        conversation.parameters.pop(name, None)
        return f"{name} is the default again"
    try:
        conversation.parameters[name] = kind(value)
    except ValueError:
        return f"{name} must be {'a whole number' if kind is int else 'a number'}, not '{value}'"
    return f"{name} = {conversation.parameters[name]}"


def _show(what: str, conversation: Conversation, describe: Callable[[], dict[str, Any]]) -> str:
    match what:
        case "info":
            try:
                return "\n".join(f"{key}: {value}" for key, value in describe().items())
            except CommandError as error:
                return f"error: {error}"
        case "params":
            lines = [f"{name} = {value}" for name, value in conversation.parameters.items()]
            return "\n".join(lines) or "nothing is set; the server's defaults hold"
        case "system":
            return conversation.system or "there is no system prompt"
        case _:
            return "/show info, /show params or /show system"


def _read() -> str:
    """One input; a line that begins with three quotes goes on until three quotes end a line."""
    line = input(">>> ")
    if not line.startswith('"""'):
        return line
    lines = [line[3:]]
    while not lines[-1].rstrip().endswith('"""'):
        lines.append(input("... "))
    lines[-1] = lines[-1].rstrip()[:-3]
    return "\n".join(lines).strip("\n")
