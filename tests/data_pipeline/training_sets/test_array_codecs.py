"""Arrays come back bit for bit, whatever they hold, and damaged content is a ValueError."""

import zlib
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from data_pipeline.training_sets import chain_record
from data_pipeline.training_sets.chain_record import (
    decode_array,
    encode_atoms,
    encode_dense,
    encode_mask,
    encode_sparse,
)

DTYPES = st.sampled_from([np.int8, np.uint8, np.int32, np.int64, np.float32, np.float64])
SHAPES = array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=7)
# The standard library's, and the faster one where it is installed.
INFLATE = list({module.__name__: module for module in (zlib, chain_record._INFLATE)}.values())


def same(first: np.ndarray, second: np.ndarray) -> bool:
    return first.dtype == second.dtype and first.shape == second.shape and first.tobytes() == second.tobytes()


@settings(max_examples=80, deadline=None)
@given(arrays(DTYPES, SHAPES))
@pytest.mark.parametrize("pack", [encode_dense, encode_sparse, encode_mask])
def test_any_array_comes_back_bit_for_bit(pack, array: np.ndarray) -> None:
    assert same(decode_array(pack(array), array.shape), array)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 6).flatmap(lambda n: st.tuples(
    arrays(np.float32, (n, 4), elements=st.sampled_from([0, 1, 0.5])),
    arrays(np.float32, (n, 4, 3), elements=st.floats(width=32) | st.integers(-999999, 999999).map(lambda i: i / 1000)
           .map(lambda x: float(np.float32(x)))),
)))  # fmt: skip
def test_any_positions_come_back_bit_for_bit(given_arrays: tuple[np.ndarray, np.ndarray]) -> None:
    mask, positions = given_arrays
    assert same(decode_array(encode_atoms(positions, mask), positions.shape, mask), positions)
    absent = np.where(mask[..., None] != 0, positions, np.float32(0))
    assert same(decode_array(encode_atoms(absent, mask), positions.shape, mask), absent)


def test_coordinates_of_three_decimals_take_three_quarters_of_the_space() -> None:
    rng = np.random.default_rng(0)
    positions = np.round(np.cumsum(rng.normal(0, 1, (200, 8, 3)), axis=0), 3).astype(np.float32)
    packed = encode_atoms(positions, np.ones((200, 8), np.float32))
    assert packed.codec == "atoms"
    assert len(packed.content) < len(encode_dense(positions).content) * 0.75


def test_minus_zero_and_atoms_that_are_not_at_zero_are_kept_as_they_are() -> None:
    positions = np.array([[[1.5, -0.0, 2]]], np.float32)
    packed = encode_atoms(positions, np.ones((1, 1), np.float32))
    assert packed.codec == "dense"
    assert encode_atoms(np.abs(positions), np.zeros((1, 1), np.float32)).codec == "dense"
    assert encode_atoms(np.abs(positions), np.ones((1, 1), np.float32)).codec == "atoms"


def test_sparse_values_take_only_what_they_need() -> None:
    array = np.zeros((1000, 300), np.int32)
    array[::50, ::30] = 7
    packed = encode_sparse(array)
    assert packed.stored == "|u1"
    assert len(packed.content) < 300


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"codec": "pickle"}, "packing 'pickle' is unknown"),
        ({"dtype": "O"}, "number type"),
        ({"stored": "<M8[s]"}, "number type"),
        ({"content": zlib.compress(b"\1" * 11)}, "not 12 bytes"),
        ({"content": zlib.compress(b"\1" * 13)}, "not 12 bytes"),
        ({"content": zlib.compress(b"\1" * 12)[:-2]}, "not 12 bytes"),
        ({"content": b"no compressed data"}, "damaged"),
        ({"content": zlib.compress(b"\1" * 12)[:-1] + b"?"}, "damaged"),
    ],
)
@pytest.mark.parametrize("inflate", INFLATE, ids=lambda module: module.__name__)
def test_content_that_is_no_such_array_is_refused(
    change: dict[str, object], problem: str, inflate: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain_record, "_INFLATE", inflate)
    packed = encode_dense(np.arange(3, dtype=np.int32))
    with pytest.raises(ValueError, match=problem):
        decode_array(replace(packed, **change), (3,))


def test_sparse_values_outside_the_array_are_refused() -> None:
    packed = encode_sparse(np.array([0, 0, 5], np.int32))
    with pytest.raises(ValueError, match="outside"):
        decode_array(packed, (2,))
    with pytest.raises(ValueError, match="end early"):
        decode_array(replace(packed, content=zlib.compress(b"123456")), (3,))


def test_a_bomb_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="not 8 bytes"):
        decode_array(replace(encode_dense(np.zeros(2, np.int32)), content=zlib.compress(bytes(10**7))), (2,))
    monkeypatch.setattr(chain_record, "MAX_ARRAY_BYTES", 100)
    with pytest.raises(ValueError, match="too large"):
        decode_array(encode_dense(np.zeros(26, np.int32)), (26,))
