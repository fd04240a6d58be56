"""Format tables as text: aligned for the screen, or separated by tabs."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

_DECIMALS = 4


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
