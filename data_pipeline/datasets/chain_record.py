"""Lossless record of one training example: the features and labels of a chain as compact bytes with checksums.

A record is a header (JSON: name, sequence, encoding of each array) followed by the encoded arrays. The labels come
first, so that they can be read without decoding the MSA.
"""

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from data_pipeline.datasets.array_codecs import (
    EncodedArray,
    decode_array,
    encode_atoms,
    encode_dense,
    encode_mask,
    encode_sparse,
)
from data_pipeline.errors import InputError, printable
from data_pipeline.features.labels import ChainLabels
from data_pipeline.features.schema import FEATURE_AXES, Features, array_shape
from data_pipeline.json_files import parse_json

# Part of every cache key: increase it when the same input would give other features or another record.
RECORD_VERSION = 1

_MAGIC = b"hfchain1"
_START = struct.Struct("<8sII")  # magic, size and checksum of the header
_MAX_HEAD = 2**24
# Axes as in `FEATURE_AXES`. In both, a mask comes before its positions, which need it to be decoded.
_LABELS: dict[str, tuple[str | int, ...]] = {
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
    """Header of a record: everything about the chain except its arrays."""

    key: str
    name: str
    sequence: str
    msa_rows: int
    template_domain_names: tuple[str, ...]
    resolution: float
    is_distillation: bool


def encode_record(key: str, features: Features, labels: ChainLabels) -> bytes:
    """Return the record of one chain as bytes; equal arguments give equal bytes.

    Raise `ValueError` if an array's shape does not fit the sequence, MSA or templates.
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
    for holder, shapes in ((labels, _LABELS), (features, FEATURE_AXES)):
        arrays = {name: getattr(holder, name) for name in shapes}
        for name, axes in shapes.items():
            if arrays[name].shape != (shape := array_shape(axes, sizes)):
                raise ValueError(f"{name} of '{head.name}' is {arrays[name].shape}, not {shape}")
            packed = _pack(name, arrays)
            table[name] = [packed.codec, packed.dtype, packed.stored, len(packed.content), zlib.crc32(packed.content)]
            parts.append(packed.content)
    text = json.dumps({**asdict(head), "arrays": table}, separators=(",", ":")).encode()
    return b"".join((_START.pack(_MAGIC, len(text), zlib.crc32(text)), text, *parts))


class ChainRecord:
    """Reader of a record's bytes, which decodes labels and features separately.

    Every method raises `InputError`, which names `place`, if what it reads is damaged.
    """

    def __init__(self, content: bytes | memoryview, place: str) -> None:
        self._content = memoryview(content)
        self._place = place
        self._table, self.head = self._read_head()

    def labels(self) -> ChainLabels:
        """Return the labels: the chain's true structure."""
        return ChainLabels(
            resolution=self.head.resolution, is_distillation=self.head.is_distillation, **self._arrays(_LABELS)
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
        try:
            magic, size, checksum = _START.unpack_from(self._content)
            if magic != _MAGIC or size > _MAX_HEAD:
                raise ValueError("it does not begin as one")
            text = bytes(self._content[_START.size : _START.size + size])
            if zlib.crc32(text) != checksum:
                raise ValueError("its head is damaged")
            values = parse_json(text)
            table = values.pop("arrays")
            head = ChainRecordHeader(**{**values, "template_domain_names": tuple(values["template_domain_names"])})
            offset = _START.size + size
            for entry in table.values():
                entry.append(offset)
                offset += entry[3]
            if offset != len(self._content) or [*table] != [*_LABELS, *FEATURE_AXES]:
                raise ValueError("it is incomplete")
        except (ValueError, TypeError, KeyError, AttributeError, IndexError, struct.error) as error:
            raise self._damaged(error) from error
        return table, head

    def _arrays(self, shapes: Mapping[str, tuple[str | int, ...]]) -> dict[str, np.ndarray]:
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
    if name in _MASK_OF:
        return encode_atoms(arrays[name], arrays[_MASK_OF[name]])
    if name in _MASK_OF.values():
        return encode_mask(arrays[name])
    return encode_sparse(arrays[name]) if name == "deletion_matrix" else encode_dense(arrays[name])


def _sizes(head: ChainRecordHeader) -> dict[str, int]:
    return {"r": len(head.sequence), "n": head.msa_rows, "t": len(head.template_domain_names)}
