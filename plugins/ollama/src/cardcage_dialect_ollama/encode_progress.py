"""Progress of pulls, line by line. Pure."""

from typing import Any

from cardcage_dialect_ollama.errors import error_text
from cardcage_sdk.errors import CardcageError, InternalError, ModelNotFoundError
from cardcage_sdk.library import FileProgress, PullProgress

__all__ = ["PullLines"]

_SHOWN_DIGITS = 12


class PullLines:
    """Turns the states of a pull, each of which is the whole, into Ollama's lines, each of which is news.

    Attributes:
        has_ended: The last line was given.
    """

    def __init__(self) -> None:
        self.has_ended = False
        self._told: dict[str, int] = {}
        self._is_checking = False

    def begin(self) -> dict[str, Any]:
        """The first line."""
        return {"status": "pulling manifest"}

    def feed(self, state: PullProgress) -> list[dict[str, Any]]:
        """The lines that a state makes, none or some."""
        lines = [line for file in state.files for line in self._file(file)]
        if state.state == "checking" or (state.state == "done" and state.is_new):
            lines += self._checking()
        if state.state == "done":
            self.has_ended = True
            if not state.is_new and state.result is not None:
                lines += [
                    line for file in state.result.files for line in self._there(file.name, file.sha256, file.size_bytes)
                ]
                lines += self._checking()
            lines += [{"status": "writing manifest"}, {"status": "success"}]
        elif state.is_final:
            lines.append(self.failure(state.error or InternalError()))
        return lines

    def failure(self, error: CardcageError) -> dict[str, Any]:
        """The line that ends a pull that failed."""
        self.has_ended = True
        if isinstance(error, ModelNotFoundError):
            return {"error": "pull model manifest: file does not exist"}
        return {"error": error_text(error)}

    def _checking(self) -> list[dict[str, Any]]:
        if self._is_checking:
            return []
        self._is_checking = True
        return [{"status": "verifying sha256 digest"}]

    def _file(self, file: FileProgress) -> list[dict[str, Any]]:
        if self._told.get(file.name) == file.completed_bytes:
            return []
        is_first = file.name not in self._told
        self._told[file.name] = file.completed_bytes
        line = _layer(file.name, file.sha256)
        if file.total_bytes is not None:
            line["total"] = file.total_bytes
        if is_first and file.completed_bytes and not file.is_done:
            # Clients make a bar of the first line of a layer.
            return [line, {**line, "completed": file.completed_bytes}]
        return [{**line, "completed": file.completed_bytes} if file.completed_bytes else line]

    def _there(self, name: str, sha256: str | None, size: int) -> list[dict[str, Any]]:
        return [{**_layer(name, sha256), "total": size, "completed": size}]


def _layer(name: str, sha256: str | None) -> dict[str, Any]:
    """A file by its digest, by which clients tell bars apart; by its name where no source tells a digest."""
    if sha256 is None:
        return {"status": f"pulling {name}", "digest": f"file:{name}"}
    return {"status": f"pulling {sha256[:_SHOWN_DIGITS]}", "digest": f"sha256:{sha256}"}
