"""Lossless record of the features and labels of one chain, as compact bytes with checksums.

A record is a header (JSON: name, sequence, encoding of each array) followed by the encoded arrays. The labels come
first, so they can be read without decoding the MSA. An `EncodedArray` has the compressed bytes of an array, and the
codec and number types to decode them. `MAX_ARRAY_BYTES` limits a decoded array. `RECORD_VERSION` is part of every cache
key, and must change when equal input gives another record.
"""

import json
import math
import struct
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from data_pipeline.features.labels import ChainLabels
from data_pipeline.features.schema import FEATURE_AXES, Features, array_shape
from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.json_files import parse_json

MAX_ARRAY_BYTES = 2**32

_ZLIB_LEVEL = 6
# ISA-L, of the extra `train`, decompresses the same content in a third of the time.
_INFLATE: Any = import_module("isal.isal_zlib" if find_spec("isal") else "zlib")
_SUPPORTED_DTYPES = ("|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<f4", "<f8")


@dataclass(frozen=True, kw_only=True)
class EncodedArray:
    """Compressed bytes of an array, with the information to decode them (`decode_array`).

    `codec` is "dense", "sparse", "mask" or "atoms". `dtype` is the NumPy type of the array, and `stored` the type of
    the numbers in `content` before its compression.
    """

    codec: str  # "dense", "sparse", "mask" or "atoms"
    dtype: str  # NumPy type of the array, such as "<f4"
    stored: str  # NumPy type of the numbers in `content`
    content: bytes | memoryview


def encode_dense(array: np.ndarray) -> EncodedArray:
    """Compress all values of any array in order; raise `ValueError` for an unsupported dtype."""
    array = _little_endian(array)
    return EncodedArray(
        codec="dense",
        dtype=array.dtype.str,
        stored=array.dtype.str,
        content=zlib.compress(array.tobytes(), _ZLIB_LEVEL),
    )


def encode_sparse(array: np.ndarray) -> EncodedArray:
    """Compress an integer array that is mostly 0, such as deletion counts, to its nonzero values and their distances.

    Arrays of floats or bools are encoded by `encode_dense`.
    """
    array = _little_endian(array)
    if array.dtype.kind not in "iu":
        return encode_dense(array)  # -0.0 equals 0 and would be lost
    flat = array.reshape(-1)
    where = np.flatnonzero(flat)
    values = flat[where]
    stored = np.dtype(next((kind for kind in ("|u1", "<u2") if _fits(values, kind)), array.dtype.str))
    steps = np.diff(where, prepend=0).astype("<u4")  # MAX_ARRAY_BYTES keeps positions below 2**32
    body = _shuffled(steps) + _shuffled(values.astype(stored))
    return EncodedArray(
        codec="sparse", dtype=array.dtype.str, stored=stored.str, content=zlib.compress(body, _ZLIB_LEVEL)
    )


def encode_mask(array: np.ndarray) -> EncodedArray:
    """Compress an array of zeros and ones to one bit per value; other arrays are encoded by `encode_dense`."""
    bits = array != 0
    if not _same_bits(bits.astype(array.dtype), array):
        return encode_dense(array)
    dtype = _little_endian(array).dtype.str
    return EncodedArray(
        codec="mask", dtype=dtype, stored="|u1", content=zlib.compress(np.packbits(bits).tobytes(), _ZLIB_LEVEL)
    )


def encode_atoms(positions: np.ndarray, mask: np.ndarray) -> EncodedArray:
    """Compress atom positions ([..., 3], Å) as integer differences in 0.001 Å between present atoms.

    Coordinates in structure files have three decimals, so integer thousandths restore the same float32 values.
    Positions that this would change, such as computed ones, are encoded by `encode_dense`. `mask` ([...]) is nonzero
    where an atom is present; `decode_array` needs the same mask.
    """
    present = positions[mask != 0]
    with np.errstate(invalid="ignore", over="ignore"):
        thousandths = np.rint(present.astype(np.float64) * 1000)
    if positions.dtype != np.float32 or not np.all(np.abs(thousandths) < 2**30):
        return encode_dense(positions)
    steps = np.diff(thousandths.astype(np.int64), axis=0, prepend=0)
    stored = np.dtype(next((kind for kind in ("<i2", "<i4") if _fits(steps, kind)), "<i8"))
    content = zlib.compress(_shuffled(steps.T.astype(stored)), _ZLIB_LEVEL)
    packed = EncodedArray(codec="atoms", dtype="<f4", stored=stored.str, content=content)
    return packed if _same_bits(decode_array(packed, positions.shape, mask), positions) else encode_dense(positions)


def decode_array(packed: EncodedArray, shape: tuple[int, ...], mask: np.ndarray | None = None) -> np.ndarray:
    """Return the decoded array of `shape`; atom positions need the same `mask` as `encode_atoms`.

    Raise `ValueError` if the content is damaged or does not match `shape`, or if the array would take more than
    `MAX_ARRAY_BYTES`.
    """
    if packed.dtype not in _SUPPORTED_DTYPES or packed.stored not in _SUPPORTED_DTYPES:
        raise ValueError(f"number type {packed.dtype} or {packed.stored} is unknown")
    dtype, stored, size = np.dtype(packed.dtype), np.dtype(packed.stored), math.prod(shape)
    if size * dtype.itemsize > MAX_ARRAY_BYTES:
        raise ValueError(f"shape {shape} is too large")
    if packed.codec == "dense":
        return np.frombuffer(_inflated(packed.content, size * dtype.itemsize), dtype).reshape(shape).copy()
    if packed.codec == "mask":
        bits = np.frombuffer(_inflated(packed.content, (size + 7) // 8), np.uint8)
        return np.unpackbits(bits, count=size).reshape(shape).astype(dtype)
    if packed.codec == "sparse":
        return _unpack_sparse(packed, dtype, stored, shape)
    if packed.codec == "atoms" and mask is not None and (*mask.shape, 3) == shape:
        present = mask != 0
        body = _inflated(packed.content, int(present.sum()) * 3 * stored.itemsize)
        steps = _unshuffled(body, stored).reshape(3, -1)
        array = np.zeros(shape, np.float32)
        # Divide in float64, as parsers of decimals do, because dividing in float32 rounds twice.
        array[present] = (np.cumsum(steps.T, axis=0, dtype=np.int64) / 1000.0).astype(np.float32)
        return array
    raise ValueError(f"packing '{packed.codec}' is unknown")


def _unpack_sparse(packed: EncodedArray, dtype: np.dtype, stored: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Return an array from its values other than 0, which are stored as `stored` after their position differences."""
    size = math.prod(shape)
    body = _inflated(packed.content, size * (4 + stored.itemsize), exactly=False)
    count, rest = divmod(len(body), 4 + stored.itemsize)
    if rest:
        raise ValueError("sparse values end early")
    where = np.cumsum(_unshuffled(body[: 4 * count], np.dtype("<u4")), dtype=np.int64)
    array = np.zeros(size, dtype)
    if count and where[-1] >= size:
        raise ValueError("sparse values lie outside the array")
    array[where] = _unshuffled(body[4 * count :], stored)
    return array.reshape(shape)


def _inflated(content: bytes | memoryview, size: int, *, exactly: bool = True) -> bytes:
    """Decompress content to `size` bytes, or at most `size` unless `exactly`; `size` also limits the memory."""
    stream = _INFLATE.decompressobj()
    try:
        body = stream.decompress(content, size + 1)
    except _INFLATE.error as error:
        raise ValueError(f"packed content is damaged: {error}") from error
    if not stream.eof or len(body) > size or (exactly and len(body) != size):
        raise ValueError(f"packed content is not {size} bytes")
    return body


def _shuffled(values: np.ndarray) -> bytes:
    """Return the bytes of the numbers grouped by significance, lowest first, which improves the compression."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).reshape(-1, values.dtype.itemsize).T.tobytes()


def _unshuffled(body: bytes, dtype: np.dtype) -> np.ndarray:
    """Return the values whose first bytes come first, then all second bytes, and so on."""
    planes = np.frombuffer(body, np.uint8).reshape(dtype.itemsize, -1)
    return np.ascontiguousarray(planes.T).view(dtype).reshape(-1)


def _fits(values: np.ndarray, kind: str) -> bool:
    """Return whether integers lie within the bounds of the integer type `kind`."""
    bounds = np.iinfo(np.dtype(kind))
    return bool(
        values.dtype.kind in "iu" and (not values.size or (values.min() >= bounds.min and values.max() <= bounds.max))
    )


def _same_bits(first: np.ndarray, second: np.ndarray) -> bool:
    """Compare bit for bit, so that -0.0 differs from 0.0 and a NaN equals itself."""
    return first.dtype == second.dtype and first.shape == second.shape and first.tobytes() == second.tobytes()


def _little_endian(array: np.ndarray) -> np.ndarray:
    """Return the array in little-endian order; raise ValueError for a type that is not supported."""
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    if array.dtype.str not in _SUPPORTED_DTYPES:
        raise ValueError(f"arrays of {array.dtype} cannot be packed")
    return array


# Part of every cache key; increase it when the same input results in other features or another record.
RECORD_VERSION = 1

_MAGIC = b"hfchain1"
_RECORD_START = struct.Struct("<8sII")  # magic, size and checksum of the header
_MAX_HEADER_BYTES = 2**24
# Axes as in `FEATURE_AXES`. In both, a mask comes before its positions, because decoding them needs the mask.
_LABEL_AXES: dict[str, tuple[str | int, ...]] = {
    "all_atom_mask": ("r", 37),
    "all_atom_positions": ("r", 37, 3),
    "confidence": ("r",),
}
_MASK_OF = {
    "all_atom_positions": "all_atom_mask",
    "template_all_atom_positions": "template_all_atom_masks",
}


@dataclass(frozen=True, kw_only=True)
class ChainRecordHeader:
    """Header of a record: all data of the chain except its arrays.

    `key` is the record's key in the cache, `msa_rows` the number of MSA rows with the chain itself, and `resolution` is
    in Å, 0 if unknown.
    """

    key: str
    name: str
    sequence: str
    msa_rows: int
    template_domain_names: tuple[str, ...]
    resolution: float
    is_distillation: bool


def encode_record(key: str, features: Features, labels: ChainLabels) -> bytes:
    """Return the record of one chain as bytes; equal arguments give equal bytes.

    `key` is stored in the header. Raise `ValueError` if the shape of an array does not match the sequence, MSA or
    templates.
    """
    head = ChainRecordHeader(
        key=key,
        name=features.domain_name,
        sequence=features.sequence,
        msa_rows=len(features.msa),
        template_domain_names=features.template_domain_names,
        resolution=labels.resolution,
        is_distillation=labels.is_distillation,
    )
    sizes, table, parts = _sizes(head), {}, []
    for holder, shapes in ((labels, _LABEL_AXES), (features, FEATURE_AXES)):
        arrays = {name: getattr(holder, name) for name in shapes}
        for name, axes in shapes.items():
            if arrays[name].shape != (shape := array_shape(axes, sizes)):
                raise ValueError(f"{name} of '{head.name}' is {arrays[name].shape}, not {shape}")
            packed = _pack(name, arrays)
            table[name] = [packed.codec, packed.dtype, packed.stored, len(packed.content), zlib.crc32(packed.content)]
            parts.append(packed.content)
    text = json.dumps({**asdict(head), "arrays": table}, separators=(",", ":")).encode()
    return b"".join((_RECORD_START.pack(_MAGIC, len(text), zlib.crc32(text)), text, *parts))


class ChainRecord:
    """Reader of the bytes of a record, which decodes labels and features separately.

    The constructor and all methods raise `InputError` with `place` (a path or key) if the data is damaged. `head` is
    the header.
    """

    def __init__(self, content: bytes | memoryview, place: str) -> None:
        self._content = memoryview(content)
        self._place = place
        self._table, self.head = self._read_head()

    def labels(self) -> ChainLabels:
        """Return the labels: the chain's true structure."""
        return ChainLabels(
            resolution=self.head.resolution, is_distillation=self.head.is_distillation, **self._arrays(_LABEL_AXES)
        )

    def features(self) -> Features:
        """Return the input features of the chain."""
        return Features(
            domain_name=self.head.name,
            sequence=self.head.sequence,
            template_domain_names=self.head.template_domain_names,
            **self._arrays(FEATURE_AXES),
        )

    def check(self) -> None:
        """Verify the checksum of every array without decoding it."""
        for name in self._table:
            self._packed(name)

    def _read_head(self) -> tuple[dict[str, list[Any]], ChainRecordHeader]:
        """Return the table of arrays, each entry with the array's offset in bytes added at its end, and the header."""
        try:
            magic, size, checksum = _RECORD_START.unpack_from(self._content)
            if magic != _MAGIC or size > _MAX_HEADER_BYTES:
                raise ValueError("it does not begin as one")
            text = bytes(self._content[_RECORD_START.size : _RECORD_START.size + size])
            if zlib.crc32(text) != checksum:
                raise ValueError("its head is damaged")
            values = parse_json(text)
            table = values.pop("arrays")
            head = ChainRecordHeader(**{**values, "template_domain_names": tuple(values["template_domain_names"])})
            offset = _RECORD_START.size + size
            for entry in table.values():
                entry.append(offset)
                offset += entry[3]
            if offset != len(self._content) or [*table] != [*_LABEL_AXES, *FEATURE_AXES]:
                raise ValueError("it is incomplete")
        except (ValueError, TypeError, KeyError, AttributeError, IndexError, struct.error) as error:
            raise self._damaged(error) from error
        return table, head

    def _arrays(self, shapes: Mapping[str, tuple[str | int, ...]]) -> dict[str, np.ndarray]:
        """Return the decoded arrays of these names; coordinates must come after their mask."""
        arrays: dict[str, np.ndarray] = {}
        for name, axes in shapes.items():
            packed = self._packed(name)
            mask = arrays.get(_MASK_OF.get(name, ""))
            try:
                arrays[name] = decode_array(packed, array_shape(axes, _sizes(self.head)), mask)
            except (ValueError, TypeError) as error:
                raise self._damaged(error) from error
        return arrays

    def _packed(self, name: str) -> EncodedArray:
        """Return the encoded array `name` after a check of its checksum."""
        codec, dtype, stored, size, checksum, offset = self._table[name]
        content = self._content[offset : offset + size]
        if zlib.crc32(content) != checksum:
            raise self._damaged(ValueError(f"{name} is damaged"))
        return EncodedArray(codec=codec, dtype=dtype, stored=stored, content=content)

    def _damaged(self, error: Exception) -> InputError:
        return InputError.at(
            self._place, f"not a complete record of a chain ({printable(str(error))}); build the feature store again"
        )


def _pack(name: str, arrays: Mapping[str, np.ndarray]) -> EncodedArray:
    """Encode the array `name` by its kind: coordinates, mask of atoms, sparse or dense."""
    if name in _MASK_OF:
        return encode_atoms(arrays[name], arrays[_MASK_OF[name]])
    if name in _MASK_OF.values():
        return encode_mask(arrays[name])
    return encode_sparse(arrays[name]) if name == "deletion_matrix" else encode_dense(arrays[name])


def _sizes(head: ChainRecordHeader) -> dict[str, int]:
    """Return the sizes of the axes: residues r, alignment rows n and templates t."""
    return {"r": len(head.sequence), "n": head.msa_rows, "t": len(head.template_domain_names)}
