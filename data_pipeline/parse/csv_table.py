"""Read CSV and TSV tables of targets, with columns identified by name."""

import csv
from collections.abc import Iterable, Iterator
from os import PathLike

from data_pipeline.io.errors import InputError, InputProblems, did_you_mean, printable
from data_pipeline.parse.fasta import (
    MAX_FASTA_BYTES,
    FastaRecord,
    check_record_count,
    find_invalid_letter,
    sequence_problem,
    target_name_problem,
)
from data_pipeline.parse.text_files import read_lines

_DELIMITER_NAMES = {",": "commas", "\t": "tabs"}


def no_table_record(delimiter: str) -> str:
    """Return the error message for a table without records, whose cells are separated by `delimiter`."""
    return f"the table has no record; write an id and a sequence, separated by {_DELIMITER_NAMES[delimiter]}, per line"


def read_rows(
    path: str | PathLike[str],
    required: Iterable[str],
    delimiter: str = ",",
    problems: InputProblems | None = None,
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the line number of each row in a plain or gzip table, and its cells by column name in lower case.

    Empty lines are skipped. Raise `InputError` if the first line does not name each `required` column once, if a row
    has another number of cells, and for more than `MAX_FASTA_BYTES` (unpacked). With `problems`, rows with another
    number of cells are added to it and skipped, and more than `MAX_RECORDS` rows raise `InputError`.
    """
    lines = read_lines(path, MAX_FASTA_BYTES)
    rows = csv.reader((line.decode("utf-8", "replace") + "\n" for line in lines), delimiter=delimiter, strict=True)
    required_names, delimiters = list(required), _DELIMITER_NAMES[delimiter]
    try:
        header = [cell.strip().lower() for cell in next(rows, [])]
        if any(header.count(name) != 1 for name in required_names):
            columns = " and ".join(f"'{name}'" for name in required_names)
            problem = f"the first line must name the columns {columns}, each once and separated by {delimiters}"
            missing = [name for name in required_names if name not in header]
            hints = ((cell, did_you_mean(cell, missing)) for cell in header if cell not in required_names)
            near = next((f", got '{printable(cell)}'{hint}" for cell, hint in hints if hint), "")
            if len(header) == 1 and ";" in header[0]:
                near = ", got semicolons"
            raise InputError.at(path, f"{problem}{near}", line=1)
        count = 0
        for row in rows:
            if not "".join(row).strip():
                continue
            if problems is not None:
                check_record_count(path, rows.line_num, count := count + 1)
            if len(row) != len(header):
                problem = f"the row has {len(row)} cells, but the first line has {len(header)} columns"
                error = InputError.at(path, problem, line=rows.line_num)
                if problems is None:
                    raise error
                problems.add(error)
                continue
            yield rows.line_num, {name: cell.strip() for name, cell in zip(header, row, strict=True)}
    except csv.Error as error:
        kind = "TSV" if delimiter == "\t" else "CSV"
        raise InputError.at(path, f"not a {kind} table: {printable(str(error))}", line=rows.line_num) from error


def table_record(path: str | PathLike[str], line: int, name: str, sequence: str) -> FastaRecord:
    """Return the record of a row, with its sequence in upper case, without blanks and a stop codon `*` at its end.

    Raise `InputError` with `path` and `line` for an invalid target name or sequence.
    """
    sequence = "".join(sequence.split()).upper().removesuffix("*")  # a stop codon, as at the end of FASTA records
    problem, letter = target_name_problem(name), find_invalid_letter(sequence)
    if problem is None and letter is not None:
        problem = f"residue {letter[0] + 1}: {letter[1]}"
    problem = problem or sequence_problem(sequence)
    if problem is not None:
        raise InputError.at(path, problem, line=line, record=name or None)
    return FastaRecord(name=name, description="", sequence=sequence, line=line)
