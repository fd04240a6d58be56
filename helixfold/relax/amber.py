"""AlphaFold's relaxation with OpenMM: minimise with restraints, remove those of residues with violations, and repeat.

AlphaFold 2, Suppl. Sec. 1.8.6. What is still wrong after AlphaFold's three rounds is disentangled by further ones.
"""

import time

import numpy as np
import openmm
import torch
from jaxtyping import Bool, Float
from openmm import app, unit

from data_pipeline.protein import Protein
from helixfold.relax.atoms import ANGSTROM_PER_NANOMETER, Atoms, completed, hydrogens, moved, with_side_chains_turned
from helixfold.relax.flaws import cis, flaws, mirrored, misplaced
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
# Springs are this much stiffer while atoms are soft: what is in order makes no room for what has yet to find its place.
_STIFFER = 10.0
# Soft atoms repel each other within this part of their hard cores' diameter, by at most this energy (kJ/mol), which is
# reached where they coincide.
_SOFT_DIAMETER, _SOFT_ENERGY = 0.9, 30.0
_LEAST_DIAMETER = 0.1  # nm, for hydrogens that have none
_SOFT_CUTOFF = 0.45  # nm, more than any diameter
# The torsion CA-N-C-CB of L-amino acids (radians), and the stiffness with which soft atoms are held to such torsions
# (kJ/mol/rad^2).
_L_AMINO_ACID, _TORSION_STIFFNESS = np.radians(34.2), 500.0


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
    """OpenMM's system of these atoms, with a spring from each given atom to its place.

    With `disentangling`, a mask of residues, all atoms repel each other by little even where they coincide, and have no
    charges; these residues are held to their handedness and their peptide bonds to trans. Atoms farther from each other
    than `cutoff` nanometers do not feel each other.
    """

    def __init__(
        self,
        atoms: Atoms,
        platform: openmm.Platform,
        *,
        disentangling: Bool[np.ndarray, "r"] | None = None,
        cutoff: float | None = None,
    ) -> None:
        # Differs from AlphaFold: bonds to hydrogens are not constrained. OpenMM's minimiser replaces constraints by
        # springs and starts over several times to make these stiff. Without, minimisation is four times as fast and
        # heavy atoms end within 0.03 A of the same positions.
        reach = {} if cutoff is None else {"nonbondedMethod": app.CutoffNonPeriodic, "nonbondedCutoff": cutoff}
        system = app.ForceField(_FORCE_FIELD).createSystem(atoms.topology, **reach)
        if disentangling is not None:
            _soften(system)
            system.addForce(_torsions(atoms, disentangling))
        springs = openmm.CustomExternalForce("0.5 * stiffness * ((x-x0)^2 + (y-y0)^2 + (z-z0)^2)")
        for parameter in ("stiffness", "x0", "y0", "z0"):
            springs.addPerParticleParameter(parameter)
        # Differs from AlphaFold: added atoms have no springs, since they have no predicted positions.
        self._restrained = np.flatnonzero(atoms.given).tolist()
        for atom in self._restrained:
            springs.addParticle(atom, (0.0, 0.0, 0.0, 0.0))
        springs.setForceGroup(1)
        system.addForce(springs)
        self._springs, self._residue, self._places = springs, atoms.residue, atoms.positions
        self._stiffness = _STIFFNESS if disentangling is None else _STIFFER * _STIFFNESS
        self._context = openmm.Context(system, openmm.VerletIntegrator(0.001), platform)
        self._context.setPositions(atoms.positions)

    def energy(self) -> float:
        """Return the energy of the force field alone, in kcal/mol."""
        state = self._context.getState(energy=True, groups={0})
        return float(state.getPotentialEnergy().value_in_unit(unit.kilocalorie_per_mole))

    def minimised(
        self, start: Float[np.ndarray, "n 3"], freed: Bool[np.ndarray, "r"], deadline: Deadline
    ) -> Float[np.ndarray, "n 3"]:
        """Minimise the energy from these positions (nanometers), without the springs of `freed` residues.

        Return the new positions; raise `RelaxationError` after the deadline or if they are not finite.
        """
        for index, atom in enumerate(self._restrained):
            stiffness = 0.0 if freed[self._residue[atom]] else self._stiffness
            self._springs.setParticleParameters(index, atom, (stiffness, *self._places[atom].tolist()))
        self._springs.updateParametersInContext(self._context)
        self._context.setPositions(start)
        reporter = _Reporter(deadline)
        openmm.LocalEnergyMinimizer.minimize(self._context, _TOLERANCE, 0, reporter)
        if reporter.error is not None:
            raise reporter.error
        state = self._context.getState(positions=True)
        end = np.asarray(state.getPositions(asNumpy=True).value_in_unit(unit.nanometer))
        if not np.isfinite(end).all():
            raise RelaxationError("its atoms flew apart: the energy of this structure is beyond what can be computed")
        return end


def _soften(system: openmm.System) -> None:
    """Replace van der Waals and electrostatic forces by a weak repulsion that is finite everywhere."""
    index, hard = next(
        (index, force) for index, force in enumerate(system.getForces()) if isinstance(force, openmm.NonbondedForce)
    )
    soft = openmm.CustomNonbondedForce(
        f"{_SOFT_ENERGY} * step(1 - r / d) * (1 - (r / d)^2)^2; d = {_SOFT_DIAMETER} * 0.5 * (d1 + d2)"
    )
    soft.addPerParticleParameter("d")
    for atom in range(hard.getNumParticles()):
        _, sigma, _ = hard.getParticleParameters(atom)
        # Where two Lennard-Jones atoms attract each other most.
        soft.addParticle([max(_LEAST_DIAMETER, 2 ** (1 / 6) * sigma.value_in_unit(unit.nanometer))])
    for exception in range(hard.getNumExceptions()):
        first, second, *_ = hard.getExceptionParameters(exception)
        soft.addExclusion(first, second)
    soft.setNonbondedMethod(openmm.CustomNonbondedForce.CutoffNonPeriodic)
    soft.setCutoffDistance(_SOFT_CUTOFF)
    system.removeForce(index)
    system.addForce(soft)


def _torsions(atoms: Atoms, residues: Bool[np.ndarray, "r"]) -> openmm.CustomTorsionForce:
    """Return a force that holds residues to the handedness that they have in `atoms`, and peptide bonds to trans.

    Peptide bonds before proline, which are often cis, are left as they are.
    """
    force = openmm.CustomTorsionForce(
        f"{0.5 * _TORSION_STIFFNESS} * min(off, {2 * np.pi} - off)^2; off = abs(theta - target)"
    )
    force.addPerTorsionParameter("target")
    for chain in atoms.topology.chains():
        before: dict[str, int] = {}
        for residue in chain.residues():
            found = {atom.name: atom.index for atom in residue.atoms()}
            if residues[atoms.residue[found["CA"]]]:
                if "CB" in found:
                    alpha, *others = (found[name] for name in ("CA", "N", "C", "CB"))
                    volume = np.linalg.det(atoms.positions[others] - atoms.positions[alpha])
                    force.addTorsion(alpha, *others, [np.copysign(_L_AMINO_ACID, volume)])
                if before and residue.name != "PRO":
                    force.addTorsion(before["CA"], before["C"], found["N"], found["CA"], [np.pi])
            before = found
    return force


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
