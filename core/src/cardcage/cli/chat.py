"""`cardcage run`: ask a model and print its answer as it comes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cardcage.cli.background import connect_or_start
from cardcage.cli.conversation import Conversation, ask, print_stats
from cardcage.cli.interactive import converse
from cardcage.cli.output import print_json
from cardcage.cli.pulling import ensure_present
from cardcage.cli.usage import ModelUse

if TYPE_CHECKING:
    from pathlib import Path

    from cardcage.cli.client import ServerClient
    from cardcage.config import Config

__all__ = ["run"]


def run(
    config: Config,
    *,
    model: str,
    prompt: str | None,
    conversation: Conversation,
    url: str | None,
    config_file: Path | None,
    platform: str | None,
    show_stats: bool,
    as_json: bool,
) -> None:
    """Ask once, or converse where there is no prompt.

    Raises:
        CommandError: With one line.
        KeyboardInterrupt: Ctrl+C stopped the one answer; what came of it is printed.
    """
    client = connect_or_start(config, url, config_file=config_file)
    model = ensure_present(client, config, model, platform=platform)
    use = ModelUse(client, config, model, platform=platform, load_seconds=config.server.load_timeout_seconds)
    with use:
        conversation.model = str(use.model["id"])
        if prompt is None:
            converse(client, conversation, describe=lambda: _info(client, conversation.model), show_stats=show_stats)
            return
        answer = ask(client, conversation, prompt, echo=not as_json)
        if as_json:
            print_json(
                {
                    "model": conversation.model,
                    "text": answer.text,
                    "reasoning": answer.reasoning or None,
                    "finish_reason": answer.finish_reason,
                    "stopped": answer.was_stopped,
                    "stats": answer.stats(),
                }
            )
        elif show_stats:
            print_stats(answer)
        if answer.was_stopped:
            raise KeyboardInterrupt


def _info(client: ServerClient, model_id: str) -> dict[str, Any]:
    listed = next((model for model in client.models() if model.get("id") == model_id), {})
    state = next((model for model in client.states() if model["id"] == model_id), {})
    return {**listed, **state}
