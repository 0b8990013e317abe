from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cardcage_platform_llamacpp.build_wheel import write_gguf, write_smoke_model
from cardcage_platform_llamacpp.gguf_header import GgufError, is_gguf, read_header

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.gguf"
    write_smoke_model(path)
    return path


@pytest.mark.model
def test_smollm2_says_what_was_measured(model_path: Path) -> None:
    header = read_header(model_path)
    assert header.architecture == "llama"
    assert header.integer("context_length") == 8192
    assert header.vocabulary_size == 49_152
    assert header.kv_bytes_per_token() == 23_040, "measured with llama.cpp: bytes of f16 cache for one token"


def test_metadata_comes_back_as_written(small: Path) -> None:
    header = read_header(small)
    assert header.tensor_count == 12
    assert header.metadata["general.name"] == "cardcage smoke test"
    assert header.metadata["llama.attention.layer_norm_rms_epsilon"] == pytest.approx(1e-5)
    assert header.vocabulary_size == 512
    assert header.kv_bytes_per_token() == 2 * 4 * (64 + 64)


def test_is_gguf_looks_at_the_magic_not_the_name(small: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(b"not a model")
    assert is_gguf(small)
    assert not is_gguf(other)
    assert not is_gguf(tmp_path / "missing.gguf")


def test_every_cut_through_the_header_is_an_error(small: Path, tmp_path: Path) -> None:
    whole = small.read_bytes()
    for length in [0, 3, 4, 8, 23, *range(24, 400, 7)]:
        cut = tmp_path / f"cut{length}.gguf"
        cut.write_bytes(whole[:length])
        with pytest.raises(GgufError):
            read_header(cut)


@pytest.mark.parametrize(
    ("at", "value"),
    [(4, 99), (16, 2**60), (24, 2**40)],
    ids=["version", "key count", "key length"],
)
def test_a_lie_about_sizes_is_an_error_and_allocates_nothing(small: Path, at: int, value: int) -> None:
    raw = bytearray(small.read_bytes())
    raw[at : at + 8] = value.to_bytes(8, "little")
    small.write_bytes(raw)
    with pytest.raises(GgufError):
        read_header(small)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(4, 800), st.integers(0, 255)), min_size=1, max_size=4))
def test_changed_bytes_never_do_worse_than_an_error(tmp_path: Path, changes: list[tuple[int, int]]) -> None:
    path = tmp_path / "changed.gguf"
    write_gguf(path, {"general.architecture": "llama", "llama.block_count": 2, "a": "b" * 300}, [])
    raw = bytearray(path.read_bytes())
    for at, value in changes:
        raw[at % len(raw)] = value
    path.unlink()  # a new file each time: the reader keeps headers of unchanged ones
    path.write_bytes(raw)
    try:
        header = read_header(path)
    except GgufError:
        return
    assert isinstance(header.kv_bytes_per_token(), int)
