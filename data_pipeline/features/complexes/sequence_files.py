"""Read single chains and complexes from FASTA files and tables.

`FRAGMENT_WORD` and `CHAIN_IDS_WORD` are keys in FASTA headers, and names of columns of tables.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

from data_pipeline.features.complexes.chain_sequences import (
    CHAIN_SEPARATOR,
    COPIES_MARK,
    ChainSequenceError,
    split_chains,
)
from data_pipeline.features.complexes.target import ComplexTarget
from data_pipeline.io.errors import InputError, InputProblems, input_problems
from data_pipeline.parse.csv_table import no_table_record, read_rows, table_record
from data_pipeline.parse.fasta import (
    MAX_FASTA_BYTES,
    FastaRecord,
    TargetRecords,
    read_fasta,
    read_header,
    read_sequence,
    split_records,
    target_name_problem,
)
from data_pipeline.parse.text_files import read_lines
from data_pipeline.residue_ranges import fragment_numbers

FRAGMENT_WORD = "fragment"  # in a FASTA header, "fragment=1-100,150-200", and as a column of a table
FRAGMENT_ADVICE = "; pass the chains as records of a file of their own (--records-as-chains)"
CHAIN_IDS_WORD = "chain_ids"  # in a FASTA header, "chain_ids=H:L", and as a column of a table


def read_fasta_targets(
    path: str | PathLike[str], problems: InputProblems | None = None
) -> list[FastaRecord | ComplexTarget]:
    """Return each record of a plain or gzip FASTA file: a single chain, or a complex with colons between its chains.

    See `split_chains` for the sequences of complexes, and `read_fasta` for single chains. The header of a complex may
    have the chain IDs in a word such as "chain_ids=H:L". The header of a single chain may have the residues to predict
    in a word such as "fragment=1-100". These words are left out of the description. Raise `InputError` with `path`,
    line and record for anything else; errors of single records are added to `problems` if it is passed.
    """
    records = TargetRecords(path)
    targets: list[FastaRecord | ComplexTarget] = []
    with input_problems(problems) as collection:
        for line, header, lines in split_records(path, read_lines(path, MAX_FASTA_BYTES)):
            with collection.collected():
                targets.append(_fasta_target(path, line, header, lines, records))
    return targets


def _fasta_target(
    path: str | PathLike[str], line: int, header: bytes, lines: list[tuple[int, bytes]], records: TargetRecords
) -> FastaRecord | ComplexTarget:
    """Return the target of a FASTA record: a complex if it has several chains or chain IDs. Adds it to `records`."""
    name, description = read_header(path, line, header)
    text, ids = "".join(map(_letters, lines)), _ids_in(description)
    is_single = not ids and not _has_chains(text)
    if is_single:
        text = read_sequence(path, line, name, lines)
    record = FastaRecord(name=name, description=description, sequence=text, line=line)
    records.add(record)
    if is_single:
        return with_fragment(path, record)
    if _word_in(description, FRAGMENT_WORD):
        raise InputError.at(
            path,
            f"{FRAGMENT_WORD}= is for a record of one chain{FRAGMENT_ADVICE}",
            line=line,
            record=name,
        )
    try:
        sequences = split_chains(text)
    except ChainSequenceError as error:
        wrong, column = _place(lines, error.index)
        raise InputError.at(path, str(error), line=wrong or line, column=column, record=name) from error
    words = (word for word in description.split() if not word.startswith(f"{CHAIN_IDS_WORD}="))
    return _complex(path, line, name, sequences, ids, description=" ".join(words))


def read_complex_of_records(path: str | PathLike[str], chain_ids: Sequence[str] = ()) -> ComplexTarget:
    """Return the complex whose chains are the records of a FASTA file, as in AlphaFold.

    The complex is named after the file; without `chain_ids`, the chains are named A, B, ... in the order of the
    records. Headers may name fragments; see `with_fragment`. Raise `InputError` for invalid files.
    """
    name = Path(path).name.removesuffix(".gz").rpartition(".")[0] or Path(path).name
    if (problem := target_name_problem(name)) is not None:
        raise InputError.at(path, f"the complex is named after the file, but {problem}")
    records = [with_fragment(path, record) for record in read_fasta(path)]
    descriptions = dict.fromkeys(record.description for record in records if record.description)
    sequences = [record.sequence for record in records]
    target = _complex(path, records[0].line, name, sequences, chain_ids, description="; ".join(descriptions))
    return target.with_fragments([record.fragment for record in records])


def with_fragment(path: str | PathLike[str], record: FastaRecord, text: str | None = None) -> FastaRecord:
    """Return a record with only the residues that its header names in a word such as "fragment=1-100,150-200".

    The word moves from the description to the field `fragment`, which keeps the numbers of the residues. Without such a
    word, the record is unchanged. `text` replaces the word ("" for none), for tables; `path` is for error messages.
    """
    text = _word_in(record.description, FRAGMENT_WORD) if text is None else text
    if not text:
        return record
    try:
        numbers = fragment_numbers(text)
        if numbers[-1] > len(record.sequence):
            raise ValueError(f"ends at residue {numbers[-1]}, but the sequence has {len(record.sequence)} residues")
    except ValueError as error:
        raise InputError.at(path, f"{FRAGMENT_WORD} {error}", line=record.line, record=record.name) from error
    words = (word for word in record.description.split() if not word.startswith(f"{FRAGMENT_WORD}="))
    sequence = "".join(record.sequence[number - 1] for number in numbers)
    return replace(record, sequence=sequence, fragment=text, description=" ".join(words))


def read_table_targets(
    path: str | PathLike[str],
    delimiter: str = ",",
    name_column: str = "id",
    problems: InputProblems | None = None,
) -> list[FastaRecord | ComplexTarget]:
    """Return the single chains and the complexes of a plain or gzip CSV or TSV table.

    The first line must name the columns: `name_column` and `sequence` have the names and sequences, with the same rules
    as in FASTA (see `read_fasta`). Optional columns are `chain_ids`, with colons between the IDs, and for single chains
    `fragment` (see `with_fragment`); other columns are ignored.

    Colons separate the chains of a complex (see `split_chains`). Raise `InputError` with `path` and line for any other
    content, and for more than `MAX_FASTA_BYTES` (unpacked); errors of single rows are added to `problems` if it is
    passed.
    """
    records = TargetRecords(path)
    targets: list[FastaRecord | ComplexTarget] = []
    with input_problems(problems) as collection:
        problems_before = len(collection)
        for line, cells in read_rows(path, (name_column, "sequence"), delimiter, collection):
            with collection.collected():
                targets.append(_table_target(path, line, cells[name_column], cells, records))
        if not targets and len(collection) == problems_before:
            raise InputError.at(path, no_table_record(delimiter))
    return targets


def _table_target(
    path: str | PathLike[str], line: int, name: str, cells: dict[str, str], records: TargetRecords
) -> FastaRecord | ComplexTarget:
    """Return the target of a table row: a complex if it has several chains or chain IDs. Adds it to `records`."""
    text, ids = "".join(cells["sequence"].split()).upper(), _ids(cells.get(CHAIN_IDS_WORD, ""))
    if not ids and not _has_chains(text):
        record = table_record(path, line, name, text)
        records.add(record)
        return with_fragment(path, record, cells.get(FRAGMENT_WORD, ""))
    if (problem := target_name_problem(name)) is not None:
        raise InputError.at(path, problem, line=line, record=name or None)
    records.add(FastaRecord(name=name, description="", sequence=text, line=line))
    try:
        sequences = split_chains(text)
    except ChainSequenceError as error:
        raise InputError.at(path, f"letter {error.index + 1}: {error}", line=line, record=name) from error
    return _complex(path, line, name, sequences, ids)


def _complex(
    path: str | PathLike[str],
    line: int,
    name: str,
    sequences: Sequence[str],
    chain_ids: Sequence[str],
    *,
    description: str = "",
) -> ComplexTarget:
    """Return the complex of these chains; errors give file, line and name."""
    try:
        return ComplexTarget.of(name, sequences, chain_ids, description)
    except InputError as error:
        problem = InputError.at(path, str(error), line=line)
        problem.record = name
        raise problem from error


def _has_chains(text: str) -> bool:
    """Return whether the letters of a record have several chains or a number of copies."""
    return CHAIN_SEPARATOR in text or re.search(rf"\{COPIES_MARK}\d", text) is not None


def _letters(line: tuple[int, bytes]) -> str:
    """Return the letters of a numbered line in upper case, without blanks."""
    text = line[1].upper().decode("utf-8", "replace")  # upper() on bytes, because some non-ASCII letters become two
    return text.replace(" ", "").replace("\t", "")


def _place(lines: Sequence[tuple[int, bytes]], index: int) -> tuple[int | None, int | None]:
    """Return the line and the column of a letter from its index in all lines without blanks, or None."""
    for line in lines:
        letters = len(_letters(line))
        if index < letters:
            text = line[1].decode("utf-8", "replace")
            return line[0], [column for column, each in enumerate(text, start=1) if each not in " \t"][index]
        index -= letters
    return None, None


def _ids_in(description: str) -> tuple[str, ...]:
    """Return the chain IDs in the description of a FASTA record."""
    return _ids(_word_in(description, CHAIN_IDS_WORD))


def _word_in(description: str, key: str) -> str:
    """Return the value of the first word such as "key=value" in the description of a FASTA record, or ""."""
    return next((word.partition("=")[2] for word in description.split() if word.startswith(f"{key}=")), "")


def _ids(text: str) -> tuple[str, ...]:
    return tuple(text.split(CHAIN_SEPARATOR)) if text else ()
