"""Read untrusted or damaged JSON within limits on size, depth and memory, and convert values to compressed JSON.

`MAX_JSON_BYTES` and `MAX_JSON_VALUES` are the default limits for a file.
"""

import json
import zlib
from pathlib import Path
from typing import Any

from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.files import read_file

MAX_JSON_BYTES = 2**24
# A value takes up to 250 bytes in memory, but as few as three in the file.
MAX_JSON_VALUES = 2**19
_MAX_DEPTH = 32


def read_json(path: Path, advice: str, *, max_bytes: int = MAX_JSON_BYTES, max_values: int = MAX_JSON_VALUES) -> Any:
    """Return the content of a JSON file.

    Raise `InputError`, which ends with `advice`, if it is not a regular file, exceeds a limit or is not JSON.
    """
    content = read_file(path, max_bytes)
    try:
        return parse_json(content, max_values=max_values)
    except ValueError as error:
        raise InputError.at(path, f"not a complete JSON file ({printable(str(error))}); {advice}") from error


def parse_json(text: str | bytes, *, max_values: int = MAX_JSON_VALUES) -> Any:
    """Return the value of a JSON text; raise `ValueError` if it is not JSON, too deep, or may have too many values.

    Commas and opening brackets, also in strings, count as values.
    """
    raw = text.encode(errors="replace") if isinstance(text, str) else text
    # This is an upper limit, because strings may have these characters too.
    if sum(map(raw.count, (b",", b"[", b"{"))) > max_values:
        raise ValueError(f"it may have more than the maximum of {max_values:,} values")
    try:
        content = json.loads(text)
    except RecursionError as error:
        raise ValueError(f"it is nested more than {_MAX_DEPTH} deep") from error
    level = [content]
    for _ in range(_MAX_DEPTH + 1):
        level = [
            child
            for value in level
            if isinstance(value, dict | list)
            for child in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return content
    raise ValueError(f"it is nested more than {_MAX_DEPTH} deep")


_MAX_PACKED_BYTES, _MAX_PACKED_VALUES = 2**28, 2**24  # the clusters of a million chains need a tenth of this


def compress_json(values: object) -> bytes:
    """Return JSON-serializable values as zlib-compressed bytes, with sorted keys; equal values give equal bytes."""
    return zlib.compress(json.dumps(values, sort_keys=True, separators=(",", ":")).encode())


def decompress_json(content: bytes) -> Any:
    """Return the values in bytes of `compress_json`; raise `ValueError` if the bytes are damaged or too large."""
    stream = zlib.decompressobj()
    try:
        text = stream.decompress(content, _MAX_PACKED_BYTES)
    except zlib.error as error:
        raise ValueError("damaged") from error
    if not stream.eof:
        raise ValueError("damaged or too large")
    return parse_json(text, max_values=_MAX_PACKED_VALUES)
