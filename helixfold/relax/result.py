"""What a relaxation is given beside the structure, and what it gives back."""

from dataclasses import dataclass

from data_pipeline.protein import Hydrogens, Protein
from helixfold import config
from helixfold.relax.flaws import Flaws


@dataclass(frozen=True, kw_only=True)
class RelaxOptions:
    """Limits of rounds and of time."""

    max_rounds: int = 3  # of minimisation; in each, residues that were still flawed are freed of restraints
    max_seconds: float = 3600.0  # for one structure

    def __post_init__(self) -> None:
        config.require(self, ["max_rounds", "max_seconds"], lambda value: value > 0, "be positive")


@dataclass(frozen=True, kw_only=True)
class Relaxed:
    """A relaxed structure, and what it took."""

    protein: Protein  # numbering, B-factors and unknown residues as they were
    hydrogens: Hydrogens
    before: Flaws
    after: Flaws
    flawed: tuple[int, ...]  # residues that still are, by their numbers
    left_out: tuple[int, ...]  # residues without a place in the force field, which did not move
    added: int  # heavy atoms that were missing
    initial_energy: float  # kcal/mol; with hydrogens
    final_energy: float
    rmsd: float  # Angstrom from where the heavy atoms were, without superposition
    rounds: int
    seconds: float
    platform: str  # of OpenMM: CUDA, HIP, OpenCL or CPU
