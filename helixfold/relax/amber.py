"""AlphaFold's protocol: minimise with restraints, look for flaws, free what is flawed, and minimise again.

AlphaFold 2, Suppl. Sec. 1.8.6.
"""

import numpy as np
import openmm
import torch

from data_pipeline.protein import Protein
from helixfold.relax import platform
from helixfold.relax.atoms import completed, hydrogens, moved
from helixfold.relax.flaws import flaws
from helixfold.relax.pieces import Pieces
from helixfold.relax.problem import RelaxationError
from helixfold.relax.result import Relaxed, RelaxOptions
from helixfold.relax.simulation import Deadline, Simulation


def relaxed(protein: Protein, pieces: Pieces, options: RelaxOptions, device: torch.device) -> Relaxed:
    """Return what `relaxation.relax` promises, for a structure that was checked."""
    deadline = Deadline(options.max_seconds)
    possible = platform.platforms(device)
    while True:
        where = possible.pop(0)
        try:
            return _relaxed_there(protein, pieces, options, where, deadline)
        except openmm.OpenMMException as error:
            # A GPU that is out of memory, or whose driver does not fit, must not cost the result.
            if not possible:
                raise RelaxationError(f"OpenMM failed: {' '.join(str(error).split())}") from error


def _relaxed_there(
    protein: Protein, pieces: Pieces, options: RelaxOptions, where: openmm.Platform, deadline: Deadline
) -> Relaxed:
    try:
        atoms = completed(protein, pieces, where)
        simulation = Simulation(atoms, where)
    except (ValueError, ZeroDivisionError) as error:
        # From OpenMM's own Python, where atoms coincide or a residue fits no template.
        raise RelaxationError(f"the force field cannot be set up: {' '.join(str(error).split())}") from error
    before, _ = flaws(protein.atom_positions, pieces)
    initial_energy = simulation.energy()
    freed = np.zeros(len(protein.aatype), bool)
    rounds, done = 0, False
    while not done:
        positions = simulation.minimised(freed, deadline)
        result = moved(protein, pieces, atoms, positions)
        after, flawed = flaws(result.atom_positions, pieces)
        freed |= flawed
        rounds += 1
        done = not after.residues or rounds == options.max_rounds
    off = (result.atom_positions - protein.atom_positions)[pieces.atoms]
    numbers = protein.residue_index
    return Relaxed(
        protein=result,
        hydrogens=hydrogens(protein, pieces, atoms, positions),
        before=before,
        after=after,
        flawed=tuple(numbers[flawed].tolist()),
        left_out=tuple(numbers[~pieces.modelled].tolist()),
        added=int((result.atom_mask > 0.5).sum() - (protein.atom_mask > 0.5).sum()),
        initial_energy=initial_energy,
        final_energy=simulation.energy(),
        rmsd=float(np.sqrt(np.square(off).sum(-1).mean())),
        rounds=rounds,
        seconds=deadline.passed(),
        platform=where.getName(),
    )
