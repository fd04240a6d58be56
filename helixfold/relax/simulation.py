"""OpenMM's side of a relaxation: the force field, the springs that hold atoms, and minimisation that ends in time."""

import time

import numpy as np
import openmm
from jaxtyping import Bool, Float
from openmm import app, unit

from helixfold.relax.atoms import ANGSTROM_PER_NANOMETER, Atoms
from helixfold.relax.problem import RelaxationError

_FORCE_FIELD = "amber99sb.xml"
_KILOJOULE_PER_KILOCALORIE = 4.184
# 10 kcal/mol/A^2, in kJ/mol/nm^2.
_STIFFNESS = 10 * _KILOJOULE_PER_KILOCALORIE * ANGSTROM_PER_NANOMETER**2
# Root mean square force at which a minimisation ends, kJ/mol/nm. AlphaFold gives 2.39 kcal/mol, which OpenMM has
# always read as this.
_TOLERANCE = 10.0


class Deadline:
    """The time after which a structure is given up."""

    def __init__(self, seconds: float) -> None:
        self._started, self._seconds = time.monotonic(), seconds

    def passed(self) -> float:
        return time.monotonic() - self._started

    def check(self) -> None:
        if self.passed() > self._seconds:
            raise RelaxationError(f"it was not finished after {self._seconds:g} seconds, the most that is given to it")


class Simulation:
    """OpenMM's system of these atoms, whose restraints are set anew for each round."""

    def __init__(self, atoms: Atoms, platform: openmm.Platform) -> None:
        # Differs from AlphaFold: bonds to hydrogens are not constrained. OpenMM's minimiser knows springs only, and to
        # make these as stiff as constraints it starts over several times; heavy atoms end 0.03 A from there or less,
        # four times as fast.
        system = app.ForceField(_FORCE_FIELD).createSystem(atoms.topology)
        springs = openmm.CustomExternalForce("0.5 * stiffness * ((x-x0)^2 + (y-y0)^2 + (z-z0)^2)")
        for parameter in ("stiffness", "x0", "y0", "z0"):
            springs.addPerParticleParameter(parameter)
        # Differs from AlphaFold: atoms that were added here are free, for nothing says where they should stay.
        self._held = np.flatnonzero(atoms.given)
        for atom in self._held.tolist():
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
        return np.asarray(
            self._context.getState(positions=True).getPositions(asNumpy=True).value_in_unit(unit.nanometer)
        )

    def minimised(self, freed: Bool[np.ndarray, "r"], deadline: Deadline) -> Float[np.ndarray, "n 3"]:
        """Return the positions (nanometers) of least energy near where the atoms are now; `freed` residues may go."""
        start = self.positions()
        for index, atom in enumerate(self._held.tolist()):
            stiffness = 0.0 if freed[self._residue[atom]] else _STIFFNESS
            self._springs.setParticleParameters(index, atom, (stiffness, *start[atom].tolist()))
        self._springs.updateParametersInContext(self._context)
        reporter = _Reporter(deadline)
        openmm.LocalEnergyMinimizer.minimize(self._context, _TOLERANCE, 0, reporter)
        if reporter.happened is not None:
            raise reporter.happened
        found = self.positions()
        if not np.isfinite(found).all():
            raise RelaxationError("its atoms flew apart: the energy of this structure is beyond what can be computed")
        return found


class _Reporter(openmm.MinimizationReporter):  # type: ignore[misc]
    """Tells OpenMM after every step whether to go on: it ends a minimisation in time, and when interrupted."""

    def __init__(self, deadline: Deadline) -> None:
        super().__init__()
        self._deadline = deadline
        self.happened: BaseException | None = None

    def report(self, *_: object) -> bool:
        # No exception may pass through OpenMM's own code.
        try:
            self._deadline.check()
        except (RelaxationError, KeyboardInterrupt, SystemExit) as error:
            self.happened = error
        return self.happened is not None
