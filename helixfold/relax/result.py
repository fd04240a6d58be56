"""Options and results of relaxation."""

from dataclasses import dataclass

from data_pipeline.protein import Hydrogens, Protein
from helixfold.model import config
from helixfold.relax.flaws import Flaws


@dataclass(frozen=True, kw_only=True)
class RelaxOptions:
    """Limits of a relaxation's rounds and time."""

    # Minimisations; each removes the restraints of residues that still have violations. AlphaFold makes three.
    max_rounds: int = 8
    max_seconds: float = 3600.0  # per structure

    def __post_init__(self) -> None:
        config.require(self, ["max_rounds", "max_seconds"], lambda value: value > 0, "be positive")


@dataclass(frozen=True, kw_only=True)
class Relaxed:
    """A relaxed structure, with statistics of its relaxation."""

    protein: Protein  # with the numbering, B-factors and unknown residues of the original
    hydrogens: Hydrogens
    before: Flaws
    after: Flaws
    flawed: tuple[int, ...]  # numbers of the residues that still have violations
    left_out: tuple[int, ...]  # numbers of the residues that the force field cannot model, which were not relaxed
    added: int  # number of heavy atoms that were missing
    initial_energy: float  # kcal/mol, hydrogens included
    final_energy: float
    rmsd: float  # Angstrom between old and new positions of the heavy atoms, without superposition
    rmsd_held: float  # the same of residues that kept their restraints to the end
    freed: tuple[int, ...]  # numbers of the residues that lost them
    rounds: int
    seconds: float
    platform: str  # OpenMM's: CUDA, HIP, OpenCL or CPU
