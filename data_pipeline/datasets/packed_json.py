"""Compression of JSON values to bytes, and back without trust in the bytes."""

import json
import zlib
from typing import Any

from data_pipeline.json_files import parse_json

_MAX_BYTES, _MAX_VALUES = 2**28, 2**24  # the clusters of a million chains take a tenth of it


def compress_json(values: object) -> bytes:
    """Return JSON-serializable values as compressed bytes; equal values give equal bytes."""
    return zlib.compress(json.dumps(values, sort_keys=True, separators=(",", ":")).encode())


def decompress_json(content: bytes) -> Any:
    """Return the values that `compress_json` compressed; raise `ValueError` if the bytes are damaged."""
    stream = zlib.decompressobj()
    try:
        text = stream.decompress(content, _MAX_BYTES)
    except zlib.error as error:
        raise ValueError("damaged") from error
    if not stream.eof:
        raise ValueError("damaged, or larger than any")
    return parse_json(text, max_values=_MAX_VALUES)
