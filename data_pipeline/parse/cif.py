"""Read the tables of a CIF file column by column, with gemmi as the parser; `MAX_VALUES` limits a file's values."""

import re
from itertools import islice
from os import PathLike

import gemmi
import numpy as np
from jaxtyping import Float, Int

from data_pipeline.io.errors import InputError, printable

# gemmi uses 32 bytes per value, whatever its length. The largest ribosomes have five million values.
MAX_VALUES = 12 * 2**20

_ERROR_PLACE = re.compile(r"^[^:]*:(\d+)(?::\d+)?(?:\(\d+\))?(?: in [^:]*)?:?\s*(.*)$", re.DOTALL)
_CHUNK = 2**24


class _Indices(dict[str, int]):
    """Dictionary that gives each new key the next index, starting at 0."""

    def __missing__(self, key: str) -> int:
        self[key] = index = len(self)
        return index


def read_blocks(content: bytes, path: str | PathLike[str]) -> list[gemmi.cif.Block]:
    """Return the data blocks in the content of a CIF file; raise `InputError` if it is invalid or too large."""
    if not content.isascii():  # names of authors may have any encoding
        content = content.decode("utf-8", "replace").encode()
    if _count_values(content) > MAX_VALUES:
        raise InputError.at(path, f"the file has more than the maximum of {MAX_VALUES:,} values")
    try:
        return list(gemmi.cif.read_string(content))
    except (ValueError, RuntimeError) as error:
        message = " ".join(str(error).split())
        place = _ERROR_PLACE.match(message)
        line, problem = (int(place[1]), place[2]) if place else (None, message)
        advice = "is the file truncated or not mmCIF?"
        raise InputError.at(path, f"not readable as CIF ({printable(problem)}); {advice}", line=line) from error


def _count_values(content: bytes) -> int:
    """Return the approximate number of values in a CIF file without parsing it."""
    count = 1
    for start in range(0, len(content), _CHUNK):
        blank = np.frombuffer(content, np.uint8, min(_CHUNK, len(content) - start), start) <= ord(" ")
        count += int(np.count_nonzero(blank[:-1] & ~blank[1:]))
    return count


class Category:
    """One table of a data block, such as "_atom_site.", read column by column.

    The column `key` determines the number of rows; missing columns have '?' in each row. Methods raise `InputError` if
    a column differs from it in length.
    """

    def __init__(self, block: gemmi.cif.Block, name: str, key: str, path: str | PathLike[str]) -> None:
        self._block, self._name, self._path = block, name, path
        self._length = len(block.find_values(name + key))
        self._end = self._length
        self._selected_rows: list[int] | None = None

    def choose(self, rows: Int[np.ndarray, "k"]) -> None:
        """Restrict all later reads to these rows (ascending indices from 0, at least one)."""
        self._end = int(rows[-1]) + 1
        self._selected_rows = None if len(rows) == self._end else rows.tolist()

    def raw(self, column: str) -> list[str]:
        """Return the values of a column as in the file, including quotes."""
        all_values = self._block.find_values(self._name + column)
        if len(all_values) not in {0, self._length}:
            raise InputError.at(
                self._path,
                f"{self._name}{column} has {len(all_values)} values, other columns {self._length}; "
                "was the file edited?",
            )
        values = list(islice(all_values, self._end)) or ["?"] * self._end
        return values if self._selected_rows is None else [values[row] for row in self._selected_rows]

    def text(self, column: str) -> list[str]:
        """Return the values of a column without quotes; unset values ('?' and '.') are ""."""
        return list(map(gemmi.cif.as_string, self.raw(column)))

    def codes(self, column: str) -> tuple[Int[np.ndarray, "n"], tuple[str, ...]]:
        """Return each row's index into the distinct values, and the distinct values (as in `text`)."""
        indices = _Indices()
        codes = np.array(list(map(indices.__getitem__, self.raw(column))), dtype=np.int64)
        names = [gemmi.cif.as_string(value).strip() for value in indices]
        distinct = _Indices()
        merged_codes = np.array([distinct[name] for name in names], dtype=np.int64)
        return (merged_codes[codes] if len(codes) else codes), tuple(distinct)

    def integers(self, column: str, unset: int) -> Int[np.ndarray, "n"]:
        """Return the values of a column as int32, with `unset` for unset values; raise `InputError` for other text."""
        codes, values = self.codes(column)
        numbers = np.array([self._integer(column, value) if value else unset for value in values], dtype=np.int32)
        return numbers[codes] if len(codes) else numbers

    def reals(self, column: str, unset: float) -> Float[np.ndarray, "n"]:
        """Return the values of a column as float32, without standard uncertainties ("1.5(2)").

        '?', '.' and NaN become `unset`. Raise `InputError` for other text that is not a number.
        """
        values = self.raw(column)
        try:
            numbers = np.array(list(map(float, values)), dtype=np.float64)
        except ValueError:
            numbers = np.array(list(map(gemmi.cif.as_number, values)), dtype=np.float64)
        for row in np.flatnonzero(~(np.abs(numbers) < np.finfo(np.float32).max)).tolist():  # NaN included
            if not gemmi.cif.is_null(values[row]) and values[row].strip("+-").lower() != "nan":
                raise self._not_a_number(column, values[row])
            numbers[row] = unset
        return numbers.astype(np.float32)

    def _integer(self, column: str, value: str) -> int:
        """Return the integer of a table value; its absolute value must be below 2^31."""
        try:
            integer = int(value)
        except ValueError as error:
            raise self._not_a_number(column, value) from error
        if abs(integer) >= 2**31:
            raise self._not_a_number(column, value)
        return integer

    def _not_a_number(self, column: str, value: str) -> InputError:
        problem = f"{self._name}{column} has '{printable(value, 40)}', expected a number; was the file edited?"
        return InputError.at(self._path, problem)
