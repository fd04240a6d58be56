"""Score the interface of two predicted chains against an experimental structure: DockQ and its parts.

A `CapriClass` is the class of a predicted interface by CAPRI's criteria.

Basu & Wallner 2016 (doi:10.1371/journal.pone.0161879); Mirabello & Wallner 2024 (doi:10.1093/bioinformatics/btae586).
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.spatial import cKDTree

from data_pipeline.residues import ATOM_ORDER, UNKNOWN
from data_pipeline.structure import Chain
from helixfold.analysis.metrics import rmsd, superposition
from helixfold.analysis.residues import Pairing

# Angstrom, maximum distances of heavy atoms of residues in contact, and at the interface.
_CONTACT_DISTANCE, _INTERFACE_DISTANCE = 5.0, 10.0
# Angstrom, RMSD that counts half.
_IRMS_SCALE, _LRMS_SCALE = 1.5, 8.5
_BACKBONE_ATOM_INDICES = [ATOM_ORDER[name] for name in ("N", "CA", "C", "O")]

CapriClass = Literal["incorrect", "acceptable", "medium", "high"]


@dataclass(frozen=True, kw_only=True)
class DockQ:
    """Quality of a predicted interface.

    `native_contacts` is the number of pairs of residues with heavy atoms less than 5 Å apart in the reference, and
    `fnat` the fraction of these in the prediction. `irms` (Å) is the RMSD of the residues within 10 Å of the other
    chain after superposition, `lrms` (Å) of the shorter chain after superposing the longer one. RMSDs are of backbone
    atoms (N, CA, C, O). They are infinite if the prediction lacks all residues of an interface or of a chain.
    """

    native_contacts: int  # pairs of residues with heavy atoms less than 5 Angstrom apart in the reference
    fnat: float  # fraction of these in the prediction, 0 to 1
    irms: float  # Angstrom, of the residues within 10 Angstrom of the other chain, after superposition
    lrms: float  # Angstrom, of the shorter chain, after superposing the longer one

    @property
    def dockq(self) -> float:
        """DockQ, from 0 to 1: the mean of `fnat` and of the two RMSDs scaled to 0 to 1, where 1 is an RMSD of 0."""
        parts = self.fnat, 1 / (1 + (self.irms / _IRMS_SCALE) ** 2), 1 / (1 + (self.lrms / _LRMS_SCALE) ** 2)
        return sum(parts) / 3

    @property
    def capri(self) -> CapriClass:
        """Class by CAPRI's criteria (Lensink, Mendez & Wodak 2007, doi:10.1002/prot.21804)."""
        if self.fnat >= 0.5 and (self.lrms <= 1 or self.irms <= 1):
            return "high"
        if self.fnat >= 0.3 and (self.lrms <= 5 or self.irms <= 2):
            return "medium"
        if self.fnat >= 0.1 and (self.lrms <= 10 or self.irms <= 4):
            return "acceptable"
        return "incorrect"


@dataclass(frozen=True, kw_only=True)
class NativeInterface:
    """Pairs of residues of two reference chains with heavy atoms less than 10 Å apart.

    `first` and `second` are the indices of the residues in their chains, and `distance` (Å) is the min distance of
    their heavy atoms.
    """

    first: Int[np.ndarray, " n"]  # index of the residue in the first chain
    second: Int[np.ndarray, " n"]
    distance: Float[np.ndarray, " n"]  # Angstrom, minimum between heavy atoms

    @property
    def contact(self) -> Bool[np.ndarray, " n"]:
        """Mask of the pairs in contact, less than 5 Angstrom apart."""
        return self.distance < _CONTACT_DISTANCE


def native_interface(first: Chain, second: Chain) -> NativeInterface:
    """Return the pairs of residues with heavy atoms less than 10 Å apart of two chains, of which there may be none."""
    points, residues = zip(*(_heavy_atoms(chain) for chain in (first, second)), strict=True)
    near = cKDTree(points[0]).sparse_distance_matrix(cKDTree(points[1]), _INTERFACE_DISTANCE, output_type="coo_matrix")
    pairs = residues[0][near.row] * len(second.aatype) + residues[1][near.col]
    order = np.lexsort([near.data, pairs])
    unique_pairs, first_index = np.unique(pairs[order], return_index=True)
    distance = near.data[order][first_index]
    inside = distance < _INTERFACE_DISTANCE
    return NativeInterface(
        first=unique_pairs[inside] // len(second.aatype),
        second=unique_pairs[inside] % len(second.aatype),
        distance=distance[inside],
    )


def dockq(first: Pairing, second: Pairing, native: NativeInterface) -> DockQ:
    """Return the quality of the interface of two predicted chains.

    `native` is the interface of the two reference chains, which must have contacts. As in DockQ, residues are compared
    if they have the same type in both structures, and contacts of other residues count as missed. If the chains have
    the same number of residues, the second one is superposed.
    """
    is_same_type = _same_residues(first), _same_residues(second)
    comparable = is_same_type[0][native.first] & is_same_type[1][native.second]
    shared = comparable & native.contact
    preserved = _in_contact(first, second, native.first[shared], native.second[shared])
    interface = np.unique(native.first[comparable]), np.unique(native.second[comparable])
    pieces = [_backbone(pairing, residues) for pairing, residues in zip((first, second), interface, strict=True)]
    predicted, true = (np.concatenate([piece[side] for piece in pieces]) for side in range(2))
    contacts = int(native.contact.sum())
    return DockQ(
        native_contacts=contacts,
        fnat=int(preserved.sum()) / contacts,
        irms=rmsd(predicted, true) if len(true) else float("inf"),
        lrms=_lrms(first, second, is_same_type),
    )


def _lrms(first: Pairing, second: Pairing, same: tuple[Bool[np.ndarray, " n"], Bool[np.ndarray, " m"]]) -> float:
    """Return the RMSD of the shorter chain (ligand) after superposing the longer chain (receptor)."""
    atoms = [_backbone(pairing, np.flatnonzero(mask)) for pairing, mask in zip((first, second), same, strict=True)]
    if not all(len(true) for _, true in atoms):
        return float("inf")
    sizes = [int((pairing.reference.atom_mask > 0).any(1).sum()) for pairing in (first, second)]
    receptor, ligand = atoms if sizes[0] > sizes[1] else atoms[::-1]
    moved = superposition(*receptor).apply(ligand[0])
    return float(np.sqrt(np.square(moved - ligand[1]).sum(-1).mean()))


def _same_residues(pairing: Pairing) -> Bool[np.ndarray, " r"]:
    """Return a mask of reference residues that the prediction has with the same type; unknown equals any type."""
    predicted, reference = pairing.predicted.aatype[pairing.place], pairing.reference.aatype
    return pairing.both & ((predicted == reference) | (predicted == UNKNOWN) | (reference == UNKNOWN))


def _in_contact(
    first: Pairing, second: Pairing, rows: Int[np.ndarray, " n"], columns: Int[np.ndarray, " n"]
) -> Bool[np.ndarray, " n"]:
    """Return whether pairs of predicted residues, by index in the references, have heavy atoms within 5 Angstrom."""
    points = []
    for pairing, residues in ((first, rows), (second, columns)):
        place = pairing.place[residues]
        has = pairing.predicted.atom_mask[place] > 0
        points.append(np.where(has[..., None], pairing.predicted.atom_positions[place].astype(np.float64), np.nan))
    squared = np.square(points[0][:, :, None] - points[1][:, None]).sum(-1)
    return np.asarray((squared < _CONTACT_DISTANCE**2).any((1, 2)))


def _backbone(
    pairing: Pairing, residues: Int[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, "a 3"], Float[np.ndarray, "a 3"]]:
    """Return predicted and true positions of the common backbone atoms of some residues."""
    predicted, reference, place = pairing.predicted, pairing.reference, pairing.place[residues]
    has = (predicted.atom_mask[place][:, _BACKBONE_ATOM_INDICES] > 0) & (
        reference.atom_mask[residues][:, _BACKBONE_ATOM_INDICES] > 0
    )
    return (
        predicted.atom_positions[place][:, _BACKBONE_ATOM_INDICES][has].astype(np.float64),
        reference.atom_positions[residues][:, _BACKBONE_ATOM_INDICES][has].astype(np.float64),
    )


def _heavy_atoms(chain: Chain) -> tuple[Float[np.ndarray, "a 3"], Int[np.ndarray, " a"]]:
    """Return the position in Angstrom and the residue index of each atom of a chain."""
    residue, slot = np.nonzero(chain.atom_mask > 0)
    return chain.atom_positions[residue, slot].astype(np.float64), residue
