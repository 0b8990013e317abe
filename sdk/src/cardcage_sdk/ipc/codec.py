"""Neutral values to msgpack and back.

A registered frozen dataclass becomes a map of its fields with its class name under `TYPE_KEY`; fields that have their default
are left out. On the way back each field is rebuilt by its annotation (tuples, frozen sets, paths, integer-keyed mappings), so
a value comes out equal to what went in. Only registered classes are ever constructed: bytes from a worker can name a class,
but never one that was not meant to cross. What is annotated as a JSON value stays lists and dicts.
"""

from __future__ import annotations

import dataclasses
import enum
import operator
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

import msgpack  # type: ignore[import-untyped]

from cardcage_sdk import capabilities, chat, embeddings, events, models
from cardcage_sdk import errors as error_tree
from cardcage_sdk.errors import CardcageError, WorkerProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["TYPE_KEY", "VALUE_CLASSES", "Codec", "JsonMap"]

TYPE_KEY = "$"
"""Key of a map that holds the class name; no field can have it, for it is no identifier."""

VALUE_CLASSES: tuple[type, ...] = (
    capabilities.Capabilities,
    chat.TextPart,
    chat.ImagePart,
    chat.AudioPart,
    chat.ToolCall,
    chat.Message,
    chat.ToolSpec,
    chat.ToolChoice,
    chat.ResponseFormat,
    chat.Sampling,
    chat.ChatRequest,
    embeddings.EmbedRequest,
    embeddings.EmbedResult,
    embeddings.RerankRequest,
    embeddings.RerankResult,
    events.TopLogprob,
    events.TokenLogprob,
    events.Usage,
    events.Timings,
    events.Accepted,
    events.Progress,
    events.Text,
    events.TextDelta,
    events.ReasoningDelta,
    events.ToolCallDelta,
    events.Finished,
    events.Failed,
    models.ModelFile,
    models.ModelArtifact,
    models.LoadOptions,
    models.ModelInfo,
)
"""Every neutral value that may cross the pipe."""

JsonMap: TypeAlias = dict[str, Any]
_Convert: TypeAlias = Callable[[Any], Any]

_ERROR_TAG = "!"
_BIG_INTEGER = 1  # msgpack extension type: an integer over 64 bits, as decimal text (JSON Schemas hold such)
_BIG_INTEGER_DIGITS = 4300  # Python's own limit on decimal text


class _MismatchError(ValueError):
    """A wire value does not fit the annotation it is decoded for."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    name: str
    default: Any
    encode: _Convert | None
    decode: _Convert


class Codec:
    """Turns values of a fixed set of classes into bytes and back. Safe to use from several threads.

    The conversion plan of a class is made from its annotations when it is first used.
    """

    def __init__(self, classes: Iterable[type]) -> None:
        self._classes: dict[str, type] = {}
        for cls in classes:
            if self._classes.setdefault(cls.__name__, cls) is not cls:
                raise ValueError(f"two classes are called '{cls.__name__}'")
        self._plans: dict[type, tuple[_Field, ...]] = {}

    def dumps(self, value: object) -> bytes:
        """Encode an instance of a registered class.

        Raises:
            WorkerProtocolError: The class is not registered, or a JSON value holds what msgpack cannot carry.
        """
        try:
            return bytes(msgpack.packb(self._encode(value), default=_pack_other, unicode_errors="surrogatepass"))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise WorkerProtocolError(f"{type(value).__name__} cannot be encoded: {error}") from error

    def loads(self, data: bytes | bytearray | memoryview) -> object:
        """Decode what `dumps` made.

        Raises:
            WorkerProtocolError: Not msgpack, an unregistered class, or a field that does not fit its annotation.
        """
        try:
            raw = msgpack.unpackb(data, ext_hook=_unpack_extension, unicode_errors="surrogatepass")
            return self._decode_object(raw)
        except (TypeError, ValueError, OverflowError, RecursionError, msgpack.UnpackException) as error:
            raise WorkerProtocolError(f"Malformed frame: {error}") from error

    # --- encoding

    def _encode(self, value: Any) -> Any:
        """Encode by run-time type; used for the outermost value and for fields of more than one type."""
        cls = type(value)
        plan = self._plans.get(cls)
        if plan is None:
            if isinstance(value, CardcageError):
                return _encode_error(value)
            if isinstance(value, (tuple, list, frozenset)):
                return [self._encode(item) for item in value]
            if isinstance(value, Path):
                return str(value)
            if not dataclasses.is_dataclass(cls):
                return value
            if self._classes.get(cls.__name__) is not cls:
                raise TypeError(f"class {cls.__name__} is not registered")
            plan = self._plan(cls)
        out: JsonMap = {TYPE_KEY: cls.__name__}
        for field in plan:
            item = getattr(value, field.name)
            if item is None:
                if field.default is not None:
                    out[field.name] = None
            elif item != field.default:
                out[field.name] = item if field.encode is None else field.encode(item)
        return out

    def _plan(self, cls: type) -> tuple[_Field, ...]:
        hints = get_type_hints(cls)
        plan = tuple(
            _Field(
                name=field.name,
                default=_default(field),
                encode=self._encoder(hints[field.name]),
                decode=self._decoder(hints[field.name]),
            )
            for field in dataclasses.fields(cls)
        )
        self._plans[cls] = plan
        return plan

    def _encoder(self, hint: Any) -> _Convert | None:
        """The conversion that values of this annotation need, or None for none. They are never None themselves."""
        origin, arguments = get_origin(hint), get_args(hint)
        if _is_union(origin):
            inner = [self._encoder(argument) for argument in arguments if argument is not types.NoneType]
            if all(convert is None for convert in inner):
                return None
            return inner[0] if len(inner) == 1 else self._encode
        if origin is tuple and all(self._encoder(argument) is None for argument in arguments if argument is not ...):
            return None
        if origin is frozenset:
            return sorted
        if origin is Mapping:
            return _encode_pairs if arguments[0] is int else dict
        if origin is tuple or hint is Path or _is_value_class(hint):
            return self._encode
        return None

    # --- decoding

    def _decode_object(self, raw: Any) -> object:
        if not isinstance(raw, dict):
            raise _MismatchError(f"expected a tagged map, got {type(raw).__name__}")
        tag = raw.get(TYPE_KEY)
        if tag == _ERROR_TAG:
            return _decode_error(raw)
        cls = self._classes.get(tag) if isinstance(tag, str) else None
        if cls is None:
            raise _MismatchError(f"unknown type {tag!r}")
        plan = self._plans.get(cls) or self._plan(cls)
        known = 1
        values: JsonMap = {}
        for field in plan:
            if field.name in raw:
                known += 1
                try:
                    values[field.name] = field.decode(raw[field.name])
                except _MismatchError as error:
                    raise _MismatchError(f"{tag}.{field.name}: {error}") from error
            elif field.default is dataclasses.MISSING:
                raise _MismatchError(f"{tag}.{field.name} is missing")
        if known != len(raw):
            unknown = sorted(str(key) for key in raw.keys() - {field.name for field in plan} - {TYPE_KEY})
            raise _MismatchError(f"{tag} has no {', '.join(unknown)}")
        return cls(**values)

    def _decoder(self, hint: Any) -> _Convert:  # noqa: PLR0911 - one branch a kind of annotation, as flat as it gets
        origin, arguments = get_origin(hint), get_args(hint)
        if hint is Any or hint is object:
            return _identity
        if hint is Path:
            return _decode_path
        if _is_value_class(hint):
            return self._decode_class(hint)
        if _is_union(origin):
            registered = tuple(argument for argument in arguments if _is_value_class(argument))
            members = [self._decoder(argument) for argument in arguments if argument not in registered]
            return _decode_union([*members, self._decode_class(*registered)] if registered else members)
        if origin is Literal:
            return _decode_literal(arguments)
        if origin is tuple:
            if len(arguments) == 2 and arguments[1] is ...:
                return _decode_sequence(self._decoder(arguments[0]), tuple)
            return _decode_fixed([self._decoder(argument) for argument in arguments])
        if origin is frozenset:
            return _decode_sequence(self._decoder(arguments[0]), frozenset)
        if origin is Mapping:
            if arguments[0] is int:
                return _decode_pairs(self._decoder(arguments[1]))
            return _decode_exact(dict)
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            return _decode_enum(hint)
        if hint is float:
            return _decode_float
        if hint in (bool, int, str, bytes, types.NoneType):
            return _decode_exact(hint)
        raise TypeError(f"the codec has no rule for annotation {hint!r}")

    def _decode_class(self, *classes: type) -> _Convert:
        def decode(raw: Any) -> Any:
            value = self._decode_object(raw)
            if not isinstance(value, classes):
                names = " or ".join(cls.__name__ for cls in classes)
                raise _MismatchError(f"expected {names}, got {type(value).__name__}")
            return value

        return decode


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _is_value_class(hint: Any) -> bool:
    return hint is CardcageError or (isinstance(hint, type) and dataclasses.is_dataclass(hint))


def _is_union(origin: Any) -> bool:
    return origin is Union or origin is types.UnionType


def _pack_other(value: Any) -> Any:
    """Carry what msgpack does not know: large integers, other mappings, and the scalars of array libraries."""
    if isinstance(value, int):
        text = str(value)  # a ValueError over 4300 digits, which `dumps` reports
        return msgpack.ExtType(_BIG_INTEGER, text.encode("ascii"))
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "__index__"):
        return operator.index(value)
    if hasattr(value, "__float__"):
        return float(value)
    raise TypeError(f"a value of type {type(value).__name__} is not a JSON value")


def _unpack_extension(code: int, data: bytes) -> int:
    if code != _BIG_INTEGER or len(data) > _BIG_INTEGER_DIGITS + 1:
        raise _MismatchError(f"unknown extension type {code}")
    return int(data.decode("ascii"))


def _encode_error(error: CardcageError) -> JsonMap:
    """Encode an error; a plugin's own subclass travels as its nearest ancestor of the tree."""
    cls = next(base for base in type(error).__mro__ if base.__module__ == error_tree.__name__)
    return {TYPE_KEY: _ERROR_TAG, **error.to_wire(), "class": cls.__name__}


def _decode_error(raw: JsonMap) -> CardcageError:
    fields = raw.get("fields")
    if not isinstance(raw.get("message"), str) or not isinstance(fields, dict):
        raise _MismatchError("an error without message or fields")
    if not isinstance(raw.get("param"), (str, types.NoneType)):
        raise _MismatchError("an error's param is no text")
    return error_tree.from_wire(raw)


def _encode_pairs(value: Mapping[int, Any]) -> list[tuple[int, Any]]:
    return list(value.items())


def _identity(raw: Any) -> Any:
    return raw


def _decode_path(raw: Any) -> Path:
    if not isinstance(raw, str) or "\0" in raw:
        raise _MismatchError("expected a path")
    return Path(raw)


def _decode_float(raw: Any) -> float:
    if isinstance(raw, bool) or not isinstance(raw, (int, float)):
        raise _MismatchError(f"expected float, got {type(raw).__name__}")
    return float(raw)


def _decode_exact(cls: type) -> _Convert:
    def decode(raw: Any) -> Any:
        if type(raw) is not cls:
            raise _MismatchError(f"expected {cls.__name__}, got {type(raw).__name__}")
        return raw

    return decode


def _decode_enum(cls: type[enum.Enum]) -> _Convert:
    def decode(raw: Any) -> Any:
        try:
            return cls(raw)
        except ValueError as error:
            raise _MismatchError(f"{raw!r} is no {cls.__name__}") from error

    return decode


def _decode_literal(choices: tuple[Any, ...]) -> _Convert:
    def decode(raw: Any) -> Any:
        if not isinstance(raw, (str, int, types.NoneType)) or raw not in choices:
            raise _MismatchError(f"{raw!r} is none of {', '.join(map(repr, choices))}")
        return raw

    return decode


def _decode_union(members: list[_Convert]) -> _Convert:
    if len(members) == 1:
        return members[0]

    def decode(raw: Any) -> Any:
        problems = []
        for member in members:
            try:
                return member(raw)
            except _MismatchError as error:
                problems.append(str(error))
        raise _MismatchError("; ".join(problems))

    return decode


def _decode_sequence(item: _Convert, cls: type) -> _Convert:
    def decode(raw: Any) -> Any:
        if not isinstance(raw, list):
            raise _MismatchError(f"expected a list, got {type(raw).__name__}")
        return cls(item(element) for element in raw)

    return decode


def _decode_fixed(items: list[_Convert]) -> _Convert:
    def decode(raw: Any) -> Any:
        if not isinstance(raw, list) or len(raw) != len(items):
            raise _MismatchError(f"expected a list of {len(items)}")
        return tuple(item(element) for item, element in zip(items, raw, strict=True))

    return decode


def _decode_pairs(item: _Convert) -> _Convert:
    def decode(raw: Any) -> Any:
        if not isinstance(raw, list):
            raise _MismatchError(f"expected a list of pairs, got {type(raw).__name__}")
        out = {}
        for pair in raw:
            if not isinstance(pair, list) or len(pair) != 2 or type(pair[0]) is not int:
                raise _MismatchError("expected pairs of integer and value")
            out[pair[0]] = item(pair[1])
        return out

    return decode
