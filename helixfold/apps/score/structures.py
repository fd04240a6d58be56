"""Find the structures to score, in files and in output directories of prediction programs, and read them."""

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

_CA_INDEX = ATOM_ORDER["CA"]
# All structures have the same target name, and therefore the same random masks, so that scores are comparable.
_TARGET_NAME = "structure"


@dataclass(frozen=True, kw_only=True)
class ScoredFile:
    """A structure file to score and its target; `rank` is its rank in a prediction program's output, from 0."""

    target: str
    name: str
    path: Path
    rank: int | None = None

    @property
    def key(self) -> str:
        """Return the key of the structure in the journal of results."""
        return f"{self.target}/{self.name}"


@dataclass(frozen=True, kw_only=True)
class ScoredStructure:
    """A structure to score, with chains in the order of the features; arrays have the residues of all chains."""

    chains: tuple[Chain, ...]
    features: TargetFeatures  # of the sequence alone
    digest: str  # SHA-256 of the file

    @property
    def sequence(self) -> str:
        """Return the sequences of all chains, separated by colons."""
        return CHAIN_SEPARATOR.join(chain.sequence for chain in self.chains)

    @property
    def residues(self) -> int:
        """Return the number of residues of all chains."""
        return sum(len(chain.sequence) for chain in self.chains)

    @property
    def positions(self) -> Float[np.ndarray, "r 37 3"]:
        """Return the atom positions (Å), zero for missing atoms."""
        return np.concatenate([chain.atom_positions for chain in self.chains])

    @property
    def mask(self) -> Float[np.ndarray, "r 37"]:
        """Return the atom mask: 1 for atoms in the file, else 0."""
        return np.concatenate([chain.atom_mask for chain in self.chains])

    @property
    def observed(self) -> Bool[np.ndarray, " r"]:
        """Return a mask of the residues with a C-alpha atom."""
        return np.asarray(self.mask[:, _CA_INDEX] > 0)

    @property
    def chain_index(self) -> Int[np.ndarray, " r"]:
        """Return the index of each residue's chain."""
        return np.repeat(np.arange(len(self.chains)), [len(chain.sequence) for chain in self.chains])

    @property
    def mean_plddt(self) -> float | None:
        """Return the mean B-factor if B-factors can be pLDDT, else None.

        They must be from 0 to 100, equal within a residue, and not the same for all residues.
        """
        has_atom, values = self.mask > 0, np.concatenate([chain.b_factors for chain in self.chains])
        low = np.where(has_atom, values, np.inf).min(-1)[self.observed]
        high = np.where(has_atom, values, -np.inf).max(-1)[self.observed]
        if (high - low > 0.011).any() or low.min() < 0 or high.max() > 100 or high.max() == low.min():
            return None
        return float(high.mean(dtype=np.float64))


def find_structures(paths: Sequence[Path], *, rescore: bool) -> list[ScoredFile]:
    """Return the structures in these files and directories, in order.

    The structure files of a directory belong to one target with the directory's name. If a directory has none, its
    subdirectories are searched in the same way. With `rescore`, directories are outputs of prediction programs, and all
    ranked models are returned; with several directories, names start with the directory's name. Raise `InputError` if a
    path has no structure, or if two structures have the same name.
    """
    files = [file for path in paths for file in (_ranked(path, several=len(paths) > 1) if rescore else _plain(path))]
    path_of: dict[str, Path] = {}
    for file in files:
        if (other_path := path_of.setdefault(file.key.casefold(), file.path)) is not file.path:
            problem = f"it has the name of {printable(str(other_path))}, '{printable(file.key)}'; rename one of them"
            raise InputError.at(file.path, problem)
    return files


def _ranked(path: Path, *, several: bool) -> list[ScoredFile]:
    """Return the ranked models in a prediction program's output; with `several` outputs, named by directory."""
    # Outputs of several programs may have the same targets, so the names of their directories distinguish them.
    name_prefix = f"{path.resolve().name}_" if several else ""
    return [
        ScoredFile(target=each.name, name=f"{name_prefix}rank_{each.rank}", path=each.path, rank=each.rank)
        for each in find_predictions(path, all_ranks=True)
    ]


def _plain(path: Path) -> list[ScoredFile]:
    """Return the structures in a file or directory that is not a prediction program's output."""
    if not path.is_dir():
        return [_of_target(path.resolve().parent.name, each) for each in structure_files(path)]
    directories = [path]
    if not structure_files(path):
        directories = sorted(each for each in path.iterdir() if each.is_dir() and not each.name.startswith("."))
    files = [_of_target(each.resolve().name, file) for each in directories for file in _once(structure_files(each))]
    if not files:
        raise InputError.at(path, f"it has no structures: no file ends in {', '.join(STRUCTURE_SUFFIXES)}")
    if ranked := next(filter(None, map(best_structure, directories)), None):
        problem = "it is the output of a prediction program, whose files hold each model more than once; pass --rescore"
        raise InputError.at(ranked.parent, problem)
    return files


def _of_target(target: str, file: StructureFile) -> ScoredFile:
    """Return a structure file with the name of its target."""
    return ScoredFile(target=target, name=file.name, path=file.path)


def _once(files: Sequence[StructureFile]) -> list[StructureFile]:
    """Return one file for each name; mmCIF comes before PDB, because PDB files cannot hold every structure."""
    by_name: dict[str, StructureFile] = {}
    for file in files:
        by_name.setdefault(file.name, file)
    return list(by_name.values())


def read_scored(path: Path) -> ScoredStructure:
    """Read a structure and compute features of its sequence, without an alignment.

    Chains without C-alpha atoms are left out. Raise `InputError` if the file has no structure that can be scored.
    """
    structure = read_structure(path)
    chains = [chain for chain in structure.chains if (chain.atom_mask[:, _CA_INDEX] > 0).any()]
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
        features = target_features(Target(name=_TARGET_NAME, sequence=chains[0].sequence, as_protein=True))
        return ScoredStructure(chains=tuple(chains), features=features, digest=digest)
    target = ComplexTarget.of(_TARGET_NAME, [chain.sequence for chain in chains], names)
    features = target_features(ComplexInput(target=target, as_protein=True))
    assert isinstance(features, ComplexFeatureSet)
    by_name = {chain.name: chain for chain in chains}
    ordered = tuple(by_name[name] for name in features.multimer.chain_names)
    return ScoredStructure(chains=ordered, features=features, digest=digest)
