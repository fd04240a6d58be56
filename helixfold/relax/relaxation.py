"""Relaxation of predicted structures: energy minimisation that removes clashes and strained bonds.

AlphaFold 2, Suppl. Sec. 1.8.6.
"""

import importlib

import torch

from data_pipeline.io.extras import require
from data_pipeline.protein import Protein
from helixfold.relax import problem
from helixfold.relax.flaws import check
from helixfold.relax.pieces import pieces_of
from helixfold.relax.result import Relaxed, RelaxOptions


def where(device: torch.device) -> str:
    """Return the name of the OpenMM platform that `relax` tries first; OpenMM must be installed."""
    return str(importlib.import_module("helixfold.relax.amber").platforms(device)[0].getName())


def relax(
    protein: Protein,
    options: RelaxOptions | None = None,
    device: torch.device | None = None,
    *,
    threads: int | None = None,
) -> Relaxed:
    """Relax a structure on the GPU `device` if OpenMM has a platform for it, else on the CPU with so many threads.

    Hydrogens and missing atoms are added, and the energy of Amber99sb in vacuum is minimised with a spring on every
    predicted heavy atom. While residues violate stereochemistry, this is repeated without springs on these residues, at
    first as in AlphaFold and then with soft atoms, to release entangled chains (see docs/how-to/relaxation.md).

    With one thread the same machine returns the same positions, bit for bit, for structures that lack no side-chain
    atoms. By default there are as many threads as PyTorch has, and positions differ slightly from run to run.

    Raise `RelaxationError` if the structure is broken, its residues overlap, relaxation takes too long, or OpenMM or
    PDBFixer is not installed.
    """
    pieces = pieces_of(protein)
    check(protein.atom_positions, pieces)
    require("relax", *problem.PACKAGES, action="relaxation", error=problem.RelaxationError)
    # Imported only when needed, because everything else works without OpenMM.
    amber = importlib.import_module("helixfold.relax.amber")
    return amber.relaxed(protein, pieces, options or RelaxOptions(), device or torch.device("cpu"), threads)
