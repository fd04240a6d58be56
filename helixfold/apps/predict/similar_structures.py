"""Search for known structures that resemble a prediction, with Foldseek (van Kempen et al. 2023)."""

from pathlib import Path

from data_pipeline.io.errors import InputError
from data_pipeline.io.files import atomic_write
from data_pipeline.search.process import find_program, run_program, working_directory
from helixfold.results.file_table import PDB, RANKED, SIMILAR
from helixfold.results.writing import tab_separated

# Columns of the table, and their names in Foldseek.
COLUMNS = {
    "chain": "query",
    "structure": "target",
    "probability": "prob",
    "e_value": "evalue",
    "tm_score_of_alignment": "alntmscore",
    "lddt": "lddt",
    "identity": "fident",
    "aligned_residues": "alnlen",
    "first_residue": "qstart",
    "last_residue": "qend",
    "description": "theader",
}


def require_foldseek(database: Path) -> None:
    """Raise `InputError` if Foldseek is not installed or the database does not exist."""
    if find_program("foldseek") is None:
        raise InputError(
            "--foldseek: the program foldseek was not found; install it from https://github.com/steineggerlab/foldseek "
            "and make sure that foldseek is on the PATH"
        )
    if not database.exists():
        raise InputError.at(
            database, "no such Foldseek database or directory of structures; `foldseek databases PDB` fetches one"
        )


def is_searched(directory: Path, database: Path) -> bool:
    """Return whether a target has the results of a search in this database."""
    path = SIMILAR.path(directory)
    return path.is_file() and path.read_text().startswith(_first_line(database))


def write_similar_structures(directory: Path, database: Path, threads: int | None) -> None:
    """Search with the best structure of a target, and write the table of hits into its directory, best first.

    `threads` of None leaves the number to Foldseek. Raise `SearchError` if Foldseek fails.
    """
    query = RANKED.path(directory, PDB, rank=0).resolve()
    with working_directory() as temporary:
        command = [find_program("foldseek") or "foldseek", "easy-search", query, database.resolve(), "hits", "work"]
        command += ["--format-output", ",".join(COLUMNS.values())]
        command += [] if threads is None else ["--threads", str(threads)]
        run_program(command, timeout=None, directory=temporary)
        hits = [line.split("\t") for line in (temporary / "hits").read_text(errors="replace").splitlines()]
    # Foldseek adds the chain to the file's name where the file has several chains.
    table = tab_separated([*COLUMNS], ([hit[0].removeprefix(query.stem).strip("_."), *hit[1:]] for hit in hits))
    with atomic_write(SIMILAR.path(directory)) as path:
        path.write_text(_first_line(database) + table)


def _first_line(database: Path) -> str:
    """Return the first line of the table, which names the database."""
    return f"# Foldseek's hits in {database.resolve()}\n"
