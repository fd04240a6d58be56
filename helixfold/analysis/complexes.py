"""Score how close a predicted complex is to an experimental one: DockQ, interface lDDT and TM-score of the complex."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from data_pipeline.residues import ATOM_ORDER
from data_pipeline.structure import Chain
from helixfold.analysis.chain_mapping import ChainMapping
from helixfold.analysis.dockq import CapriClass
from helixfold.analysis.metrics import interface_lddt, superposed_scores
from helixfold.analysis.scores import HeavyAtoms, heavy_atoms, placed

_CA = ATOM_ORDER["CA"]


@dataclass(frozen=True, kw_only=True)
class InterfaceComparison:
    """Quality of one interface of the known structure in the prediction; see `DockQ`."""

    reference_chains: tuple[str, str]
    predicted_chains: tuple[str, str]
    native_contacts: int
    fnat: float  # 0 to 1
    irms: float  # Angstrom
    lrms: float  # Angstrom
    dockq: float  # 0 to 1
    capri: CapriClass
    lddt: float  # 0 to 1, over distances between heavy atoms of the two chains


@dataclass(frozen=True, kw_only=True)
class ComplexComparison:
    """Scores of a predicted complex over the chains of the known structure that it has."""

    chains: tuple[tuple[str, str], ...]  # names in the reference and in the prediction
    reference_chains: int  # all protein chains of the reference
    residues: int  # with C-alpha in those chains of the reference that the prediction has
    compared: int  # of these, with C-alpha in the prediction
    dockq: float | None  # mean over the interfaces; None if there are none
    interface_lddt: float | None  # over all distances between chains; None if there are none up to 15 Angstrom
    tm_score: float  # of all chains under one superposition, normalised by `residues`
    rmsd: float  # Angstrom, of C-alpha
    interfaces: tuple[InterfaceComparison, ...]


def compare_complexes(predicted: Sequence[Chain], reference: Sequence[Chain]) -> ComplexComparison | None:
    """Return the scores of a predicted complex; None unless at least two of its chains are in the known structure."""
    if len(predicted) < 2 or len(reference) < 2:
        return None
    mapping = ChainMapping(predicted, reference)
    pairings = mapping.pairings
    if len(pairings) < 2:
        return None
    atoms = {number: heavy_atoms(pairing) for number, pairing in pairings.items()}
    interfaces = tuple(
        InterfaceComparison(
            reference_chains=(pairings[one].reference.name, pairings[other].reference.name),
            predicted_chains=(pairings[one].predicted.name, pairings[other].predicted.name),
            native_contacts=quality.native_contacts,
            fnat=quality.fnat,
            irms=quality.irms,
            lrms=quality.lrms,
            dockq=quality.dockq,
            capri=quality.capri,
            lddt=_lddt_between([atoms[one], atoms[other]]) or 0.0,
        )
        for (one, other), quality in mapping.interfaces.items()
    )
    residues = sum(int(pairing.observed.sum()) for pairing in pairings.values())
    superposed = superposed_scores(
        np.concatenate([each.predicted.atom_positions[each.place[each.both], _CA] for each in pairings.values()]),
        np.concatenate([each.reference.atom_positions[each.both, _CA] for each in pairings.values()]),
        length=residues,
    )
    return ComplexComparison(
        chains=tuple((each.reference.name, each.predicted.name) for each in pairings.values()),
        reference_chains=len(reference),
        residues=residues,
        compared=sum(int(pairing.both.sum()) for pairing in pairings.values()),
        dockq=float(np.mean([each.dockq for each in interfaces])) if interfaces else None,
        interface_lddt=_lddt_between(list(atoms.values())),
        tm_score=superposed.tm_score,
        rmsd=superposed.rmsd,
        interfaces=interfaces,
    )


def _lddt_between(chains: Sequence[HeavyAtoms]) -> float | None:
    """Return lDDT over the distances between different chains; None if there are none."""
    predicted = np.concatenate([chain.predicted for chain in chains])
    true = np.concatenate([chain.true for chain in chains])
    number = np.repeat(np.arange(len(chains)), [len(chain.true) for chain in chains])
    return interface_lddt(placed(predicted), true, number)
