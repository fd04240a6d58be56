"""Read the template hits in result files of hhsearch (.hhr)."""

import math
import re
from os import PathLike

import numpy as np

from data_pipeline.errors import InputError, printable
from data_pipeline.parse.template_hit import TemplateHit
from data_pipeline.parse.text_files import content_lines

MAX_HHR_BYTES = 2**25  # a thousand hits of a target of 2,000 residues need two thirds of it

_NUMBER = re.compile(rb"No +([0-9]{1,9})$")
_VALUE = re.compile(rb"([A-Za-z_-]+)=([^ \t%]+)")
_ROW = re.compile(rb"[ \t]*([0-9]{1,9})[ \t]+([A-Z-]+)[ \t]+([0-9]{1,9})[ \t]+\([0-9]+\)$")
_NAME_END = 17  # "Q ", fourteen letters of the name, and a space
_ANNOTATION = re.compile(rb"[QT] (ss_dssp|ss_pred|ss_conf|Consensus)\b")
_HEADER = (b"Query ", b"Match_columns", b" No Hit")


def parse_hhr(content: bytes, *, path: str | PathLike[str] = "hhr") -> tuple[TemplateHit, ...]:
    """Return all hits in the text of an .hhr file, in its order.

    Raise `InputError` with `path`, line and hit for any other content, and for a hit that is cut off.
    """
    if len(content) > MAX_HHR_BYTES:
        raise InputError.at(path, f"it holds more than {MAX_HHR_BYTES:,} bytes of text, the most that is read")
    hits: list[TemplateHit] = []
    start, lines, is_hhr = 0, list[bytes](), False
    for index, line in enumerate(map(bytes.rstrip, content_lines(content, path))):
        is_hhr = is_hhr or line.startswith((*_HEADER, b"No "))
        if line.startswith(b"No "):
            # Only the lines of one hit are held, so a huge file of invalid hits is refused at the first one.
            if lines:
                hits.append(_hit(path, start, lines))
            start, lines = index, [line]
        elif lines:
            lines.append(line)
    if not is_hhr:
        raise InputError.at(path, "this is no .hhr file: it has neither a header nor hits", line=1)
    if lines:
        hits.append(_hit(path, start, lines))
    return tuple(hits)


def _hit(path: str | PathLike[str], start: int, lines: list[bytes]) -> TemplateHit:
    """Return one hit from its lines: 'No' and its number, '>' and its name, a line of values, the aligned rows."""
    first_line = _NUMBER.match(lines[0])
    if first_line is None:
        raise InputError.at(path, "a hit begins with 'No' and its number", line=start + 1)
    number = int(first_line[1])

    def error(index: int, problem: str) -> InputError:
        return InputError.at(path, problem, line=start + 1 + index, record=f"No {number}")

    if len(lines) > 1 and not lines[1].startswith(b">"):
        raise error(1, "here should be '>' and the hit's name; was the file cut or edited?")
    if len(lines) < 3:
        raise error(0, "its name and values are missing; was the file cut?")
    values = dict(_VALUE.findall(lines[2]))
    try:
        columns, sum_probs = float(values[b"Aligned_cols"]), float(values[b"Sum_probs"])
    except (KeyError, ValueError):
        columns = sum_probs = math.nan
    if not (0 <= columns < math.inf and columns == int(columns) and math.isfinite(sum_probs)):
        raise error(2, "the line after a hit's name should give Aligned_cols and Sum_probs, as numbers")
    rows: dict[bytes, list[bytes]] = {b"Q": [], b"T": []}
    indices: dict[bytes, list[np.ndarray]] = {b"Q": [], b"T": []}
    for index, line in enumerate(lines[3:], start=3):
        if not line.startswith((b"Q ", b"T ")) or _ANNOTATION.match(line):
            continue
        match = _ROW.match(line[_NAME_END:])
        if match is None:
            problem = "an aligned row is first index, letters in upper case and '-', last index, and length in brackets"
            shown = printable(line.decode("latin-1"), 40)
            raise error(index, f"{problem}, not '{shown}'; was the file cut or edited?")
        is_residue = np.frombuffer(match[2], np.uint8) != ord("-")
        first, last, count = int(match[1]) - 1, int(match[3]), int(is_residue.sum())
        if first < 0 or last - first != count:
            raise error(index, f"the row goes from residue {first + 1} to {last} but has {count}")
        rows[line[:1]].append(match[2])
        indices[line[:1]].append(np.where(is_residue, first - 1 + np.cumsum(is_residue), -1).astype(np.int32))
    query, hit = (b"".join(rows[side]).decode() for side in (b"Q", b"T"))
    if not query or len(query) != len(hit):
        raise error(0, f"the target's row has {len(query)} columns, the hit's {len(hit)}; was the file cut or edited?")
    return TemplateHit(
        index=number,
        name=lines[1][1:].decode("utf-8", "replace"),
        aligned_columns=int(columns),
        sum_probs=sum_probs,
        query=query,
        hit_sequence=hit,
        indices_query=np.concatenate(indices[b"Q"]),
        indices_hit=np.concatenate(indices[b"T"]),
    )
