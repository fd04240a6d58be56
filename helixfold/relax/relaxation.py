"""Relax a structure: take away clashes and strained bonds, and move atoms as little as that needs.

AlphaFold 2, Suppl. Sec. 1.8.6.
"""

import importlib

import torch

from data_pipeline.protein import Protein
from helixfold.relax.flaws import check
from helixfold.relax.pieces import pieces_of
from helixfold.relax.problem import require_packages
from helixfold.relax.result import Relaxed, RelaxOptions


def where(device: torch.device) -> str:
    """Return the name of OpenMM's platform that `relax` tries first; OpenMM must be installed."""
    require_packages()
    return str(importlib.import_module("helixfold.relax.platform").platforms(device)[0].getName())


def relax(protein: Protein, options: RelaxOptions | None = None, device: torch.device | None = None) -> Relaxed:
    """Return the structure relaxed on `device`'s GPU if OpenMM has a platform for it, else on the CPU.

    Minimises the energy of Amber99sb in vacuum, with hydrogens and missing atoms added and every given heavy atom held
    where it is by a spring. While residues are flawed it does so again from there, with these residues freed.

    `RelaxationError` says why a structure cannot be relaxed: it is none, is in a heap, or takes too long.
    """
    pieces = pieces_of(protein)
    check(protein.atom_positions, pieces)
    require_packages()
    # Only here, for everything else works without OpenMM.
    amber = importlib.import_module("helixfold.relax.amber")
    return amber.relaxed(protein, pieces, options or RelaxOptions(), device or torch.device("cpu"))
