"""Options and results of relaxation."""

from dataclasses import dataclass
from typing import Annotated

from data_pipeline.io.config import ABOVE_ZERO, Checked
from data_pipeline.protein import Hydrogens, Protein
from helixfold.relax.flaws import Flaws


@dataclass(frozen=True, kw_only=True)
class RelaxOptions(Checked):
    """Limits of a relaxation: the maximum rounds of minimisation, and the maximum seconds for each structure."""

    # Minimisations; each removes the restraints of residues that still have violations. AlphaFold runs three.
    max_rounds: Annotated[int, ABOVE_ZERO] = 8
    max_seconds: Annotated[float, ABOVE_ZERO] = 3600.0  # per structure


@dataclass(frozen=True, kw_only=True)
class Relaxed:
    """A relaxed structure with statistics of its relaxation.

    `before` and `after` are the violations of the predicted and of the relaxed structure. Residue numbers are from
    `Protein.residue_index`, without the chain: `flawed` still have violations, `left_out` were not relaxed because the
    force field cannot model them, and `freed` had no restraints in the end. `added` counts the missing heavy atoms that
    were added. Energies are in kcal/mol, RMSDs in Angstrom without superposition; `rmsd_held` is for residues that were
    restrained in all rounds.
    """

    protein: Protein  # with the numbering, B-factors and unknown residues of the original
    hydrogens: Hydrogens
    before: Flaws
    after: Flaws
    flawed: tuple[int, ...]  # residue numbers with remaining violations
    left_out: tuple[int, ...]  # residue numbers that the force field cannot model, which were not relaxed
    added: int  # number of missing heavy atoms that were added to the structure
    initial_energy: float  # kcal/mol, hydrogens included
    final_energy: float  # likewise, after the last minimisation
    rmsd: float  # Angstrom between old and new positions of the heavy atoms, without superposition
    rmsd_held: float  # the same for residues that were restrained in all rounds
    freed: tuple[int, ...]  # residue numbers whose restraints were removed
    rounds: int
    seconds: float
    platform: str  # OpenMM platform: CUDA, HIP, OpenCL or CPU
