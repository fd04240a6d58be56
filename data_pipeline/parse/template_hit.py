"""Read the hits of a template search: the alignments of chains with known structures to the target.

Formats: .hhr of hhsearch, the output of `hmmsearch -A` (Stockholm, or converted to a3m), and the table (m8) with CIGAR
strings of MMseqs2 that ColabFold's server returns. `MAX_HHR_BYTES` is the max size of an .hhr.
"""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from os import PathLike

import numpy as np
from jaxtyping import Int

from data_pipeline.io.errors import InputError, printable
from data_pipeline.parse.a3m import INSERT_LETTERS, read_records
from data_pipeline.parse.alignment_rows import COLUMN_LETTERS
from data_pipeline.parse.stockholm import stockholm_descriptions, stockholm_rows
from data_pipeline.parse.text_files import content_lines


@dataclass(frozen=True, kw_only=True)
class TemplateHit:
    """A template hit: one aligned segment of a template chain. A chain may have several hits.

    `query` and `hit_sequence` are the two aligned rows, of equal length: residues in upper case, gaps as '-'. In
    `hit_sequence`, residues that the target lacks are in lower case if the format marks them, and all residues are X if
    the format does not list them. `indices_query` and `indices_hit` hold the residue index (from 0) of each column in
    the full target and in the full hit chain, or -1. `index` is the rank in the file, from 1, and `name` the full
    description, which starts with entry and chain. `aligned_columns` counts the columns in which both rows have a
    residue. `sum_probs` is hhsearch's sum of posterior probabilities, or None for other programs.
    """

    index: int  # rank in the file, from 1
    name: str  # the full description, starting with the PDB id and chain: "2CRB_A nuclear receptor ..."
    aligned_columns: int
    sum_probs: float | None  # hhsearch's sum of posterior probabilities; hmmsearch has none
    query: str
    hit_sequence: str
    indices_query: Int[np.ndarray, "columns"]
    indices_hit: Int[np.ndarray, "columns"]


def parse_hits(content: bytes, query: str, *, file_format: str, path: str | PathLike[str]) -> tuple[TemplateHit, ...]:
    """Return the hits of the target `query`; a `file_format` other than "hhr" and "m8" is read as hmmsearch's.

    In the format "hhr", `query` is not compared with the hits. `path` is for messages.
    """
    if file_format == "hhr":
        return parse_hhr(content, path=path)
    parse = parse_hit_table if file_format == "m8" else parse_hmmsearch
    return parse(content, query, path=path)


MAX_HHR_BYTES = 2**25  # a thousand hits of a target with 2,000 residues take two thirds of it

_HIT_NUMBER = re.compile(rb"No +([0-9]{1,9})$")
_HIT_VALUE = re.compile(rb"([A-Za-z_-]+)=([^ \t%]+)")
_ALIGNED_ROW = re.compile(rb"[ \t]*([0-9]{1,9})[ \t]+([A-Z-]+)[ \t]+([0-9]{1,9})[ \t]+\([0-9]+\)$")
_NAME_END = 17  # "Q ", fourteen letters of the name, and a space
_ANNOTATION = re.compile(rb"[QT] (ss_dssp|ss_pred|ss_conf|Consensus)\b")
_HHR_HEADER_WORDS = (b"Query ", b"Match_columns", b" No Hit")


def parse_hhr(content: bytes, *, path: str | PathLike[str] = "hhr") -> tuple[TemplateHit, ...]:
    """Return all hits in the content of an .hhr file, in file order.

    Raise `InputError` with `path`, line and hit for any other content and for truncated hits.
    """
    if len(content) > MAX_HHR_BYTES:
        raise InputError.at(path, f"the text is longer than the maximum of {MAX_HHR_BYTES:,} bytes")
    hits: list[TemplateHit] = []
    start, lines, is_hhr = 0, list[bytes](), False
    for index, line in enumerate(map(bytes.rstrip, content_lines(content, path))):
        is_hhr = is_hhr or line.startswith((*_HHR_HEADER_WORDS, b"No "))
        if line.startswith(b"No "):
            # Reading hit by hit rejects a huge file of invalid hits at the first one.
            if lines:
                hits.append(_hit_of_hhr(path, start, lines))
            start, lines = index, [line]
        elif lines:
            lines.append(line)
    if not is_hhr:
        raise InputError.at(path, "not an .hhr file: it has neither a header nor hits", line=1)
    if lines:
        hits.append(_hit_of_hhr(path, start, lines))
    return tuple(hits)


def _hit_of_hhr(path: str | PathLike[str], start: int, lines: list[bytes]) -> TemplateHit:
    """Return one hit from its lines: 'No' and rank, '>' and name, a line of values, then the aligned rows."""
    first_line = _HIT_NUMBER.match(lines[0])
    if first_line is None:
        raise InputError.at(path, "a hit must begin with 'No' and its number", line=start + 1)
    rank = int(first_line[1])

    def error(index: int, problem: str) -> InputError:
        return InputError.at(path, problem, line=start + 1 + index, record=f"No {rank}")

    if len(lines) > 1 and not lines[1].startswith(b">"):
        raise error(1, "expected '>' and the hit's name; was the file cut or edited?")
    if len(lines) < 3:
        raise error(0, "its name and values are missing; was the file cut?")
    values = dict(_HIT_VALUE.findall(lines[2]))
    try:
        columns, sum_probs = float(values[b"Aligned_cols"]), float(values[b"Sum_probs"])
    except (KeyError, ValueError):
        columns = sum_probs = math.nan
    if not (0 <= columns < math.inf and columns == int(columns) and math.isfinite(sum_probs)):
        raise error(2, "the line after a hit's name must have Aligned_cols and Sum_probs, as numbers")
    rows: dict[bytes, list[bytes]] = {b"Q": [], b"T": []}
    indices: dict[bytes, list[np.ndarray]] = {b"Q": [], b"T": []}
    for index, line in enumerate(lines[3:], start=3):
        if not line.startswith((b"Q ", b"T ")) or _ANNOTATION.match(line):
            continue
        match = _ALIGNED_ROW.match(line[_NAME_END:])
        if match is None:
            problem = "an aligned row must have its first index, letters in upper case and '-', its last index, and its"
            row_text = printable(line.decode("latin-1"), 40)
            raise error(index, f"{problem} length in brackets: got '{row_text}'; was the file cut or edited?")
        is_residue = np.frombuffer(match[2], np.uint8) != ord("-")
        first, last, count = int(match[1]) - 1, int(match[3]), int(is_residue.sum())
        if first < 0 or last - first != count:
            raise error(index, f"the row spans residues {first + 1} to {last} but has {count} residues")
        rows[line[:1]].append(match[2])
        indices[line[:1]].append(np.where(is_residue, first - 1 + np.cumsum(is_residue), -1).astype(np.int32))
    query, hit = (b"".join(rows[side]).decode() for side in (b"Q", b"T"))
    if not query or len(query) != len(hit):
        raise error(0, f"the target's row has {len(query)} columns, the hit's {len(hit)}; was the file cut or edited?")
    return TemplateHit(
        index=rank,
        name=lines[1][1:].decode("utf-8", "replace"),
        aligned_columns=int(columns),
        sum_probs=sum_probs,
        query=query,
        hit_sequence=hit,
        indices_query=np.concatenate(indices[b"Q"]),
        indices_hit=np.concatenate(indices[b"T"]),
    )


_TABLE_COLUMNS = 13  # query, target, identity, 3 counts, 2 ranges, E-value, score, CIGAR string
_CIGAR = re.compile(r"(?:[1-9][0-9]{0,6}[MID])+")
_PIECE = re.compile(r"([0-9]+)([MID])")
_RESIDUE_NUMBER = re.compile(r"[1-9][0-9]{0,8}")
_MAX_HITS = 10_000
_MAX_ALIGNED_COLUMNS = 1_000_000


def parse_hit_table(content: bytes, query: str, *, path: str | PathLike[str] = "m8") -> tuple[TemplateHit, ...]:
    """Return the hits of the target `query` in a table of MMseqs2, in file order; an empty table has no hits.

    The table does not contain the residues of the hits, so they are X until they are read from the structure. Raise
    `InputError` with `path` and line for invalid lines, and for hits beyond the end of the target.
    """
    hits: list[TemplateHit] = []
    for line_number, line in enumerate(content_lines(content, path), start=1):
        if not line.strip(b" \t\r\n\0"):
            continue
        if len(hits) == _MAX_HITS:
            raise InputError.at(path, f"the table has more than the maximum of {_MAX_HITS:,} hits", line=line_number)
        fields = line.decode("utf-8", "replace").rstrip("\r\n").split("\t")
        if len(fields) != _TABLE_COLUMNS:
            problem = (
                f"a hit must have {_TABLE_COLUMNS} columns, the last one a CIGAR string, but this has {len(fields)}"
            )
            raise InputError.at(path, f"{problem}; was the file cut?", line=line_number)
        hits.append(_hit_of_table(len(hits) + 1, fields, query, line_number, path))
    return tuple(hits)


def _hit_of_table(index: int, fields: list[str], query: str, line: int, path: str | PathLike[str]) -> TemplateHit:
    """Return the hit of one row, already split into `fields`, of an MMseqs2 table; `index` numbers the hits from 1."""
    name, numbers, cigar = fields[1], fields[6:10], fields[12].strip()

    def error(problem: str) -> InputError:
        return InputError.at(path, problem, line=line, record=printable(name, 40))

    if not all(map(_RESIDUE_NUMBER.fullmatch, numbers)):
        raise error("columns 7 to 10 must be residue numbers: first and last of the target, then of the hit")
    if _CIGAR.fullmatch(cigar) is None:
        raise error(f"column 13 must be a CIGAR string such as 12M3I40M, got '{printable(cigar, 40)}'")
    first_query, last_query, first_hit, last_hit = map(int, numbers)
    pieces = [(int(count), kind) for count, kind in _PIECE.findall(cigar)]
    if sum(count for count, _ in pieces) > _MAX_ALIGNED_COLUMNS:
        raise error(f"its CIGAR string has more than {_MAX_ALIGNED_COLUMNS:,} columns")
    kinds = np.repeat([kind for _, kind in pieces], [count for count, _ in pieces])
    # In MMseqs2, I are residues of the target that the hit lacks, and D are residues that the target lacks.
    in_query, in_hit = kinds != "D", kinds != "I"
    for side, present, first, last in (
        ("target", in_query, first_query, last_query),
        ("hit", in_hit, first_hit, last_hit),
    ):
        if present.sum() != last - first + 1:
            problem = f"its CIGAR string has {present.sum()} residues of the {side}, but columns 7 to 10 span"
            raise error(f"{problem} {first} to {last}")
    if last_query > len(query):
        raise error(
            f"it is aligned to residues {first_query} to {last_query}, but the target has {len(query)} residues"
        )
    indices_query = np.where(in_query, first_query - 2 + np.cumsum(in_query), -1).astype(np.int32)
    return TemplateHit(
        index=index,
        name=name,
        aligned_columns=int((in_query & in_hit).sum()),
        sum_probs=None,
        query="".join(query[residue] if residue >= 0 else "-" for residue in indices_query),
        hit_sequence="".join(np.where(in_hit, np.where(in_query, "X", "x"), "-")),
        indices_query=indices_query,
        indices_hit=np.where(in_hit, first_hit - 2 + np.cumsum(in_hit), -1).astype(np.int32),
    )


_DESCRIPTION = re.compile(r"([0-9A-Za-z]+)_(\w+)/([0-9]{1,9})-([0-9]{1,9})\s.*protein length:([0-9]{1,9})")
_PADDING = b".~_"


def parse_hmmsearch(content: bytes, query: str, *, path: str | PathLike[str] = "hmmsearch") -> tuple[TemplateHit, ...]:
    """Return the protein hits in the output of `hmmsearch -A` for a profile of the target, as Stockholm or a3m.

    Match columns (upper case and '-') are the target's residues. Names must be like '1abc_A/10-50', with
    'mol:protein length:...' in the description, as in `pdb_seqres`. Raise `InputError` with `path` and record for any
    other content. hmmsearch writes a file without sequences if it finds no hits.
    """
    if content.lstrip(b" \t\r\n\0").startswith(b">"):
        return _hits(_a3m_rows(content, path), query, path)
    if not any(line and not line.startswith((b"#", b"//")) for line in map(bytes.strip, content_lines(content, path))):
        return ()
    descriptions = stockholm_descriptions(content, path)
    rows = stockholm_rows(content, path)
    return _hits(((name, descriptions.get(name, b""), row) for name, row in rows.items()), query, path)


def _a3m_rows(content: bytes, path: str | PathLike[str]) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Yield name, description and row of each A3M record; the first only if it is a hit and not the target."""
    for index, record in enumerate(read_records(content_lines(content, path), path)):
        name, _, description = record.header.partition(b" ")
        # Some programs write the target first; its header has no residue range.
        if index or b"protein length:" in description:
            yield name, description, record.text


def _hits(rows: Iterable[tuple[bytes, bytes, bytes]], query: str, path: str | PathLike[str]) -> tuple[TemplateHit, ...]:
    """Return the protein hits of rows (name, description, aligned row); nucleic acids are left out, but numbered."""
    hits = []
    for index, (name, description, row) in enumerate(rows, start=1):
        if b"mol:" in description and b"mol:protein" not in description:  # the database includes nucleic acids
            continue
        record = name.decode("utf-8", "replace")
        match = _DESCRIPTION.match(f"{record} {description.decode('utf-8', 'replace')}")
        if match is None:
            problem = "a hit must have a name like '1abc_A/10-50' and a description like 'mol:protein length:120'"
            raise InputError.at(path, f"{problem}; search a database like pdb_seqres", record=record)
        hits.append(_hit_of_hmmsearch(index, match, row, query, path))
    return tuple(hits)


def _hit_of_hmmsearch(
    index: int, header: re.Match[str], row: bytes, query: str, path: str | PathLike[str]
) -> TemplateHit:
    """Return the hit of an aligned row, whose name and description are matched by `header`."""
    name, first, last = f"{header[1]}_{header[2]}", int(header[3]), int(header[4])
    text = row.translate(None, _PADDING)
    if text.translate(None, COLUMN_LETTERS + INSERT_LETTERS):
        raise InputError.at(path, "the row has letters other than residues and gaps", record=name)
    letters = np.frombuffer(text, np.uint8)
    is_column = letters < ord("a")
    is_residue = letters != ord("-")
    if is_column.sum() != len(query):
        problem = f"the hit has {is_column.sum()} match columns, the target {len(query)} residues"
        raise InputError.at(path, f"{problem}; pass the hits of this target", record=name)
    if last - first + 1 != is_residue.sum():
        problem = f"the hit spans residues {first} to {last} but has {is_residue.sum()} residues"
        raise InputError.at(path, f"{problem}; was the file cut or edited?", record=name)
    target = np.full(len(letters), ord("-"), np.uint8)
    target[is_column] = np.frombuffer(query.encode(), np.uint8)
    return TemplateHit(
        index=index,
        name=name,
        aligned_columns=int((is_column & is_residue).sum()),
        sum_probs=None,
        query=target.tobytes().decode(),
        hit_sequence=text.decode(),
        indices_query=np.where(is_column, np.cumsum(is_column) - 1, -1).astype(np.int32),
        indices_hit=np.where(is_residue, first - 2 + np.cumsum(is_residue), -1).astype(np.int32),
    )
