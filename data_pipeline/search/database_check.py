"""Check the databases of a profile or directory: all files are there, of the right kind, and whole."""

from collections.abc import Iterator
from pathlib import Path

from data_pipeline.io.errors import InputError
from data_pipeline.search.colabfold_databases import ClusterDatabase, check_sequences, database_size, with_ending
from data_pipeline.search.database import AlignmentDatabase, DatabaseProfile, TemplateDatabase, database_files
from data_pipeline.search.fasta_chunks import read_fasta_chunks

Problem = str
_FASTA_TOOLS = ("jackhmmer", "hmmsearch")


def check_databases(profile: DatabaseProfile) -> Iterator[tuple[str, Problem | None]]:
    """Yield what each database is, with the problem that makes it useless or None, in the order of the searches.

    FASTA files are read to the end, and indices of MMseqs2's databases too: a large database takes minutes.
    """
    single = (profile.templates, profile.uniprot, profile.complex_templates)
    for database in (*profile.alignments, *(each for each in single if each is not None)):
        for path in database.paths:
            yield f"{path} ({database.tool})", _problem(database, path)


def _problem(database: AlignmentDatabase | TemplateDatabase, path: Path) -> Problem | None:
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
            raise InputError.at(path, "all its files are empty; was it unpacked or downloaded to the end?")
    except InputError as error:
        return str(error)
    return None


def _check_fasta(path: Path) -> None:
    if not sum(chunk.content.count(b">") for chunk in read_fasta_chunks(path)):
        raise InputError.at(path, "the database holds no sequence; was it unpacked or downloaded to the end?")


def check_index(path: Path) -> None:
    """Raise `InputError` if a database of MMseqs2 is shorter than its index says, or if the index is none."""
    index, size, end = with_ending(path, ".index"), database_size(path), 0
    with index.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            fields = line.split()
            if len(fields) != 3 or not all(field.isdigit() for field in fields):
                raise InputError.at(index, "an index has a key, a place and a length in each line", line=number)
            end = max(end, int(fields[1]) + int(fields[2]))
    if end > size:
        problem = f"its index tells of {end:,} bytes and there are {size:,}: it was not unpacked or copied to the end"
        raise InputError.at(path, problem)
