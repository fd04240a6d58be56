"""The protein chains in a directory of structures, each once, with its file and licence."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from manifest import is_copyleft
from tqdm import tqdm

from data_pipeline.io.errors import InputError
from data_pipeline.parse.structures import read_structure
from data_pipeline.training_sets.index import chain_name_problem
from data_pipeline.training_sets.record_builder import chain_name

# Folders by priority. If several files have a chain, the clustered one counts: its sequence is the experimental one.
FOLDERS = ("train_mmcif", "mmcif", "pdb")
MIN_RESIDUES = 30
_MIN_OBSERVED = 20  # residues with coordinates; fewer are too few to copy or to compare with


@dataclass(frozen=True, kw_only=True)
class LibraryChain:
    """A chain of a structure file."""

    name: str  # as the feature store calls it, "1abc_A"
    entry: str  # of the Protein Data Bank, or a target of CASP; lower case
    file: str  # relative to the directory of structures
    chain: str  # its name in the file
    sequence: str
    is_copyleft: bool  # the file comes from a repository under a copyleft licence

    @property
    def is_clustered(self) -> bool:
        """Return whether it is the only chain of its cluster among the clustered ones."""
        return self.file.startswith(FOLDERS[0])


def read_library(data: Path) -> list[LibraryChain]:
    """Return every chain of at least 30 residues in DATA, sorted by name.

    If several files have a name, one without a copyleft licence is preferred. Unreadable files are left out.
    """
    with (data / "manifest.tsv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file, delimiter="\t") if row["kind"] in FOLDERS]
    rows.sort(key=lambda row: (is_copyleft(row["licence"]), FOLDERS.index(row["kind"]), row["file"]))
    library: dict[str, LibraryChain] = {}
    for row in tqdm(rows, unit="file", disable=None):
        for chain in _chains(data, row):
            library.setdefault(chain.name, chain)
    return sorted(library.values(), key=lambda chain: chain.name)


def _chains(data: Path, row: dict[str, str]) -> Iterator[LibraryChain]:
    path = data / row["file"]
    try:
        structure = read_structure(path)
    except InputError:
        return
    for chain in structure.chains:
        name = chain_name(structure, chain.name, path)
        if len(chain.sequence) < MIN_RESIDUES or chain.observed.sum() < _MIN_OBSERVED or chain_name_problem(name):
            continue
        yield LibraryChain(
            name=name,
            entry=(row["pdb_id"] or name.partition("_")[0]).lower(),
            file=row["file"],
            chain=chain.name,
            sequence=chain.sequence,
            is_copyleft=is_copyleft(row["licence"]),
        )


def by_name(chains: Sequence[LibraryChain]) -> dict[str, LibraryChain]:
    """Return the chains by their names."""
    return {chain.name: chain for chain in chains}
