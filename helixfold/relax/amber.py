"""AlphaFold's relaxation with OpenMM: minimise the energy with restraints, release residues with violations, repeat.

AlphaFold 2, Suppl. Sec. 1.8.6. Further rounds with soft atoms disentangle what AlphaFold's three rounds do not repair.
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
# Root mean square force at which a minimisation ends, kJ/mol/nm. AlphaFold passes 2.39 kcal/mol, which OpenMM
# interprets as this.
_TOLERANCE = 10.0
# Springs are this much stiffer while atoms are soft, so that correct residues do not move aside for misplaced ones.
_SOFT_STIFFNESS_FACTOR = 10.0
# Soft atoms repel each other within this fraction of their hard-core diameter, with at most this energy (kJ/mol), if
# they coincide.
_SOFT_DIAMETER, _SOFT_ENERGY = 0.9, 30.0
_MIN_DIAMETER = 0.1  # nm, for hydrogens without a diameter
_SOFT_CUTOFF = 0.45  # nm, larger than any diameter
# Torsion CA-N-C-CB of L-amino acids (radians), and the stiffness of restraints on such torsions of soft atoms
# (kJ/mol/rad^2).
_L_AMINO_ACID, _TORSION_STIFFNESS = np.radians(34.2), 500.0


class Deadline:
    """Time limit for the relaxation of one structure, which starts when the object is created."""

    def __init__(self, seconds: float) -> None:
        """Start the time limit of `seconds` seconds."""
        self._started, self._seconds = time.monotonic(), seconds

    def elapsed(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._started

    def check(self) -> None:
        """Raise `RelaxationError` after the deadline."""
        if self.elapsed() > self._seconds:
            raise RelaxationError(f"it was not finished within {self._seconds:g} seconds")


class Simulation:
    """OpenMM system of atoms, with a spring from each predicted atom to its predicted position.

    With `disentangling`, a mask of residues, all atoms have a weak repulsion, even if they coincide, and no charges;
    these residues are restrained to their handedness and their peptide bonds to trans. Atoms do not interact beyond
    `cutoff` nanometers.
    """

    def __init__(
        self,
        atoms: Atoms,
        platform: openmm.Platform,
        *,
        disentangling: Bool[np.ndarray, "r"] | None = None,
        cutoff: float | None = None,
    ) -> None:
        """Set up the forces and start at the positions of `atoms`."""
        # Differs from AlphaFold: bonds to hydrogens are not constrained. OpenMM's minimiser replaces constraints by
        # springs and restarts several times with stiffer ones. Without constraints minimisation is four times as fast,
        # and heavy atoms end within 0.03 A of the same positions.
        reach = {} if cutoff is None else {"nonbondedMethod": app.CutoffNonPeriodic, "nonbondedCutoff": cutoff}
        system = app.ForceField(_FORCE_FIELD).createSystem(atoms.topology, **reach)
        if disentangling is not None:
            _soften(system)
            system.addForce(_torsions(atoms, disentangling))
        springs = openmm.CustomExternalForce("0.5 * stiffness * ((x-x0)^2 + (y-y0)^2 + (z-z0)^2)")
        for parameter in ("stiffness", "x0", "y0", "z0"):
            springs.addPerParticleParameter(parameter)
        # Differs from AlphaFold: added atoms have no springs, because they have no predicted positions.
        self._restrained = np.flatnonzero(atoms.is_predicted).tolist()
        for atom in self._restrained:
            springs.addParticle(atom, (0.0, 0.0, 0.0, 0.0))
        springs.setForceGroup(1)
        system.addForce(springs)
        self._springs, self._residue, self._places = springs, atoms.residue, atoms.positions
        self._stiffness = _STIFFNESS if disentangling is None else _SOFT_STIFFNESS_FACTOR * _STIFFNESS
        self._context = openmm.Context(system, openmm.VerletIntegrator(0.001), platform)
        self._context.setPositions(atoms.positions)

    def energy(self) -> float:
        """Return the energy of the force field at the current positions without restraints, in kcal/mol.

        The positions are those after the last minimisation, or the initial ones.
        """
        state = self._context.getState(energy=True, groups={0})
        return float(state.getPotentialEnergy().value_in_unit(unit.kilocalorie_per_mole))

    def minimised(
        self, start: Float[np.ndarray, "n 3"], freed: Bool[np.ndarray, "r"], deadline: Deadline
    ) -> Float[np.ndarray, "n 3"]:
        """Minimise the energy from positions `start` (nanometers), without the springs of `freed` residues.

        Return the new positions (nanometers). Raise `RelaxationError` after the deadline or if they are not finite.
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
            raise RelaxationError("its atoms flew apart: the energy of this structure is too large to compute")
        return end


def _soften(system: openmm.System) -> None:
    """Replace van der Waals and electrostatic forces by a weak repulsion that is always finite."""
    index, hard = next(
        (index, force) for index, force in enumerate(system.getForces()) if isinstance(force, openmm.NonbondedForce)
    )
    soft = openmm.CustomNonbondedForce(
        f"{_SOFT_ENERGY} * step(1 - r / d) * (1 - (r / d)^2)^2; d = {_SOFT_DIAMETER} * 0.5 * (d1 + d2)"
    )
    soft.addPerParticleParameter("d")
    for atom in range(hard.getNumParticles()):
        _, sigma, _ = hard.getParticleParameters(atom)
        # The minimum of the Lennard-Jones potential.
        soft.addParticle([max(_MIN_DIAMETER, 2 ** (1 / 6) * sigma.value_in_unit(unit.nanometer))])
    for exception in range(hard.getNumExceptions()):
        first, second, *_ = hard.getExceptionParameters(exception)
        soft.addExclusion(first, second)
    soft.setNonbondedMethod(openmm.CustomNonbondedForce.CutoffNonPeriodic)
    soft.setCutoffDistance(_SOFT_CUTOFF)
    system.removeForce(index)
    system.addForce(soft)


def _torsions(atoms: Atoms, residues: Bool[np.ndarray, "r"]) -> openmm.CustomTorsionForce:
    """Return a force that restrains residues to their handedness in `atoms`, and peptide bonds to trans.

    Peptide bonds before proline, which are often cis, are not restrained.
    """
    force = openmm.CustomTorsionForce(
        f"{0.5 * _TORSION_STIFFNESS} * min(off, {2 * np.pi} - off)^2; off = abs(theta - target)"
    )
    force.addPerTorsionParameter("target")
    for chain in atoms.topology.chains():
        before: dict[str, int] = {}
        for residue in chain.residues():
            indices = {atom.name: atom.index for atom in residue.atoms()}
            if residues[atoms.residue[indices["CA"]]]:
                if "CB" in indices:
                    alpha, *others = (indices[name] for name in ("CA", "N", "C", "CB"))
                    volume = np.linalg.det(atoms.positions[others] - atoms.positions[alpha])
                    force.addTorsion(alpha, *others, [np.copysign(_L_AMINO_ACID, volume)])
                if before and residue.name != "PRO":
                    force.addTorsion(before["CA"], before["C"], indices["N"], indices["CA"], [np.pi])
            before = indices
    return force


class _Reporter(openmm.MinimizationReporter):  # type: ignore[misc]
    """Callback of OpenMM after every step that ends a minimisation at the deadline or on an interruption."""

    def __init__(self, deadline: Deadline) -> None:
        super().__init__()
        self._deadline = deadline
        self.error: BaseException | None = None

    def report(self, *_: object) -> bool:
        """Return whether the minimisation must end, and store the reason in `error`."""
        # Exceptions must not pass through OpenMM's C++ code.
        try:
            self._deadline.check()
        except (RelaxationError, KeyboardInterrupt, SystemExit) as error:
            self.error = error
        return self.error is not None


# Rounds without soft atoms, as in AlphaFold. Chains may remain caught in each other and in rings, so further rounds
# begin with soft atoms.
_HARD_ROUNDS = 3
_SHAKING = 0.04  # nm along each axis, standard deviation
_CUTOFF = 0.8  # nm, of interactions after the first soft round; the last minimisation has no cutoff
# OpenMM's platforms for each of PyTorch's device types, the fastest first.
_PLATFORMS = {"cuda": ("CUDA", "HIP", "OpenCL", "CPU"), "mps": ("OpenCL", "CPU"), "cpu": ("CPU",)}


def platforms(device: torch.device, threads: int | None = None) -> list[openmm.Platform]:
    """Return OpenMM's working platforms for a device, the fastest first and the CPU last.

    The CPU uses `threads`, by default as many as PyTorch. GPUs are deterministic; the CPU is with one thread. These
    settings become defaults of OpenMM's platforms in this process.
    """
    installed = {openmm.Platform.getPlatform(index).getName() for index in range(openmm.Platform.getNumPlatforms())}
    working = []
    for name in [name for name in _PLATFORMS.get(device.type, ("CPU",)) if name in installed]:
        platform = openmm.Platform.getPlatformByName(name)
        # DeterministicForces does not cover a CPU's forces between pairs of atoms: each thread adds up the
        # forces of the atoms that it happens to take.
        count = threads or torch.get_num_threads()
        own = ("Threads", count) if name == "CPU" else ("DeviceIndex", device.index or 0)
        for key, value in (own, ("DeterministicForces", "true")):
            # Defaults of the platform also apply to the contexts of PDBFixer.
            if key in platform.getPropertyNames():
                platform.setPropertyDefaultValue(key, str(value))
        if name == "CPU" or _works(platform):
            working.append(platform)
    return working


def _works(platform: openmm.Platform) -> bool:
    """Return whether a platform can be used: it may be installed without a driver or a device."""
    system = openmm.System()
    system.addParticle(1.0)
    try:
        openmm.Context(system, openmm.VerletIntegrator(0.001), platform)
    except openmm.OpenMMException:
        return False
    return True


def relaxed(
    protein: Protein, pieces: Pieces, options: RelaxOptions, device: torch.device, threads: int | None = None
) -> Relaxed:
    """Relax a protein that has passed `flaws.check` on the first platform that works; see `relaxation.relax`."""
    deadline = Deadline(options.max_seconds)
    remaining = platforms(device, threads)
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
    """Relax a protein on one platform, round by round, until no residue is wrong or rounds are used up."""
    try:
        atoms = completed(protein, pieces, current)
        simulation = Simulation(atoms, current)
    except (ValueError, ZeroDivisionError) as error:
        # OpenMM's Python code raises these if atoms coincide or a residue does not fit a template.
        raise RelaxationError(f"the force field cannot be set up: {' '.join(str(error).split())}") from error
    before, broken = flaws(protein.atom_positions, pieces)
    initial_energy = simulation.energy()
    freed = misplaced(protein.atom_positions, protein.b_factors, pieces)
    inverted = np.zeros_like(freed)  # residues that changed between L and D
    positions, rounds, is_done, soft_first = atoms.positions, 0, False, bool(freed.any())
    near: Simulation | None = None
    while not is_done:
        if soft_first or rounds >= _HARD_ROUNDS:
            positions = with_side_chains_turned(positions, atoms, inverted)
            soft = Simulation(atoms, current, disentangling=freed)
            positions = soft.minimised(_shaken(positions, freed[atoms.residue], rounds), freed, deadline)
            near = near or Simulation(atoms, current, cutoff=_CUTOFF)
        positions = (near or simulation).minimised(positions, freed, deadline)
        result = moved(protein, pieces, atoms, positions)
        after, flawed = flaws(result.atom_positions, pieces)
        inverted = mirrored(result.atom_positions, pieces) & ~mirrored(protein.atom_positions, pieces)
        # A cis peptide bond is not wrong if it was predicted and the residue had no violations.
        wrong = (
            flawed | inverted | (cis(result.atom_positions, pieces) & ~(cis(protein.atom_positions, pieces) & ~broken))
        )
        rounds += 1
        is_done = not wrong.any() or rounds == options.max_rounds
        # If atoms coincide, forces may be too large for the minimiser. This does not mean that most residues are wrong.
        soft_first = after.residues > pieces.modelled.sum() / 2
        if not is_done and not soft_first:
            # A strained loop is repaired by moving its surroundings.
            freed = freed | pieces.neighbours(wrong, max(0, rounds - _HARD_ROUNDS + 1))
    if near is not None:
        positions = simulation.minimised(positions, freed, deadline)
        result = moved(protein, pieces, atoms, positions)
        after, flawed = flaws(result.atom_positions, pieces)
    shifts = np.linalg.norm(result.atom_positions - protein.atom_positions, axis=-1)
    restrained = pieces.atoms & ~freed[:, None]
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
        rmsd_held=_root_mean_square(shifts[restrained]),
        freed=tuple(numbers[freed].tolist()),
        rounds=rounds,
        seconds=deadline.elapsed(),
        platform=current.getName(),
    )


def _root_mean_square(values: Float[np.ndarray, " n"]) -> float:
    """Return the root mean square, or 0 without values."""
    return float(np.sqrt(np.square(values).mean())) if len(values) else 0.0


def _shaken(positions: Float[np.ndarray, "n 3"], mask: Bool[np.ndarray, " n"], seed: int) -> Float[np.ndarray, "n 3"]:
    """Add noise to the positions of some atoms, because entangled atoms may be in equilibrium."""
    noise = np.random.default_rng(seed).normal(scale=_SHAKING, size=positions.shape)
    return positions + noise * mask[:, None]
