"""Results of verifying a parameter file: checks with their verdicts, and tables of numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Check:
    """A statement about a parameter file: `holds` is None if it could not be checked, and `found` says why."""

    name: str
    holds: bool | None
    found: str

    @property
    def word(self) -> str:
        """Return the verdict in one or two words."""
        return {True: "holds", False: "FAILS", None: "not checked"}[self.holds]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Table of numbers, already written as words; `note` says how to read them."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def lines(self) -> list[str]:
        """Return the table as lines of text."""
        cells = [list(self.columns), *map(list, self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        text = [
            "  ".join(
                [row[0].ljust(widths[0]), *(word.rjust(size) for word, size in zip(row[1:], widths[1:], strict=True))]
            )
            for row in cells
        ]
        return [self.title, *(f"  {line}" for line in text), *([f"  {self.note}"] if self.note else [])]


@dataclass
class Findings:
    """All checks and tables about one parameter file."""

    checks: list[Check] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Return whether no check failed."""
        return not self.count(holds=False)

    def count(self, *, holds: bool | None) -> int:
        """Return the number of checks with a verdict: that hold, that failed (False) or could not be made (None)."""
        return sum(check.holds is holds for check in self.checks)
