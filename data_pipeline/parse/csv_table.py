"""Read targets from a CSV or TSV table with columns `id` and `sequence`."""

import csv
from os import PathLike

from data_pipeline.errors import InputError, printable
from data_pipeline.parse.fasta import (
    MAX_FASTA_BYTES,
    FastaRecord,
    TargetRecords,
    find_invalid_letter,
    sequence_problem,
    target_name_problem,
)
from data_pipeline.parse.text_files import read_lines


def read_csv(path: str | PathLike[str], delimiter: str = ",") -> list[FastaRecord]:
    """Return the records of a plain or gzip CSV file, in order; its first line must name its columns.

    Columns other than `id` and `sequence` are ignored. Names and letters must be as in FASTA (see `read_fasta`). Raise
    `InputError` with `path` and line for any other content, and for more than `MAX_FASTA_BYTES` (unpacked).
    """
    lines = read_lines(path, MAX_FASTA_BYTES)
    rows = csv.reader((line.decode("utf-8", "replace") + "\n" for line in lines), delimiter=delimiter, strict=True)
    kind, between = ("TSV", "tabs") if delimiter == "\t" else ("CSV", "commas")
    records = TargetRecords(path)
    try:
        header = [cell.strip().lower() for cell in next(rows, [])]
        if header.count("id") != 1 or header.count("sequence") != 1:
            problem = f"the first line must name the columns 'id' and 'sequence', each once and with {between} between"
            raise InputError.at(path, problem, line=1)
        for row in rows:
            if not "".join(row).strip():
                continue
            if len(row) != len(header):
                raise InputError.at(
                    path, f"{len(row)} cells where the first line names {len(header)} columns", line=rows.line_num
                )
            cells = dict(zip(header, row, strict=True))
            records.add(_record(path, rows.line_num, cells["id"].strip(), "".join(cells["sequence"].split()).upper()))
    except csv.Error as error:
        raise InputError.at(path, f"not a {kind} table: {printable(str(error))}", line=rows.line_num) from error
    return records.all(f"there is no record; write an id and a sequence with {between} between for each protein")


def _record(path: str | PathLike[str], line: int, name: str, sequence: str) -> FastaRecord:
    problem, letter = target_name_problem(name), find_invalid_letter(sequence)
    if problem is None and letter is not None:
        problem = f"residue {letter[0] + 1}: {letter[1]}"
    problem = problem or sequence_problem(sequence)
    if problem is not None:
        raise InputError.at(path, problem, line=line, record=name or None)
    return FastaRecord(name=name, description="", sequence=sequence, line=line)
