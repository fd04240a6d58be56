"""Write result files atomically, and format JSON and tables: aligned for the screen, or separated by tabs."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from data_pipeline.io.files import atomic_write

_DECIMALS = 4  # of numbers in tables


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


def aligned(lines: Sequence[Sequence[str]], *, left: int) -> Iterator[str]:
    """Yield the rows of a table as text, with the first `left` columns left-aligned and the others right-aligned.

    `lines` are the rows, each with the same number of cells, including the header if there is one.
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [
            cell.ljust(width) if index < left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def tab_separated(names: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """Return a table as tab-separated text with a header of column names; cells that are None become NA.

    Line breaks and tabs in cells become spaces.
    """
    return "".join("\t".join(map(_cell, line)) + "\n" for line in (names, *lines))


def rounded(value: Any) -> Any:
    """Round a float to four decimals, or return None if it is not finite; return other values unchanged."""
    if isinstance(value, float):
        return round(value, _DECIMALS) if math.isfinite(value) else None
    return value


def _cell(value: object) -> str:
    """Return a value as text without tabs and line breaks, and NA for None."""
    return "NA" if value is None else " ".join(str(value).split())
