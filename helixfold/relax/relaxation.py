"""Relax a structure: take away clashes and strained bonds, and move atoms as little as that needs.

AlphaFold 2, Suppl. Sec. 1.8.6.
"""

import importlib
from dataclasses import dataclass

import torch

from data_pipeline.protein import Hydrogens, Protein
from helixfold import config
from helixfold.relax.flaws import Flaws, check
from helixfold.relax.pieces import pieces_of
from helixfold.relax.problem import require


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


def where(device: torch.device) -> str:
    """Return the name of OpenMM's platform that `relax` tries first; OpenMM must be installed."""
    require()
    return str(importlib.import_module("helixfold.relax.platform").platforms(device)[0].getName())


def relax(protein: Protein, options: RelaxOptions | None = None, device: torch.device | None = None) -> Relaxed:
    """Return the structure relaxed on `device`'s GPU if OpenMM has a platform for it, else on the CPU.

    Minimises the energy of Amber99sb in vacuum, with hydrogens and missing atoms added and every given heavy atom held
    where it is by a spring. While residues are flawed it does so again from there, with these residues freed.

    `RelaxationError` says why a structure cannot be relaxed: it is none, is in a heap, or takes too long.
    """
    pieces = pieces_of(protein)
    check(protein.atom_positions, pieces)
    require()
    # Only here, for everything else works without OpenMM.
    amber = importlib.import_module("helixfold.relax.amber")
    return amber.relaxed(protein, pieces, options or RelaxOptions(), device or torch.device("cpu"))
