"""AlphaFold's relaxation protocol: minimise with restraints, remove those of residues with violations, and repeat.

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
    """Return the relaxed structure (see `relaxation.relax`) of a protein that `flaws.check` has accepted."""
    deadline = Deadline(options.max_seconds)
    remaining = platform.platforms(device)
    while True:
        current = remaining.pop(0)
        try:
            return _relaxed_on(current, protein, pieces, options, deadline)
        except openmm.OpenMMException as error:
            # A GPU may be out of memory or have an unsuitable driver: try the next platform.
            if not remaining:
                raise RelaxationError(f"OpenMM failed: {' '.join(str(error).split())}") from error


def _relaxed_on(
    current: openmm.Platform, protein: Protein, pieces: Pieces, options: RelaxOptions, deadline: Deadline
) -> Relaxed:
    try:
        atoms = completed(protein, pieces, current)
        simulation = Simulation(atoms, current)
    except (ValueError, ZeroDivisionError) as error:
        # OpenMM's Python code raises these if atoms coincide or a residue fits no template.
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
    shifts = (result.atom_positions - protein.atom_positions)[pieces.atoms]
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
        rmsd=float(np.sqrt(np.square(shifts).sum(-1).mean())),
        rounds=rounds,
        seconds=deadline.elapsed(),
        platform=current.getName(),
    )
