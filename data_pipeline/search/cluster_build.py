"""Build a database of clusters in ColabFold's layout from FASTA files: representatives, members and alignments.

Species, which are needed to pair rows of complexes, are read from headers of UniProt (OX=9606) and UniRef (TaxID=9606).
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from data_pipeline.io.config import FRACTION, Checked, at_least
from data_pipeline.io.errors import InputError
from data_pipeline.search.colabfold_databases import ClusterDatabase, with_ending
from data_pipeline.search.fasta_chunks import read_fasta_chunks
from data_pipeline.search.process import run_program, working_directory

_SPECIES = re.compile(rb"\b(?:OX|TaxID)=([1-9][0-9]{0,8})\b")
_ROOT_TAXON = 1  # of the taxonomy


@dataclass(frozen=True, kw_only=True)
class ClusterBuild(Checked):
    """Builds a database of clusters; the defaults are UniRef30's: 30 % identity over 80 % of both sequences.

    `program` is MMseqs2, and `coverage` and `min_identity` are fractions. Sequences are clustered in MMseqs2's three
    steps of increasing sensitivity. With `single_step`, only the last step runs, which takes a quarter of the time for
    few sequences, but many times longer for millions.
    """

    program: Path
    min_identity: Annotated[float, FRACTION] = 0.3
    coverage: Annotated[float, FRACTION] = 0.8
    single_step: bool = False
    cpus: Annotated[int, at_least(1)] = 4

    def sequences(self, fasta_files: Sequence[Path], output: Path) -> int:
        """Build a database of single sequences, such as ColabFold's pdb100, and return the number of sequences.

        `output` is the path prefix of the database. Raise `InputError` as in `clusters`.
        """
        return self._build(fasta_files, output, self._add_nothing)

    def clusters(self, fasta_files: Sequence[Path], output: Path) -> int:
        """Build the database of clusters with the path prefix `output`, and return the number of all sequences.

        Raise `InputError` if a database of this name exists or a file is not FASTA of proteins, and `SearchError` if
        MMseqs2 fails. A killed build leaves no partial database.
        """
        count = self._build(fasta_files, output, self._cluster)
        ClusterDatabase(output)
        return count

    def _build(self, fasta_files: Sequence[Path], output: Path, add: Callable[[Path, Sequence[int]], None]) -> int:
        """Build the database `output` and return its number of sequences.

        `add` makes the database "new" in a working directory from "members" and the taxonomy id of each member.
        """
        if with_ending(output, ".dbtype").exists():
            raise InputError.at(output, "a database of this name exists already; choose another name, or delete it")
        for path in fasta_files:
            count = sum(chunk.content.count(b">") for chunk in read_fasta_chunks(path))
            if count == 0:
                raise InputError.at(path, "the file has no sequences; was it completely downloaded and unpacked?")
        output.parent.mkdir(parents=True, exist_ok=True)
        with working_directory(output.parent) as directory:
            files = [str(path.absolute()) for path in fasta_files]
            self._run(directory, "createdb", *files, "members", "--dbtype", "1", "--shuffle", "0")
            species = list(_species_in_order(fasta_files))
            add(directory, species)
            move_database(directory, output.parent, output.name, source_name="new")
        return len(species)

    def _add_nothing(self, directory: Path, species: Sequence[int]) -> None:
        """Make the database "new" by renaming "members"."""
        for path in sorted(directory.glob("members*")):
            path.rename(directory / path.name.replace("members", "new", 1))

    def _cluster(self, directory: Path, species: Sequence[int]) -> None:
        """Make the cluster database "new" from "members"; `species` has their taxonomy ids, 0 if unknown."""
        limits = ["--min-seq-id", f"{self.min_identity:g}", "-c", f"{self.coverage:g}"]
        steps = ["--single-step-clustering", str(int(self.single_step))]
        self._run(directory, "cluster", "members", "clusters", "steps", *limits, *steps, "--threads", str(self.cpus))
        self._run(directory, "createsubdb", "clusters", "members", "new")
        self._run(directory, "createsubdb", "clusters", "members_h", "new_h")
        # All members are aligned to their representative, however dissimilar they are.
        threads = ["--threads", str(self.cpus)]
        self._run(directory, "align", "new", "members", "clusters", "new_aln", "-a", "-e", "inf", *threads)
        for name in ("new.lookup", "new.source"):  # links into the working directory; the members have these files
            directory.joinpath(name).unlink(missing_ok=True)
        for path in sorted(directory.glob("members*")):
            path.rename(directory / path.name.replace("members", "new_seq", 1))
        if any(species):
            _write_taxonomy(directory / "new", species)

    def _run(self, directory: Path, *words: str) -> None:
        run_program([self.program, *words, "-v", "2"], timeout=None, directory=directory)


def _species_in_order(fasta_files: Sequence[Path]) -> Iterator[int]:
    """Yield the taxonomy id of each record in the order of the database keys, 0 if the header has none."""
    for path in fasta_files:
        for chunk in read_fasta_chunks(path):
            for line in chunk.content.split(b"\n"):
                if line.startswith(b">"):
                    match = _SPECIES.search(line)
                    yield 0 if match is None else int(match[1])


def _write_taxonomy(database: Path, species: Sequence[int]) -> None:
    """Write the taxonomy id of each sequence, and a taxonomy in which all species are children of the root."""
    lines = (f"{key}\t{taxon}\n" for key, taxon in enumerate(species) if taxon)
    with_ending(database, "_mapping").write_text("".join(lines))
    taxa = sorted(set(species) - {0, _ROOT_TAXON})
    nodes = "".join(f"{taxon}\t|\t{_ROOT_TAXON}\t|\tspecies\t|\n" for taxon in taxa)
    names = "".join(f"{taxon}\t|\tspecies {taxon}\t|\t\t|\tscientific name\t|\n" for taxon in taxa)
    with_ending(database, "_nodes.dmp").write_text(f"{_ROOT_TAXON}\t|\t{_ROOT_TAXON}\t|\tno rank\t|\n{nodes}")
    with_ending(database, "_names.dmp").write_text(f"{_ROOT_TAXON}\t|\troot\t|\t\t|\tscientific name\t|\n{names}")
    with_ending(database, "_merged.dmp").write_text("")


def move_database(directory: Path, target: Path, name: str, *, source_name: str | None = None) -> None:
    """Move the files of the database `name` from `directory` to the folder `target`, replacing existing files.

    The `.dbtype` file is last, so that an interrupted move leaves no valid database. With `source_name`, only files
    whose names start with it are moved, and `name` replaces it. Without it, all files in `directory` are moved.
    """
    prefix = name if source_name is None else source_name
    files = sorted(directory.glob("*"), key=lambda path: (path.name == f"{prefix}.dbtype", path.name))
    for path in files:
        if path.is_file() and (source_name is None or path.name.startswith(prefix)):
            os.replace(path, target / path.name.replace(prefix, name, 1))
