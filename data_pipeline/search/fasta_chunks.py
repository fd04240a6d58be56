"""Read a FASTA database of any size in chunks of complete, checked records, with one chunk in memory at a time.

`CHUNK_BYTES` is the default size of a chunk, and `MAX_RECORD_BYTES` the max size of a record. `MAX_TARGET_RESIDUES` is
HMMER's limit for a sequence of the database, which HMMER calls a target.
"""

import gzip
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path

from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.files import os_errors_as_input_errors
from data_pipeline.parse.alignment_rows import first_word
from data_pipeline.parse.text_files import unpacked

CHUNK_BYTES = 2**20
MAX_RECORD_BYTES = 2**24
MAX_TARGET_RESIDUES = 100_000  # HMMER's own limit for one database sequence

_ERROR_PREFIX = "the database "
_HEADER = re.compile(rb">[^\n]*")
_NAMELESS = re.compile(rb">[ \t\r]*(?:\n|\Z)")
_LETTERS = b"ACDEFGHIKLMNPQRSTVWYBJOUXZ*"
_SEQUENCE_BYTES = _LETTERS + _LETTERS.lower() + b" \t\r\n"
_NUCLEIC_WORD = b" mol:na "
_NUCLEIC = re.compile(rb">\S+ mol:na ")  # headers of DNA and RNA in pdb_seqres


@dataclass(frozen=True, kw_only=True)
class FastaChunk:
    """Consecutive complete records of a FASTA file; `line` is the number (from 1) of the first line in the file."""

    content: bytes
    line: int  # number of its first line in the file, from 1


def database_identity(path: Path) -> str:
    """Return one line that identifies a database by name, size and modification time, without reading it."""
    with os_errors_as_input_errors(path, f"{_ERROR_PREFIX}cannot be read"):
        status = path.stat()
    return f"{printable(path.name)} {status.st_size} bytes of {status.st_mtime_ns}"


def require_database(path: Path) -> None:
    """Raise `InputError` unless the file, plain or gzip, exists and begins with '>' after blanks."""
    with unpacked(path, _ERROR_PREFIX) as stream:
        start = stream.read(CHUNK_BYTES).lstrip()
    if not start:
        raise InputError.at(path, "the database has no sequences; was it completely downloaded and unpacked?")
    if not start.startswith(b">"):
        raise InputError.at(path, "the database is not FASTA: expected a first line '>name'")


def is_gzip(path: Path) -> bool:
    """Return whether the file is gzip, which some programs cannot read."""
    with unpacked(path, _ERROR_PREFIX) as stream:
        return isinstance(stream, gzip.GzipFile)


def read_fasta_chunks(path: Path, chunk_bytes: int = CHUNK_BYTES) -> Iterator[FastaChunk]:
    """Yield the records of a plain or gzip FASTA file in order, in chunks of about `chunk_bytes` when unpacked.

    Raise `InputError` with line and record for letters that HMMER does not support, for text before the first record,
    for records without a name, and for records of more than about `MAX_RECORD_BYTES`.
    """
    line, rest = 1, b""
    with unpacked(path, _ERROR_PREFIX) as stream:
        while block := stream.read(chunk_bytes):
            content = rest + block
            end = content.rfind(b"\n>") + 1
            if end == 0:
                if len(content) > MAX_RECORD_BYTES:
                    problem = f"a record has more than {MAX_RECORD_BYTES:,} bytes; is this a FASTA file of proteins?"
                    raise InputError.at(path, problem, line=line)
                rest = content
                continue
            yield _checked(path, FastaChunk(content=content[:end], line=line))
            line += content.count(b"\n", 0, end)
            rest = content[end:]
    if rest.strip():
        yield _checked(path, FastaChunk(content=rest, line=line))


def has_nucleic_acids(path: Path) -> bool:
    """Return whether the file has records of DNA or RNA, as pdb_seqres does."""
    return any(without_nucleic_acids(chunk) is not chunk for chunk in read_fasta_chunks(path))


def without_nucleic_acids(chunk: FastaChunk) -> FastaChunk:
    """Return the chunk without the DNA and RNA chains of pdb_seqres, which AlphaFold's copy of the file lacks too."""
    if _NUCLEIC_WORD not in chunk.content:
        return chunk
    records = re.split(rb"^(?=>)", chunk.content, flags=re.MULTILINE)
    proteins = [record for record in records if _NUCLEIC.match(record) is None]
    return chunk if len(proteins) == len(records) else replace(chunk, content=b"".join(proteins))


def longest_record(chunk: FastaChunk) -> tuple[str, int]:
    """Return the name of the longest record in the chunk, and its number of residues."""
    records = (record.partition(b"\n") for record in chunk.content.split(b">")[1:])
    lengths = [(first_word(header), len(sequence.translate(None, b" \t\r\n"))) for header, _, sequence in records]
    return max(lengths, key=itemgetter(1), default=("", 0))


def _checked(path: Path, chunk: FastaChunk) -> FastaChunk:
    """Return the chunk unchanged; raise `InputError` if a record has no name or other bytes than residue letters."""
    # HMMER aborts the process when it aligns a database sequence with gap letters.
    letters = _HEADER.sub(b"", chunk.content)
    in_order = chunk.content[:1] == b">" and _NAMELESS.search(chunk.content) is None
    if in_order and not letters.translate(None, _SEQUENCE_BYTES):
        return chunk
    record: str | None = None
    for line_number, line in enumerate(chunk.content.split(b"\n"), start=chunk.line):
        sequence, mark, header = line.partition(b">")  # HMMER starts a record at any '>'
        if sequence.strip() and record is None:
            raise InputError.at(path, "text before the first '>name' line; is this a FASTA file?", line=line_number)
        if wrong := sequence.translate(None, _SEQUENCE_BYTES):
            problem = f"'{printable(chr(wrong[0]))}' is not an amino acid letter; correct or remove the record"
            raise InputError.at(path, problem, line=line_number, column=sequence.index(wrong[:1]) + 1, record=record)
        if mark:
            record = first_word(header)
            if not record:
                raise InputError.at(path, "the record has no name; write one after '>'", line=line_number)
    return chunk
