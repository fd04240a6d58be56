"""AlphaFold's relaxation with OpenMM: minimise with restraints, remove those of residues with violations, and repeat.

AlphaFold 2, Suppl. Sec. 1.8.6. What is still wrong after AlphaFold's three rounds is disentangled by further ones.
"""

import numpy as np
import openmm
import torch
from jaxtyping import Bool, Float

from data_pipeline.protein import Protein
from helixfold.relax.atoms import completed, hydrogens, moved, with_side_chains_turned
from helixfold.relax.flaws import cis, flaws, mirrored, misplaced
from helixfold.relax.pieces import Pieces
from helixfold.relax.problem import RelaxationError
from helixfold.relax.result import Relaxed, RelaxOptions
from helixfold.relax.simulation import Deadline, Simulation

# As many as AlphaFold's. They leave chains caught in each other and in rings, so further ones begin with soft atoms.
_HARD_ROUNDS = 3
_SHAKING = 0.04  # nm along each axis
_CUTOFF = 0.8  # nm, of interactions once atoms have been soft; the last minimisation has none
# OpenMM's platforms for each of PyTorch's device types, the fastest first.
_PLATFORMS = {"cuda": ("CUDA", "HIP", "OpenCL", "CPU"), "mps": ("OpenCL", "CPU"), "cpu": ("CPU",)}


def platforms(device: torch.device) -> list[openmm.Platform]:
    """Return the working platforms for this device, the fastest first and the CPU last.

    They are set up to be deterministic. On the CPU, OpenMM uses as many threads as PyTorch.
    """
    installed = {openmm.Platform.getPlatform(index).getName() for index in range(openmm.Platform.getNumPlatforms())}
    working = []
    for name in [name for name in _PLATFORMS.get(device.type, ("CPU",)) if name in installed]:
        platform = openmm.Platform.getPlatformByName(name)
        own = ("Threads", torch.get_num_threads()) if name == "CPU" else ("DeviceIndex", device.index or 0)
        for key, value in (own, ("DeterministicForces", "true")):
            # Defaults of the platform also apply to the contexts that PDBFixer makes.
            if key in platform.getPropertyNames():
                platform.setPropertyDefaultValue(key, str(value))
        if name == "CPU" or _works(platform):
            working.append(platform)
    return working


def _works(platform: openmm.Platform) -> bool:
    """Return whether a context can be made: a platform may be installed without a driver or a device."""
    system = openmm.System()
    system.addParticle(1.0)
    try:
        openmm.Context(system, openmm.VerletIntegrator(0.001), platform)
    except openmm.OpenMMException:
        return False
    return True


def relaxed(protein: Protein, pieces: Pieces, options: RelaxOptions, device: torch.device) -> Relaxed:
    """Return the relaxed structure (see `relaxation.relax`) of a protein that `flaws.check` has accepted."""
    deadline = Deadline(options.max_seconds)
    remaining = platforms(device)
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
    before, broken = flaws(protein.atom_positions, pieces)
    initial_energy = simulation.energy()
    freed = misplaced(protein.atom_positions, protein.b_factors, pieces)
    turned = np.zeros_like(freed)  # from L- to D-amino acids, or back
    positions, rounds, done, soft_first = atoms.positions, 0, False, bool(freed.any())
    near: Simulation | None = None
    while not done:
        if soft_first or rounds >= _HARD_ROUNDS:
            positions = with_side_chains_turned(positions, atoms, turned)
            soft = Simulation(atoms, current, disentangling=freed)
            positions = soft.minimised(_shaken(positions, freed[atoms.residue], rounds), freed, deadline)
            near = near or Simulation(atoms, current, cutoff=_CUTOFF)
        positions = (near or simulation).minimised(positions, freed, deadline)
        result = moved(protein, pieces, atoms, positions)
        after, flawed = flaws(result.atom_positions, pieces)
        turned = mirrored(result.atom_positions, pieces) & ~mirrored(protein.atom_positions, pieces)
        # A cis peptide bond of a residue that was in order is as it was predicted.
        wrong = (
            flawed | turned | (cis(result.atom_positions, pieces) & ~(cis(protein.atom_positions, pieces) & ~broken))
        )
        rounds += 1
        done = not wrong.any() or rounds == options.max_rounds
        # Where atoms coincide, forces may be too large for the minimiser to begin; that says nothing about residues.
        soft_first = after.residues > pieces.modelled.sum() / 2
        if not done and not soft_first:
            # A strained loop is mended by what is around it.
            freed = freed | pieces.neighbours(wrong, max(0, rounds - _HARD_ROUNDS + 1))
    if near is not None:
        positions = simulation.minimised(positions, freed, deadline)
        result = moved(protein, pieces, atoms, positions)
        after, flawed = flaws(result.atom_positions, pieces)
    shifts = np.linalg.norm(result.atom_positions - protein.atom_positions, axis=-1)
    held = pieces.atoms & ~freed[:, None]
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
        rmsd=_root_mean_square(shifts[pieces.atoms]),
        rmsd_held=_root_mean_square(shifts[held]),
        freed=tuple(numbers[freed].tolist()),
        rounds=rounds,
        seconds=deadline.elapsed(),
        platform=current.getName(),
    )


def _root_mean_square(values: Float[np.ndarray, " n"]) -> float:
    return float(np.sqrt(np.square(values).mean())) if len(values) else 0.0


def _shaken(positions: Float[np.ndarray, "n 3"], chosen: Bool[np.ndarray, " n"], seed: int) -> Float[np.ndarray, "n 3"]:
    """Return the positions with the chosen atoms a little off: what is caught may be in balance."""
    noise = np.random.default_rng(seed).normal(scale=_SHAKING, size=positions.shape)
    return positions + noise * chosen[:, None]
