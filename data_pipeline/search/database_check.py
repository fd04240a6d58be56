"""Check that the database files of a profile or directory exist, are complete and have the right format.

A `Problem` is an error message.
"""

from collections.abc import Iterator
from pathlib import Path

from data_pipeline.io.errors import InputError
from data_pipeline.search.colabfold_databases import ClusterDatabase, check_sequences, database_size, with_ending
from data_pipeline.search.database import AlignmentDatabase, DatabaseProfile, TemplateDatabase, database_files
from data_pipeline.search.fasta_chunks import read_fasta_chunks

Problem = str
_FASTA_TOOLS = ("jackhmmer", "hmmsearch")


def check_databases(profile: DatabaseProfile) -> Iterator[tuple[str, Problem | None]]:
    """Yield the path and tool of each database in one text, with the problem that makes it unusable, or None.

    The databases for alignments come first in search order, then templates, UniProt and templates of complexes. FASTA
    files and the indices of MMseqs2 databases are read completely, so large databases take minutes.
    """
    single_databases = (profile.templates, profile.uniprot, profile.complex_templates)
    for database in (*profile.alignments, *(each for each in single_databases if each is not None)):
        for path in database.paths:
            yield f"{path} ({database.tool})", _problem(database, path)


def _problem(database: AlignmentDatabase | TemplateDatabase, path: Path) -> Problem | None:
    """Return what is wrong with the files of a database at `path`, or None."""
    try:
        if database.tool in _FASTA_TOOLS:
            _check_fasta(path)
        elif database.tool == "colabfold":
            cluster = ClusterDatabase(path)
            parts = ("", "_h") if cluster.is_indexed else ("", "_h", "_seq", "_seq_h", "_aln")
            for ending in parts:
                check_index(with_ending(path, ending))
        elif database.tool == "mmseqs" and with_ending(path, ".dbtype").is_file():
            check_sequences(path)
            check_index(path)
        elif database.tool == "mmseqs":
            _check_fasta(path)
        elif not any(file.stat().st_size for file in database_files(database)):
            raise InputError.at(path, "all its files are empty; was the database completely downloaded and unpacked?")
    except InputError as error:
        return str(error)
    return None


def _check_fasta(path: Path) -> None:
    """Raise `InputError` if a FASTA database is damaged or has no sequences."""
    if not sum(chunk.content.count(b">") for chunk in read_fasta_chunks(path)):
        raise InputError.at(path, "the database has no sequences; was it completely downloaded and unpacked?")


def check_index(path: Path) -> None:
    """Raise `InputError` if the index of an MMseqs2 database is invalid, or extends beyond the end of the data."""
    index, size, end = with_ending(path, ".index"), database_size(path), 0
    with index.open("rb") as lines:
        for line_number, line in enumerate(lines, start=1):
            fields = line.split()
            if len(fields) != 3 or not all(field.isdigit() for field in fields):
                raise InputError.at(
                    index, "each line of an index must have a key, an offset and a length", line=line_number
                )
            end = max(end, int(fields[1]) + int(fields[2]))
    if end > size:
        problem = f"its index needs {end:,} bytes, but the data has {size:,}: it was not completely copied or unpacked"
        raise InputError.at(path, problem)
