"""One model of onnxruntime-genai and its generators, behind plain values. Worker only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cardcage_platform_onnx.declared import INSTALL_GENAI_COMMAND
from cardcage_platform_onnx.guidance import Guidance
from cardcage_platform_onnx.sampling import Logits
from cardcage_sdk.errors import EngineFailedError, LoadFailedError, OutOfMemoryError, UnsupportedPlatformError

__all__ = ["GenaiModel", "Generator", "GrammarError"]

# Names of execution providers as this runtime spells them.
_NAMES = {"openvino": "OpenVINO", "qnn": "QNN", "directml": "dml", "webgpu": "WebGPU", "vitisai": "VitisAI"}

# A cache of this size may be allocated for a request at once; a longer one grows as it fills, a little slower.
SHARED_CACHE_BYTES = 128 << 20


class GrammarError(ValueError):
    """The runtime does not take a grammar; the message is its own."""


class GenaiModel:
    """The weights, loaded."""

    def __init__(
        self, directory: Path, *, threads: int, provider: str, provider_options: Mapping[str, str], cache_bytes: int
    ) -> None:
        """Load.

        Raises:
            UnsupportedPlatformError: The runtime is not installed.
            OutOfMemoryError: It did not fit.
            LoadFailedError: Anything else, with the runtime's own words.
        """
        # Not at the top: importing it changes the process's environment.
        try:
            import onnxruntime_genai as og
        except ImportError as error:
            raise UnsupportedPlatformError(
                "onnx", reason=f"onnxruntime-genai cannot be imported ({error}); run: {INSTALL_GENAI_COMMAND}"
            ) from error
        self._runtime = og
        self._cache_bytes = cache_bytes
        og.disable_telemetry_events()
        session = {
            "intra_op_num_threads": threads,
            "inter_op_num_threads": 1,
            "enable_cpu_mem_arena": False,
            "enable_mem_pattern": False,
            "session.intra_op.allow_spinning": "0",
            "session.inter_op.allow_spinning": "0",
            "log_severity_level": 3,
        }
        try:
            config = og.Config(str(directory))
            config.overlay(json.dumps({"model": {"decoder": {"session_options": session}}}))
            if provider not in {"auto", "cpu"}:
                name = _NAMES.get(provider, provider)
                config.clear_providers()
                config.append_provider(name)
                for key, value in provider_options.items():
                    config.set_provider_option(name, key, value)
            elif provider == "cpu":
                config.clear_providers()
            self._model = og.Model(config)
        except MemoryError as error:
            raise OutOfMemoryError(f"Not enough memory for '{directory.name}'") from error
        except (RuntimeError, ValueError) as error:
            if "bad_alloc" in str(error) or "Failed to allocate memory" in str(error):
                raise OutOfMemoryError(f"Not enough memory for '{directory.name}': {error}") from error
            raise LoadFailedError(f"onnxruntime-genai cannot load '{directory.name}': {error}") from error
        self.device: str = str(self._model.device_type).lower()

    def generator(
        self, *, max_length: int, options: Mapping[str, Any], guidance: Guidance | None, has_bound: bool = True
    ) -> Generator:
        """A new sequence with nothing in it.

        Args:
            max_length: Tokens of prompt and answer together.
            options: Search options.
            guidance: Grammar of the answer.
            has_bound: The request itself bounds its answer, so the whole cache will probably be used.

        Raises:
            GrammarError: The grammar does not compile.
        """
        share = has_bound and max_length * self._cache_bytes <= SHARED_CACHE_BYTES
        parameters = self._runtime.GeneratorParams(self._model)
        parameters.set_search_options(max_length=max_length, past_present_share_buffer=share, **options)
        try:
            if guidance is not None:
                parameters.set_guidance(guidance.kind, guidance.data)
            return Generator(self._runtime.Generator(self._model, parameters))
        except RuntimeError as error:
            if guidance is not None and "grammar" in str(error).lower():
                raise GrammarError(str(error).removeprefix("Error creating grammar: ").strip()) from error
            raise EngineFailedError(f"onnxruntime-genai: {error}") from error


class Generator:
    """One sequence. Every method but `logits` and `change` computes, and holds the interpreter's lock meanwhile."""

    def __init__(self, generator: Any) -> None:
        self._generator = generator

    def append(self, tokens: Sequence[int]) -> None:
        """Compute some tokens of the prompt.

        Raises:
            EngineFailedError: The runtime's own words.
        """
        self._call(lambda: self._generator.append_tokens(np.asarray(tokens, dtype=np.int32)))

    def logits(self) -> Logits:
        """float32, shape (vocabulary,): those of the next token, before the grammar."""
        return np.asarray(self._generator.get_logits(), dtype=np.float32).reshape(-1)

    def change(self, logits: Logits) -> None:
        """Replace the logits of the next token; the grammar still holds."""
        self._generator.set_logits(logits.reshape(1, 1, -1))

    def next(self) -> int:
        """Choose and append the next token.

        Raises:
            EngineFailedError: The runtime's own words.
        """
        self._call(self._generator.generate_next_token)
        return int(self._generator.get_next_tokens()[0])

    @property
    def is_done(self) -> bool:
        """The answer has ended: by an end token, by its grammar, or by its length."""
        return bool(self._generator.is_done())

    @staticmethod
    def _call(call: Any) -> None:
        try:
            call()
        except MemoryError as error:
            raise OutOfMemoryError("Not enough memory for this step") from error
        except RuntimeError as error:
            if "Failed to allocate memory" in str(error) or "bad_alloc" in str(error):
                raise OutOfMemoryError(f"Not enough memory for this step: {error}") from error
            raise EngineFailedError(f"onnxruntime-genai: {error}") from error
