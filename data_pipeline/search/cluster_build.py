"""Make a database of clusters, as ColabFold's are, from FASTA files of any kind: representatives, members, alignments.

Species are read from the headers that UniProt (OX=9606) and UniRef (TaxID=9606) write; rows of complexes are paired by
them.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.io.errors import InputError, check_at_least, check_fractions
from data_pipeline.search.colabfold_databases import ClusterDatabase, with_ending
from data_pipeline.search.fasta_chunks import read_fasta_chunks
from data_pipeline.search.process import run_program, working_directory

_SPECIES = re.compile(rb"\b(?:OX|TaxID)=([1-9][0-9]{0,8})\b")
_ROOT = 1  # of the tree of species


@dataclass(frozen=True, kw_only=True)
class ClusterBuild:
    """Settings of a database of clusters; the defaults are UniRef30's: 30 % identity over 80 % of both sequences.

    Sequences are clustered in MMseqs2's three steps of growing sensitivity. With `single_step`, only the last one is
    done, which takes a quarter of the time for few sequences and many times as long for millions.
    """

    program: Path
    min_identity: float = 0.3
    coverage: float = 0.8
    single_step: bool = False
    cpus: int = 4

    def __post_init__(self) -> None:
        check_at_least(self, cpus=1)
        check_fractions(self, "min_identity", "coverage")

    def sequences(self, fasta_files: Sequence[Path], output: Path) -> int:
        """Make a database of single sequences, such as ColabFold's pdb100, and return their number.

        Raise `InputError` as `clusters` does.
        """
        return self._build(fasta_files, output, self._add_nothing)

    def clusters(self, fasta_files: Sequence[Path], output: Path) -> int:
        """Make the database of clusters whose files begin with `output`, and return the number of its sequences.

        Raise `InputError` if there is a database of this name, or for a file that is no FASTA of proteins, and
        `SearchError` if MMseqs2 fails. A killed build leaves nothing that could be taken for a database.
        """
        count = self._build(fasta_files, output, self._cluster)
        ClusterDatabase(output)
        return count

    def _build(self, fasta_files: Sequence[Path], output: Path, add: Callable[[Path, Sequence[int]], None]) -> int:
        if with_ending(output, ".dbtype").exists():
            raise InputError.at(output, "there is a database of this name; choose another name, or delete it first")
        for path in fasta_files:
            count = sum(chunk.content.count(b">") for chunk in read_fasta_chunks(path))
            if count == 0:
                raise InputError.at(path, "the file holds no sequence; was it unpacked or downloaded to the end?")
        output.parent.mkdir(parents=True, exist_ok=True)
        with working_directory(output.parent) as directory:
            files = [str(path.absolute()) for path in fasta_files]
            self._run(directory, "createdb", *files, "members", "--dbtype", "1", "--shuffle", "0")
            species = list(_species_in_order(fasta_files))
            add(directory, species)
            move_database(directory, output.parent, output.name, made_as="new")
        return len(species)

    def _add_nothing(self, directory: Path, species: Sequence[int]) -> None:
        for path in sorted(directory.glob("members*")):
            path.rename(directory / path.name.replace("members", "new", 1))

    def _cluster(self, directory: Path, species: Sequence[int]) -> None:
        limits = ["--min-seq-id", f"{self.min_identity:g}", "-c", f"{self.coverage:g}"]
        steps = ["--single-step-clustering", str(int(self.single_step))]
        self._run(directory, "cluster", "members", "clusters", "steps", *limits, *steps, "--threads", str(self.cpus))
        self._run(directory, "createsubdb", "clusters", "members", "new")
        self._run(directory, "createsubdb", "clusters", "members_h", "new_h")
        # Every member is aligned to its representative, however little they are alike.
        threads = ["--threads", str(self.cpus)]
        self._run(directory, "align", "new", "members", "clusters", "new_aln", "-a", "-e", "inf", *threads)
        for name in ("new.lookup", "new.source"):  # links to the working directory; the members have them
            directory.joinpath(name).unlink(missing_ok=True)
        for path in sorted(directory.glob("members*")):
            path.rename(directory / path.name.replace("members", "new_seq", 1))
        if any(species):
            _write_taxonomy(directory / "new", species)

    def _run(self, directory: Path, *words: str) -> None:
        run_program([self.program, *words, "-v", "2"], timeout=None, directory=directory)


def _species_in_order(fasta_files: Sequence[Path]) -> Iterator[int]:
    """Yield the species' number of each record, 0 if its header does not say it; the order is that of the keys."""
    for path in fasta_files:
        for chunk in read_fasta_chunks(path):
            for line in chunk.content.split(b"\n"):
                if line.startswith(b">"):
                    found = _SPECIES.search(line)
                    yield 0 if found is None else int(found[1])


def _write_taxonomy(database: Path, species: Sequence[int]) -> None:
    """Write the species of each sequence, and a tree in which every species is a child of the root."""
    lines = (f"{key}\t{number}\n" for key, number in enumerate(species) if number)
    with_ending(database, "_mapping").write_text("".join(lines))
    numbers = sorted(set(species) - {0, _ROOT})
    nodes = "".join(f"{number}\t|\t{_ROOT}\t|\tspecies\t|\n" for number in numbers)
    names = "".join(f"{number}\t|\tspecies {number}\t|\t\t|\tscientific name\t|\n" for number in numbers)
    with_ending(database, "_nodes.dmp").write_text(f"{_ROOT}\t|\t{_ROOT}\t|\tno rank\t|\n{nodes}")
    with_ending(database, "_names.dmp").write_text(f"{_ROOT}\t|\troot\t|\t\t|\tscientific name\t|\n{names}")
    with_ending(database, "_merged.dmp").write_text("")


def move_database(directory: Path, target: Path, name: str, *, made_as: str | None = None) -> None:
    """Move the files of the database `name` to another folder; the last of them makes it a database.

    `made_as` is the name that it has in `directory`, if that is another one.
    """
    made = name if made_as is None else made_as
    files = sorted(directory.glob("*"), key=lambda path: (path.name == f"{made}.dbtype", path.name))
    for path in files:
        if path.is_file() and (made_as is None or path.name.startswith(made)):
            os.replace(path, target / path.name.replace(made, name, 1))
