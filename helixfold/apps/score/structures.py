"""Find the structures to score, in files and directories of any program, and read them."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int

from data_pipeline.features.complexes.chain_ids import valid_chain_ids
from data_pipeline.features.complexes.chain_sequences import CHAIN_SEPARATOR
from data_pipeline.features.complexes.complex_input import ComplexInput
from data_pipeline.features.complexes.feature_set import ComplexFeatureSet, TargetFeatures
from data_pipeline.features.complexes.pipeline import target_features
from data_pipeline.features.complexes.target import ComplexTarget
from data_pipeline.io.errors import InputError, printable
from data_pipeline.parse.fasta import MAX_RESIDUES, unknown_residues_problem
from data_pipeline.parse.structures import read_structure
from data_pipeline.pipeline import Target
from data_pipeline.residues import ATOM_ORDER
from data_pipeline.structure import Chain
from data_pipeline.templates.structure_directory import STRUCTURE_SUFFIXES
from helixfold.analysis.matching import StructureFile, structure_files
from helixfold.results.find import find_predictions
from helixfold.results.prediction import best_structure

_CA = ATOM_ORDER["CA"]
# Targets of one name draw the same random masks, so that scores of structures differ by these alone.
_NAME = "structure"


@dataclass(frozen=True, kw_only=True)
class ScoredFile:
    """A structure file to score, under its target's name; `rank` is that among ranked models, from 0."""

    target: str
    name: str
    path: Path
    rank: int | None = None

    @property
    def key(self) -> str:
        """Return the name by which results of the structure are kept."""
        return f"{self.target}/{self.name}"


@dataclass(frozen=True, kw_only=True)
class ScoredStructure:
    """A structure as the network gets it: chains in the order of the features, residues of all chains in a row."""

    chains: tuple[Chain, ...]
    features: TargetFeatures  # of the sequence alone
    digest: str  # of the file

    @property
    def sequence(self) -> str:
        """Return the sequences of all chains with colons between."""
        return CHAIN_SEPARATOR.join(chain.sequence for chain in self.chains)

    @property
    def residues(self) -> int:
        """Return the number of residues of all chains."""
        return sum(len(chain.sequence) for chain in self.chains)

    @property
    def positions(self) -> Float[np.ndarray, "r 37 3"]:
        """Return the atoms in Angstrom, 0 where they are not known."""
        return np.concatenate([chain.atom_positions for chain in self.chains])

    @property
    def mask(self) -> Float[np.ndarray, "r 37"]:
        """Return 1 for the atoms that are known."""
        return np.concatenate([chain.atom_mask for chain in self.chains])

    @property
    def observed(self) -> Bool[np.ndarray, " r"]:
        """Return the mask of residues with C-alpha."""
        return np.asarray(self.mask[:, _CA] > 0)

    @property
    def chain_index(self) -> Int[np.ndarray, " r"]:
        """Return the number of each residue's chain, from 0."""
        return np.repeat(np.arange(len(self.chains)), [len(chain.sequence) for chain in self.chains])

    @property
    def mean_plddt(self) -> float | None:
        """Return the mean of the B-factors if they can be pLDDT: one from 0 to 100 for all atoms of a residue."""
        there, values = self.mask > 0, np.concatenate([chain.b_factors for chain in self.chains])
        least = np.where(there, values, np.inf).min(-1)[self.observed]
        most = np.where(there, values, -np.inf).max(-1)[self.observed]
        if (most - least > 0.011).any() or least.min() < 0 or most.max() > 100 or most.max() == least.min():
            return None
        return float(most.mean(dtype=np.float64))


def find_structures(paths: Sequence[Path], *, rescore: bool) -> list[ScoredFile]:
    """Return the structures in these files and directories, in order.

    A directory's files are structures of one target, which has the directory's name, and if there are none, so are
    those of each directory in it. With `rescore`, directories are outputs of programs, and all ranked models are
    returned; if there are several directories, under names that begin with theirs. Raise `InputError` if there is no
    structure in a path, or if two have one name.
    """
    found = [file for path in paths for file in (_ranked(path, several=len(paths) > 1) if rescore else _plain(path))]
    seen: dict[str, Path] = {}
    for file in found:
        if (other := seen.setdefault(file.key.casefold(), file.path)) is not file.path:
            problem = f"it has the name of {printable(str(other))}, '{printable(file.key)}'; rename one of them"
            raise InputError.at(file.path, problem)
    return found


def _ranked(path: Path, *, several: bool) -> list[ScoredFile]:
    # Outputs of several programs or runs have the same targets, and are told apart by the names of their directories.
    start = f"{path.resolve().name}_" if several else ""
    return [
        ScoredFile(target=each.name, name=f"{start}rank_{each.rank}", path=each.path, rank=each.rank)
        for each in find_predictions(path, all_ranks=True)
    ]


def _plain(path: Path) -> list[ScoredFile]:
    if not path.is_dir():
        return [_of_target(path.resolve().parent.name, each) for each in structure_files(path)]
    directories = [path]
    if not structure_files(path):
        directories = sorted(each for each in path.iterdir() if each.is_dir() and not each.name.startswith("."))
    found = [_of_target(each.resolve().name, file) for each in directories for file in _once(structure_files(each))]
    if not found:
        raise InputError.at(path, f"it has no structures: no file ends in {', '.join(STRUCTURE_SUFFIXES)}")
    if ranked := next(filter(None, map(best_structure, directories)), None):
        problem = "it is the output of a prediction program, whose files hold each model more than once; pass --rescore"
        raise InputError.at(ranked.parent, problem)
    return found


def _of_target(target: str, file: StructureFile) -> ScoredFile:
    return ScoredFile(target=target, name=file.name, path=file.path)


def _once(files: Sequence[StructureFile]) -> list[StructureFile]:
    """Return files of different names: of a structure in several formats mmCIF, which holds what PDB cannot."""
    found: dict[str, StructureFile] = {}
    for file in files:
        found.setdefault(file.name, file)
    return list(found.values())


def read_scored(path: Path) -> ScoredStructure:
    """Read a structure and make features of its sequence alone, without an alignment.

    Raise `InputError` for a file that holds no structure that can be scored.
    """
    structure = read_structure(path)
    chains = [chain for chain in structure.chains if (chain.atom_mask[:, _CA] > 0).any()]
    if not chains:
        raise InputError.at(path, "it holds no protein with C-alpha atoms; pass a structure with at least one chain")
    residues = sum(len(chain.sequence) for chain in chains)
    problem = unknown_residues_problem("".join(chain.sequence for chain in chains))
    if residues > MAX_RESIDUES:
        problem = f"it has {residues:,} residues; at most {MAX_RESIDUES:,} are allowed"
    if problem is not None:
        raise InputError.at(path, problem)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    names = valid_chain_ids([chain.name for chain in chains])
    chains = [replace(chain, name=name) for chain, name in zip(chains, names, strict=True)]
    if len(chains) == 1:
        features = target_features(Target(name=_NAME, sequence=chains[0].sequence, as_protein=True))
        return ScoredStructure(chains=tuple(chains), features=features, digest=digest)
    target = ComplexTarget.of(_NAME, [chain.sequence for chain in chains], names)
    features = target_features(ComplexInput(target=target, as_protein=True))
    assert isinstance(features, ComplexFeatureSet)
    by_name = {chain.name: chain for chain in chains}
    ordered = tuple(by_name[name] for name in features.multimer.chain_names)
    return ScoredStructure(chains=ordered, features=features, digest=digest)
