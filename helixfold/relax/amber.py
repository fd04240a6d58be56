"""AlphaFold's relaxation with OpenMM: minimise with restraints, remove those of residues with violations, and repeat.

AlphaFold 2, Suppl. Sec. 1.8.6.
"""

import time

import numpy as np
import openmm
import torch
from jaxtyping import Bool, Float
from openmm import app, unit

from data_pipeline.protein import Protein
from helixfold.relax.atoms import ANGSTROM_PER_NANOMETER, Atoms, completed, hydrogens, moved
from helixfold.relax.flaws import flaws
from helixfold.relax.pieces import Pieces
from helixfold.relax.problem import RelaxationError
from helixfold.relax.result import Relaxed, RelaxOptions

_FORCE_FIELD = "amber99sb.xml"
_KILOJOULE_PER_KILOCALORIE = 4.184
# 10 kcal/mol/A^2, in kJ/mol/nm^2.
_STIFFNESS = 10 * _KILOJOULE_PER_KILOCALORIE * ANGSTROM_PER_NANOMETER**2
# Root mean square force at which a minimisation ends, kJ/mol/nm. AlphaFold passes 2.39 kcal/mol, which OpenMM reads as
# this.
_TOLERANCE = 10.0
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


class Deadline:
    """A time limit for the relaxation of one structure, which starts when this is made."""

    def __init__(self, seconds: float) -> None:
        self._started, self._seconds = time.monotonic(), seconds

    def elapsed(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._started

    def check(self) -> None:
        """Raise `RelaxationError` after the deadline."""
        if self.elapsed() > self._seconds:
            raise RelaxationError(f"it was not finished after {self._seconds:g} seconds, the most that is given to it")


class Simulation:
    """OpenMM's system of these atoms, with restraints that each round sets anew."""

    def __init__(self, atoms: Atoms, platform: openmm.Platform) -> None:
        # Differs from AlphaFold: bonds to hydrogens are not constrained. OpenMM's minimiser replaces constraints by
        # springs and starts over several times to make these stiff. Without, minimisation is four times as fast and
        # heavy atoms end within 0.03 A of the same positions.
        system = app.ForceField(_FORCE_FIELD).createSystem(atoms.topology)
        springs = openmm.CustomExternalForce("0.5 * stiffness * ((x-x0)^2 + (y-y0)^2 + (z-z0)^2)")
        for parameter in ("stiffness", "x0", "y0", "z0"):
            springs.addPerParticleParameter(parameter)
        # Differs from AlphaFold: added atoms have no springs, since they have no predicted positions.
        self._restrained = np.flatnonzero(atoms.given).tolist()
        for atom in self._restrained:
            springs.addParticle(atom, (0.0, 0.0, 0.0, 0.0))
        springs.setForceGroup(1)
        system.addForce(springs)
        self._springs, self._residue = springs, atoms.residue
        self._context = openmm.Context(system, openmm.VerletIntegrator(0.001), platform)
        self._context.setPositions(atoms.positions)

    def energy(self) -> float:
        """Return the energy of the force field alone, in kcal/mol."""
        state = self._context.getState(energy=True, groups={0})
        return float(state.getPotentialEnergy().value_in_unit(unit.kilocalorie_per_mole))

    def positions(self) -> Float[np.ndarray, "n 3"]:
        """Return the current positions (nanometers)."""
        return np.asarray(
            self._context.getState(positions=True).getPositions(asNumpy=True).value_in_unit(unit.nanometer)
        )

    def minimised(self, freed: Bool[np.ndarray, "r"], deadline: Deadline) -> Float[np.ndarray, "n 3"]:
        """Minimise the energy with springs to the current positions, except in `freed` residues.

        Return the new positions (nanometers); raise `RelaxationError` after the deadline or if they are not finite.
        """
        start = self.positions()
        for index, atom in enumerate(self._restrained):
            stiffness = 0.0 if freed[self._residue[atom]] else _STIFFNESS
            self._springs.setParticleParameters(index, atom, (stiffness, *start[atom].tolist()))
        self._springs.updateParametersInContext(self._context)
        reporter = _Reporter(deadline)
        openmm.LocalEnergyMinimizer.minimize(self._context, _TOLERANCE, 0, reporter)
        if reporter.error is not None:
            raise reporter.error
        end = self.positions()
        if not np.isfinite(end).all():
            raise RelaxationError("its atoms flew apart: the energy of this structure is beyond what can be computed")
        return end


class _Reporter(openmm.MinimizationReporter):  # type: ignore[misc]
    """A callback of OpenMM after every step, which ends a minimisation at the deadline or when interrupted."""

    def __init__(self, deadline: Deadline) -> None:
        super().__init__()
        self._deadline = deadline
        self.error: BaseException | None = None

    def report(self, *_: object) -> bool:
        # Exceptions must not pass through OpenMM's C++ code.
        try:
            self._deadline.check()
        except (RelaxationError, KeyboardInterrupt, SystemExit) as error:
            self.error = error
        return self.error is not None


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
