"""Read the tables of a CIF file column by column; gemmi does the parsing."""

import re
from itertools import islice
from os import PathLike

import gemmi
import numpy as np
from jaxtyping import Float, Int

from data_pipeline.io.errors import InputError, printable

# Each value takes gemmi 32 bytes whatever its length; the largest ribosomes have five million values.
MAX_VALUES = 12 * 2**20

_ERROR_PLACE = re.compile(r"^[^:]*:(\d+)(?::\d+)?(?:\(\d+\))?(?: in [^:]*)?:?\s*(.*)$", re.DOTALL)
_CHUNK = 2**24


class _Numbered(dict[str, int]):
    """Dictionary that numbers each new key in the order of first appearance."""

    def __missing__(self, key: str) -> int:
        self[key] = number = len(self)
        return number


def read_blocks(content: bytes, path: str | PathLike[str]) -> list[gemmi.cif.Block]:
    """Return the data blocks in the text of a CIF file; raise `InputError` if it is invalid or too large."""
    if not content.isascii():  # authors' names, in any encoding
        content = content.decode("utf-8", "replace").encode()
    if _count_values(content) > MAX_VALUES:
        raise InputError.at(path, f"it holds more than {MAX_VALUES:,} values, the most that is read")
    try:
        return list(gemmi.cif.read_string(content))
    except (ValueError, RuntimeError) as error:
        message = " ".join(str(error).split())
        place = _ERROR_PLACE.match(message)
        line, problem = (int(place[1]), place[2]) if place else (None, message)
        advice = "is the file cut, or no mmCIF?"
        raise InputError.at(path, f"not readable as CIF ({printable(problem)}); {advice}", line=line) from error


def _count_values(content: bytes) -> int:
    """Return the approximate number of values without parsing them."""
    count = 1
    for start in range(0, len(content), _CHUNK):
        blank = np.frombuffer(content, np.uint8, min(_CHUNK, len(content) - start), start) <= ord(" ")
        count += int(np.count_nonzero(blank[:-1] & ~blank[1:]))
    return count


class Category:
    """One table of a data block, such as "_atom_site.", read column by column.

    It has as many rows as its column `key`; missing columns read as '?' in each row. Raise `InputError` if columns
    differ in length.
    """

    def __init__(self, block: gemmi.cif.Block, name: str, key: str, path: str | PathLike[str]) -> None:
        self._block, self._name, self._path = block, name, path
        self._length = len(block.find_values(name + key))
        self._end = self._length
        self._chosen: list[int] | None = None

    def choose(self, rows: Int[np.ndarray, "k"]) -> None:
        """Read only these rows (ascending indices) from now on."""
        self._end = int(rows[-1]) + 1
        self._chosen = None if len(rows) == self._end else rows.tolist()

    def raw(self, column: str) -> list[str]:
        """Return the values as they are written, including quotes."""
        all_values = self._block.find_values(self._name + column)
        if len(all_values) not in {0, self._length}:
            raise InputError.at(
                self._path,
                f"{self._name}{column} has {len(all_values)} values, other columns {self._length}; "
                "was the file edited?",
            )
        values = list(islice(all_values, self._end)) or ["?"] * self._end
        return values if self._chosen is None else [values[row] for row in self._chosen]

    def text(self, column: str) -> list[str]:
        """Return the values without their quotes; "" for unset ones."""
        return list(map(gemmi.cif.as_string, self.raw(column)))

    def codes(self, column: str) -> tuple[Int[np.ndarray, "n"], tuple[str, ...]]:
        """Return each row's index into the distinct values (as in `text`), and these values."""
        numbered = _Numbered()
        codes = np.array(list(map(numbered.__getitem__, self.raw(column))), dtype=np.int64)
        names = [gemmi.cif.as_string(value).strip() for value in numbered]
        distinct = _Numbered()
        same = np.array([distinct[name] for name in names], dtype=np.int64)
        return (same[codes] if len(codes) else codes), tuple(distinct)

    def integers(self, column: str, unset: int) -> Int[np.ndarray, "n"]:
        """Return the values as int32, `unset` where the file has none; raise `InputError` for anything else."""
        codes, values = self.codes(column)
        numbers = np.array([self._integer(column, value) if value else unset for value in values], dtype=np.int32)
        return numbers[codes] if len(codes) else numbers

    def reals(self, column: str, unset: float) -> Float[np.ndarray, "n"]:
        """Return the values as float32, without standard uncertainties ("1.5(2)").

        Values are `unset` where the file has '?' or NaN. Raise `InputError` for anything else that is no number.
        """
        values = self.raw(column)
        try:
            numbers = np.array(list(map(float, values)), dtype=np.float64)
        except ValueError:
            numbers = np.array(list(map(gemmi.cif.as_number, values)), dtype=np.float64)
        for row in np.flatnonzero(~(np.abs(numbers) < np.finfo(np.float32).max)).tolist():  # also finds NaN
            if not gemmi.cif.is_null(values[row]) and values[row].strip("+-").lower() != "nan":
                raise self._not_a_number(column, values[row])
            numbers[row] = unset
        return numbers.astype(np.float32)

    def _integer(self, column: str, value: str) -> int:
        try:
            number = int(value)
        except ValueError as error:
            raise self._not_a_number(column, value) from error
        if abs(number) >= 2**31:
            raise self._not_a_number(column, value)
        return number

    def _not_a_number(self, column: str, value: str) -> InputError:
        problem = f"{self._name}{column} has '{printable(value, 40)}' where a number belongs; was the file edited?"
        return InputError.at(self._path, problem)
