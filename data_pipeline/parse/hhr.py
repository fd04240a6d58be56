"""Reading the result files of hhsearch and hhblits (.hhr): which chains of known structure align to the target."""

import math
import re
from os import PathLike

import numpy as np

from data_pipeline.errors import InputError, printable
from data_pipeline.parse.hits import TemplateHit
from data_pipeline.parse.text import content_lines, read_text_bytes

MAX_HHR_BYTES = 2**25  # a thousand hits of a target of 2,000 residues need two thirds of it

_NUMBER = re.compile(rb"No +([0-9]{1,9})$")
_VALUE = re.compile(rb"([A-Za-z_-]+)=([^ \t%]+)")
_ROW = re.compile(rb"[ \t]*([0-9]{1,9})[ \t]+([A-Z-]+)[ \t]+([0-9]{1,9})[ \t]+\([0-9]+\)$")
_NAME_END = 17  # "Q ", fourteen letters of the name, and a space
_NO_RESIDUES = re.compile(rb"[QT] (ss_dssp|ss_pred|ss_conf|Consensus)\b")
_HEADER = (b"Query ", b"Match_columns", b" No Hit")


def read_hhr(path: str | PathLike[str]) -> tuple[TemplateHit, ...]:
    """The hits in a plain or gzip .hhr file of at most `MAX_HHR_BYTES` (unpacked); see `parse_hhr`."""
    return parse_hhr(read_text_bytes(path, MAX_HHR_BYTES), path=path)


def parse_hhr(content: bytes, *, path: str | PathLike[str] = "hhr") -> tuple[TemplateHit, ...]:
    """All hits in the text of an .hhr file, in its order; none if its table is empty.

    Anything else, a hit that is cut off included, is an `InputError` with `path`, line and hit.
    """
    if len(content) > MAX_HHR_BYTES:
        raise InputError.at(path, f"it holds more than {MAX_HHR_BYTES:,} bytes of text, the most that is read")
    hits: list[TemplateHit] = []
    hit: _Hit | None = None
    is_hhr = False
    for number, line in enumerate(map(bytes.rstrip, content_lines(content, path)), start=1):
        if line.startswith(b"No "):
            if hit is not None:
                hits.append(hit.finish())
            hit = _Hit(path, number, line)
        elif hit is not None:
            hit.add(number, line)
        is_hhr = is_hhr or line.startswith(_HEADER)
    if hit is not None:
        hits.append(hit.finish())
    elif not is_hhr:
        raise InputError.at(path, "this is no .hhr file: it has neither a header nor hits", line=1)
    return tuple(hits)


class _Hit:
    """One hit as it is read: 'No' and its number, '>' and its name, a line of values, and the aligned rows."""

    def __init__(self, path: str | PathLike[str], line: int, first: bytes) -> None:
        self._path = path
        self._line = line
        number = _NUMBER.match(first)
        if number is None:
            raise InputError.at(path, "a hit begins with 'No' and its number", line=line)
        self._number = int(number[1])
        self._name: str | None = None
        self._values: tuple[int, float] | None = None  # aligned columns and sum of probabilities
        self._rows: dict[bytes, list[bytes]] = {b"Q": [], b"T": []}
        self._indices: dict[bytes, list[np.ndarray]] = {b"Q": [], b"T": []}

    def add(self, line: int, text: bytes) -> None:
        if self._name is None:
            if not text.startswith(b">"):
                raise self._error(line, "here should be '>' and the hit's name; was the file cut or edited?")
            self._name = text[1:].decode("utf-8", "replace")
        elif self._values is None:
            self._values = self._read_values(line, text)
        elif text.startswith((b"Q ", b"T ")) and not _NO_RESIDUES.match(text):
            self._read_row(line, text)

    def finish(self) -> TemplateHit:
        if self._name is None or self._values is None:
            raise self._error(self._line, "its name and values are missing; was the file cut?")
        query, hit = (b"".join(self._rows[side]).decode() for side in (b"Q", b"T"))
        if not query or len(query) != len(hit):
            problem = f"the target's row has {len(query)} columns, the hit's {len(hit)}; was the file cut or edited?"
            raise self._error(self._line, problem)
        return TemplateHit(
            index=self._number,
            name=self._name,
            aligned_columns=self._values[0],
            sum_probs=self._values[1],
            query=query,
            hit_sequence=hit,
            indices_query=np.concatenate(self._indices[b"Q"]),
            indices_hit=np.concatenate(self._indices[b"T"]),
        )

    def _read_values(self, line: int, text: bytes) -> tuple[int, float]:
        values = dict(_VALUE.findall(text))
        try:
            columns, sum_probs = float(values[b"Aligned_cols"]), float(values[b"Sum_probs"])
        except (KeyError, ValueError):
            columns = sum_probs = math.nan
        if not (0 <= columns < math.inf and columns == int(columns) and math.isfinite(sum_probs)):
            problem = "the line after a hit's name should give Aligned_cols and Sum_probs, as numbers"
            raise self._error(line, problem)
        return int(columns), sum_probs

    def _read_row(self, line: int, text: bytes) -> None:
        match = _ROW.match(text[_NAME_END:])
        if match is None:
            problem = "an aligned row is first index, letters in upper case and '-', last index, and length in brackets"
            shown = printable(text.decode("latin-1"), 40)
            raise self._error(line, f"{problem}, not '{shown}'; was the file cut or edited?")
        is_residue = np.frombuffer(match[2], np.uint8) != ord("-")
        first, last, count = int(match[1]) - 1, int(match[3]), int(is_residue.sum())
        if first < 0 or last - first != count:
            raise self._error(line, f"the row goes from residue {first + 1} to {last} but has {count}")
        self._rows[text[:1]].append(match[2])
        indices = np.where(is_residue, first - 1 + np.cumsum(is_residue), -1)
        self._indices[text[:1]].append(indices.astype(np.int32))

    def _error(self, line: int, problem: str) -> InputError:
        return InputError.at(self._path, problem, line=line, record=f"No {self._number}")
