"""Read the template hits that MMseqs2 writes as a table (m8) with CIGAR strings, as ColabFold's server sends them."""

import re
from os import PathLike

import numpy as np

from data_pipeline.errors import InputError, printable
from data_pipeline.parse.template_hit import TemplateHit
from data_pipeline.parse.text_files import content_lines

_COLUMNS = 13  # query, target, identity, 3 counts, 2 ranges, E-value, score, CIGAR string
_CIGAR = re.compile(r"(?:[1-9][0-9]{0,6}[MID])+")
_PIECE = re.compile(r"([0-9]+)([MID])")
_RESIDUE_NUMBER = re.compile(r"[1-9][0-9]{0,8}")
_MAX_HITS = 10_000
_MAX_ALIGNED_COLUMNS = 1_000_000


def parse_hit_table(content: bytes, query: str, *, path: str | PathLike[str] = "m8") -> tuple[TemplateHit, ...]:
    """Return the hits of the target `query` in a table of MMseqs2, the best first; an empty table has none.

    The table does not hold the residues of the hits: these are X, to be taken from the structure. Raise `InputError`
    with `path` and line for a line that is not such a hit, and for a hit beyond the end of the target.
    """
    hits: list[TemplateHit] = []
    for number, line in enumerate(content_lines(content, path), start=1):
        if not line.strip(b" \t\r\n\0"):
            continue
        if len(hits) == _MAX_HITS:
            raise InputError.at(path, f"it has more than {_MAX_HITS:,} hits, the most that are read", line=number)
        fields = line.decode("utf-8", "replace").rstrip("\r\n").split("\t")
        if len(fields) != _COLUMNS:
            problem = f"a hit has {_COLUMNS} columns, the last of them a CIGAR string, and this line has {len(fields)}"
            raise InputError.at(path, f"{problem}; was the file cut?", line=number)
        hits.append(_hit(len(hits) + 1, fields, query, number, path))
    return tuple(hits)


def _hit(index: int, fields: list[str], query: str, line: int, path: str | PathLike[str]) -> TemplateHit:
    name, numbers, cigar = fields[1], fields[6:10], fields[12].strip()

    def error(problem: str) -> InputError:
        return InputError.at(path, problem, line=line, record=printable(name, 40))

    if not all(map(_RESIDUE_NUMBER.fullmatch, numbers)):
        raise error("columns 7 to 10 should be residue numbers: first and last of the target, then of the hit")
    if _CIGAR.fullmatch(cigar) is None:
        raise error(f"column 13 should be a CIGAR string such as 12M3I40M, not '{printable(cigar, 40)}'")
    first_query, last_query, first_hit, last_hit = map(int, numbers)
    pieces = [(int(count), kind) for count, kind in _PIECE.findall(cigar)]
    if sum(count for count, _ in pieces) > _MAX_ALIGNED_COLUMNS:
        raise error(f"its CIGAR string has more than {_MAX_ALIGNED_COLUMNS:,} columns")
    kinds = np.repeat([kind for _, kind in pieces], [count for count, _ in pieces])
    # MMseqs2's I are residues of the target that the hit lacks, its D are residues of the hit alone.
    in_query, in_hit = kinds != "D", kinds != "I"
    for side, present, first, last in (
        ("target", in_query, first_query, last_query),
        ("hit", in_hit, first_hit, last_hit),
    ):
        if present.sum() != last - first + 1:
            problem = f"its CIGAR string has {present.sum()} residues of the {side}, and columns 7 to 10 say"
            raise error(f"{problem} {first} to {last}")
    if last_query > len(query):
        raise error(f"it is aligned to residues {first_query} to {last_query}, and the target has {len(query)}")
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
