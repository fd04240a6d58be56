"""Read JSON that may be damaged, written by other programs or hostile, within bounds of size, depth and memory.

Compress JSON that databases hold, and read it back.
"""

import json
import zlib
from pathlib import Path
from typing import Any

from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.files import read_file

MAX_JSON_BYTES = 2**24
# A value takes up to 250 bytes of memory, and as few as three in the file.
MAX_JSON_VALUES = 2**19
_MAX_DEPTH = 32


def read_json(path: Path, advice: str, *, max_bytes: int = MAX_JSON_BYTES, max_values: int = MAX_JSON_VALUES) -> Any:
    """Return the content of a JSON file.

    Raise `InputError` if it is not a regular file, exceeds a limit or is not JSON; `advice` ends its sentence.
    """
    content = read_file(path, max_bytes)
    try:
        return parse_json(content, max_values=max_values)
    except ValueError as error:
        raise InputError.at(path, f"not a complete JSON file ({printable(str(error))}); {advice}") from error


def parse_json(text: str | bytes, *, max_values: int = MAX_JSON_VALUES) -> Any:
    """Return the value of a JSON text; raise ValueError if it is not JSON, too deep, or has too many values."""
    raw = text.encode(errors="replace") if isinstance(text, str) else text
    # Strings may have such characters, too, so that this is the most that there can be.
    if sum(map(raw.count, (b",", b"[", b"{"))) > max_values:
        raise ValueError(f"it may have more than {max_values:,} values, the most that are read")
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


_MAX_PACKED_BYTES, _MAX_PACKED_VALUES = 2**28, 2**24  # the clusters of a million chains take a tenth of it


def compress_json(values: object) -> bytes:
    """Return JSON-serializable values as compressed bytes; equal values give equal bytes."""
    return zlib.compress(json.dumps(values, sort_keys=True, separators=(",", ":")).encode())


def decompress_json(content: bytes) -> Any:
    """Return the values that `compress_json` compressed; raise `ValueError` if the bytes are damaged."""
    stream = zlib.decompressobj()
    try:
        text = stream.decompress(content, _MAX_PACKED_BYTES)
    except zlib.error as error:
        raise ValueError("damaged") from error
    if not stream.eof:
        raise ValueError("damaged, or larger than any")
    return parse_json(text, max_values=_MAX_PACKED_VALUES)
