"""Read the template hits that hmmsearch writes with `-A`, as Stockholm or converted to a3m."""

import re
from collections.abc import Iterable, Iterator
from os import PathLike

import numpy as np

from data_pipeline.errors import InputError
from data_pipeline.parse.a3m import INSERT_LETTERS, read_records
from data_pipeline.parse.alignment_rows import COLUMN_LETTERS
from data_pipeline.parse.stockholm import stockholm_descriptions, stockholm_rows
from data_pipeline.parse.template_hit import TemplateHit
from data_pipeline.parse.text_files import content_lines

_DESCRIPTION = re.compile(r"([0-9A-Za-z]+)_(\w+)/([0-9]{1,9})-([0-9]{1,9})\s.*protein length:([0-9]{1,9})")
_PADDING = b".~_"


def parse_hmmsearch(content: bytes, query: str, *, path: str | PathLike[str] = "hmmsearch") -> tuple[TemplateHit, ...]:
    """Return the protein hits in the output of `hmmsearch -A` for a profile of the target, as Stockholm or a3m.

    Match columns (upper case and '-') are the target's residues. Names must be those of `pdb_seqres`, '1abc_A/10-50'
    with 'mol:protein length:...' in the description. Raise `InputError` with `path` and record for any other content. A
    file without sequences has no hits: hmmsearch writes it if it finds nothing.
    """
    if content.lstrip(b" \t\r\n\0").startswith(b">"):
        return _hits(_a3m_rows(content, path), query, path)
    if not any(line and not line.startswith((b"#", b"//")) for line in map(bytes.strip, content_lines(content, path))):
        return ()
    descriptions = stockholm_descriptions(content, path)
    rows = stockholm_rows(content, path)
    return _hits(((name, descriptions.get(name, b""), row) for name, row in rows.items()), query, path)


def _a3m_rows(content: bytes, path: str | PathLike[str]) -> Iterator[tuple[bytes, bytes, bytes]]:
    for index, record in enumerate(read_records(content_lines(content, path), path)):
        name, _, description = record.header.partition(b" ")
        # Some writers put the target first; its header has no range of residues.
        if index or b"protein length:" in description:
            yield name, description, record.text


def _hits(rows: Iterable[tuple[bytes, bytes, bytes]], query: str, path: str | PathLike[str]) -> tuple[TemplateHit, ...]:
    hits = []
    for index, (name, description, row) in enumerate(rows, start=1):
        if b"mol:" in description and b"mol:protein" not in description:  # nucleic acids are in the database too
            continue
        record = name.decode("utf-8", "replace")
        match = _DESCRIPTION.match(f"{record} {description.decode('utf-8', 'replace')}")
        if match is None:
            problem = "a hit is named like '1abc_A/10-50' and described as 'mol:protein length:120'"
            raise InputError.at(path, f"{problem}; search a database like pdb_seqres", record=record)
        hits.append(_hit(index, match, row, query, path))
    return tuple(hits)


def _hit(index: int, described: re.Match[str], row: bytes, query: str, path: str | PathLike[str]) -> TemplateHit:
    name, first, last = f"{described[1]}_{described[2]}", int(described[3]), int(described[4])
    text = row.translate(None, _PADDING)
    if text.translate(None, COLUMN_LETTERS + INSERT_LETTERS):
        raise InputError.at(path, "the row has other letters than residues and gaps", record=name)
    letters = np.frombuffer(text, np.uint8)
    is_column = letters < ord("a")
    is_residue = letters != ord("-")
    if is_column.sum() != len(query):
        problem = f"the hit has {is_column.sum()} match columns, the target {len(query)} residues"
        raise InputError.at(path, f"{problem}; use the hits that were found for this target", record=name)
    if last - first + 1 != is_residue.sum():
        problem = f"the hit goes from residue {first} to {last} but has {is_residue.sum()}"
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
