"""Write result files atomically, and format JSON."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from data_pipeline.io.files import atomic_write


def to_json(content: Mapping[str, object], indent: int | None = None) -> str:
    """Return content as JSON text, compact unless indented. Raise `ValueError` for NaN and infinity."""
    return json.dumps(content, indent=indent, separators=(",", ":") if indent is None else None, allow_nan=False)


def write_file(path: Path, content: str | bytes | Iterator[bytes] | None) -> None:
    """Write a file atomically from its content or an iterator over pieces; with None, remove the file if it exists."""
    if content is None:
        path.unlink(missing_ok=True)
        return
    if isinstance(content, str):
        # File names in the content may have bytes that are not UTF-8, which Python represents as surrogates.
        content = content.encode(errors="backslashreplace")
    pieces = content if isinstance(content, Iterator) else [content]
    with atomic_write(path) as temporary, temporary.open("wb") as stream:
        stream.writelines(pieces)
