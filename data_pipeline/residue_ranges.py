"""Parse options with residues of a target, sliding windows, and depths of its alignment.

`Replacement` is the residue type that replaces residues in masked columns of an alignment. This module only has fast
imports.
"""

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from data_pipeline.io.errors import printable

# Replacement of the residues in masked columns of an alignment.
Replacement = Literal["alanine", "unknown"]
_RANGE = re.compile(r"(?:([A-Za-z0-9]{1,4}):)?([0-9]{1,6})(?:-([0-9]{1,6}))?")


@dataclass(frozen=True, kw_only=True)
class ResidueRange:
    """Range of residue numbers of a chain, from 1 and including both ends; `chain` None means the only chain."""

    first: int
    last: int
    chain: str | None = None

    def __str__(self) -> str:
        numbers = str(self.first) if self.first == self.last else f"{self.first}-{self.last}"
        return numbers if self.chain is None else f"{self.chain}:{numbers}"


def read_ranges(text: str) -> tuple[ResidueRange, ...]:
    """Parse residues such as 10-20,45 or, in a complex, A:10-20,B:5; raise `ValueError` for other text."""
    ranges = []
    for word in text.split(","):
        parts = _RANGE.fullmatch(word)
        first, last = (0, 0) if parts is None else (int(parts[2]), int(parts[3] or parts[2]))
        if parts is None or not 1 <= first <= last:
            raise ValueError(
                f"must be residues from 1, such as 10-20,45 or in a complex A:10-20, got '{printable(text, 60)}'"
            )
        ranges.append(ResidueRange(first=first, last=last, chain=parts[1]))
    return tuple(ranges)


def fragment_numbers(text: str) -> tuple[int, ...]:
    """Return the residue numbers of fragments of a chain such as 1-100,150-200, in ascending order.

    Raise `ValueError` for other text.
    """
    ranges = read_ranges(text)
    numbers = tuple(number for each in ranges for number in range(each.first, each.last + 1))
    if any(each.chain is not None for each in ranges) or any(after <= before for before, after in pairwise(numbers)):
        raise ValueError(f"must be residues of one chain in ascending order, such as 1-100,150-200, got '{text}'")
    return numbers


def read_window(text: str) -> tuple[int, int]:
    """Parse the size and step of a window in residues, such as 10:5; without a step, it is the size.

    The step is at most the size, so windows leave no residue out. Raise `ValueError` for other text.
    """
    parts = re.fullmatch(r"([0-9]{1,6})(?::([0-9]{1,6}))?", text)
    size, step = (0, 0) if parts is None else (int(parts[1]), int(parts[2] or parts[1]))
    if not 1 <= step <= size:
        raise ValueError(
            f"must be a number of residues and a step up to this size, such as 10 or 10:5, got '{printable(text, 60)}'"
        )
    return size, step


def read_depth(text: str) -> tuple[int, int]:
    """Parse the numbers of MSA rows and of extra MSA rows, both at least 1, such as 16:32.

    Raise `ValueError` for other text.
    """
    parts = re.fullmatch(r"([0-9]{1,6}):([0-9]{1,6})", text)
    rows, extra = (0, 0) if parts is None else (int(parts[1]), int(parts[2]))
    if not (rows and extra):
        raise ValueError(
            f"must be numbers of rows and of extra rows, each at least 1, such as 16:32, got '{printable(text, 60)}'"
        )
    return rows, extra
