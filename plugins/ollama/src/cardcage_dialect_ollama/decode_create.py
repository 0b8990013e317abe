"""`/api/create` towards neutral. Pure."""

from dataclasses import replace

from cardcage_dialect_ollama.decode import decode_messages
from cardcage_dialect_ollama.digests import decode_digest
from cardcage_dialect_ollama.names import parse_name
from cardcage_dialect_ollama.options import decode_options
from cardcage_dialect_ollama.settings import Settings
from cardcage_dialect_ollama.templates import check_template
from cardcage_dialect_ollama.wire.models import CreateBody
from cardcage_sdk.chat import TextPart
from cardcage_sdk.errors import InvalidRequestError, UnsupportedError
from cardcage_sdk.library import CreateRequest

__all__ = ["decode_create"]

_STORED = {
    "num_ctx", "num_predict", "seed", "stop", "temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n",
    "presence_penalty", "frequency_penalty",
}  # fmt: skip
"""Parameters that a model can keep."""

_REFUSED = {
    "adapters": "adapters are not supported",
    "draft_files": "draft models are not supported",
    "draft_quantize": "draft models are not supported",
    "quantize": "quantize is not supported: upload the model in the form in which it is to run",
    "quantization": "quantize is not supported: upload the model in the form in which it is to run",
    "renderer": "renderer is not supported: a model is rendered by its template",
    "parser": "parser is not supported: answers are parsed by the form that the model's template tells",
    "requires": "requires is not supported",
    "info": "info is not supported: it is read from the model's files",
    "remote_host": "remote models are not supported",
}


def decode_create(body: CreateBody, *, settings: Settings) -> CreateRequest:
    """Decode a request of `/api/create`.

    Raises:
        RequestError: A field is wrong, or asks for what nothing here could do.
    """
    name = parse_name(body.wanted, when_empty="invalid model name")
    for field, text in _REFUSED.items():
        if getattr(body, field):
            raise UnsupportedError(field, message=text)
    if not body.from_ and not body.files:
        raise InvalidRequestError("neither 'from' or 'files' was specified", param="from")
    for parameter in body.parameters:
        if parameter not in _STORED:
            raise InvalidRequestError(f"unknown parameter '{parameter}'", param="parameters")
    options = decode_options(body.parameters, settings=settings)
    if options.is_unbounded:
        raise UnsupportedError(
            "num_predict", message="parameter 'num_predict' must be positive; without it an answer is unbounded"
        )
    messages = decode_messages(body.messages, settings=settings)
    for message in messages:
        if (
            message.role == "tool"
            or message.tool_calls
            or not all(isinstance(part, TextPart) for part in message.content)
        ):
            raise UnsupportedError("messages", message="messages of a model are text of system, user and assistant")
    license_text = body.license if isinstance(body.license, str) else "\n\n".join(body.license)
    return CreateRequest(
        name=name.wanted,
        base=parse_name(body.from_).wanted if body.from_ else None,
        files={_file_name(file): decode_digest(digest) for file, digest in body.files.items()},
        chat_template=check_template(body.template) if body.template else None,
        defaults=replace(options.to_defaults(), system=body.system or None, messages=messages),
        license=license_text or None,
    )


def _file_name(name: str) -> str:
    parts = name.replace("\\", "/").split("/")
    if name.startswith(("/", "~")) or "\\" in name or any(part in {"", ".", ".."} for part in parts):
        raise InvalidRequestError("file path must be relative", param="files")
    return name
