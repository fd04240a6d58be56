"""Violations of stereochemistry: peptide bonds and angles, clashes between residues, and distances within residues.

AlphaFold 2, Suppl. Sec. 1.9.11.
"""

from dataclasses import dataclass
from functools import cache

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from data_pipeline import stereochemistry as norms
from data_pipeline.residues import RESTYPES, UNKNOWN
from data_pipeline.stereochemistry import MeanAndDeviation, distance_bounds
from helixfold.batch import Batch
from helixfold.geometry.tables import per_residue
from helixfold.losses.clashes import clashes
from helixfold.losses.labels import Labels
from helixfold.model.outputs import PredictedStructure

_N, _CA, _C = 0, 1, 2  # atom14 slots
_PROLINE = RESTYPES.index("P")
# Added to squared lengths, so that their roots have a gradient where two atoms coincide.
_SMALL_BOND, _SMALL_DISTANCE = 1e-6, 1e-10


@dataclass(frozen=True, kw_only=True)
class Violations:
    """Violations beyond the tolerances in Angstrom (angles as cosines), and masks that are 1 at violations."""

    bond_c_n: Float[Tensor, " b"]  # mean over bonds, Suppl. Eq. 44
    angle_ca_c_n: Float[Tensor, " b"]  # means over angles, Suppl. Eq. 45
    angle_c_n_ca: Float[Tensor, " b"]
    connections_mask: Float[Tensor, "b r"]  # peptide bonds and their angles; both residues of a bond count
    clashes: Float[Tensor, "b r 14"]  # Suppl. Eq. 46, atoms of different residues; a pair counts for both atoms
    clashes_mask: Float[Tensor, "b r 14"]
    within: Float[Tensor, "b r 14"]  # Suppl. Eq. 46, atoms of one residue; a pair counts twice for both atoms
    within_mask: Float[Tensor, "b r 14"]
    residues_mask: Float[Tensor, "b r"]  # any of the above


def violation_loss(
    structure: PredictedStructure,
    labels: Labels,
    batch: Batch,
    *,
    tolerance_factor: float = 12.0,
    overlap_tolerance: float = 1.5,
) -> Float[Tensor, " b"]:
    """Return the violation loss of the structure module's last atoms (Suppl. Eq. 47)."""
    exists = labels.atom14_atom_exists
    found = violations(
        structure.atom14[-1],
        exists,
        labels.aatype,
        batch.residue_index,
        tolerance_factor=tolerance_factor,
        overlap_tolerance=overlap_tolerance,
    )
    per_atom = (found.clashes + found.within).sum((1, 2)) / (exists.sum((1, 2)) + 1e-6)
    return found.bond_c_n + found.angle_ca_c_n + found.angle_c_n_ca + per_atom


def violations(
    atoms: Float[Tensor, "b r 14 3"],
    exists: Float[Tensor, "b r 14"],
    aatype: Int[Tensor, "b r"],
    residue_index: Int[Tensor, "b r"],
    *,
    tolerance_factor: float = 12.0,
    overlap_tolerance: float = 1.5,
) -> Violations:
    """Return the violations of these atoms (Angstrom); residues with consecutive `residue_index` count as bonded.

    Bonds and angles may deviate by `tolerance_factor` standard deviations, other atoms may overlap by
    `overlap_tolerance`.
    """
    bonds = _connections(atoms, exists, aatype, residue_index, tolerance_factor)
    # Absent atoms overlap with no other.
    radius = torch.where(exists > 0, _radii(atoms.device)[per_residue("ATOM14_TO_ATOM37", aatype)], -torch.inf)
    overlaps = clashes(atoms, radius.to(atoms.dtype), residue_index, overlap_tolerance)
    within = _within(atoms, exists, aatype, tolerance_factor, overlap_tolerance)
    clashes_mask = (overlaps.detach() > 0).to(overlaps.dtype)
    within_mask = (within.detach() > 0).to(within.dtype)
    return Violations(
        **bonds,
        clashes=overlaps,
        clashes_mask=clashes_mask,
        within=within,
        within_mask=within_mask,
        residues_mask=torch.stack([bonds["connections_mask"], clashes_mask.amax(-1), within_mask.amax(-1)]).amax(0),
    )


def _connections(
    atoms: Float[Tensor, "b r 14 3"],
    exists: Float[Tensor, "b r 14"],
    aatype: Int[Tensor, "b r"],
    residue_index: Int[Tensor, "b r"],
    tolerance_factor: float,
) -> dict[str, Tensor]:
    """Return the fields of `Violations` about peptide bonds between residues, and about their angles."""
    ca, c = atoms[:, :-1, _CA], atoms[:, :-1, _C]
    next_n, next_ca = atoms[:, 1:, _N], atoms[:, 1:, _CA]
    has_ca, has_c = exists[:, :-1, _CA], exists[:, :-1, _C]
    has_next_n, has_next_ca = exists[:, 1:, _N], exists[:, 1:, _CA]
    follows = (residue_index[:, 1:] - residue_index[:, :-1] == 1).to(exists.dtype)

    length, c_to_n = _length_and_direction(next_n - c)
    _, c_to_ca = _length_and_direction(ca - c)
    _, n_to_ca = _length_and_direction(next_ca - next_n)
    mean, deviation = _bond_lengths(atoms.device)[aatype[:, 1:]].to(atoms.dtype).unbind(-1)
    # The released code uses the standard deviation of the bond's length for the angle at C.
    at_c = MeanAndDeviation(norms.CA_C_N_COSINE.mean, norms.C_N_LENGTH.deviation)
    at_n = norms.C_N_CA_COSINE
    excess = [
        _excess(length - mean, tolerance_factor * deviation),
        _excess((c_to_ca * c_to_n).sum(-1) - at_c.mean, tolerance_factor * at_c.deviation),
        _excess((-c_to_n * n_to_ca).sum(-1) - at_n.mean, tolerance_factor * at_n.deviation),
    ]
    has_atoms = [has_c * has_next_n, has_ca * has_c * has_next_n, has_c * has_next_n * has_next_ca]
    counted = [has * follows for has in has_atoms]
    means = [(mask * value).sum(-1) / (mask.sum(-1) + 1e-6) for mask, value in zip(counted, excess, strict=True)]
    violated = torch.stack([mask * (value > 0) for mask, value in zip(counted, excess, strict=True)])
    mask = violated.detach().amax(0)
    return {
        "bond_c_n": means[0],
        "angle_ca_c_n": means[1],
        "angle_c_n_ca": means[2],
        "connections_mask": torch.maximum(pad(mask, (0, 1)), pad(mask, (1, 0))),
    }


def _within(
    atoms: Float[Tensor, "b r 14 3"],
    exists: Float[Tensor, "b r 14"],
    aatype: Int[Tensor, "b r"],
    tolerance_factor: float,
    overlap_tolerance: float,
) -> Float[Tensor, "b r 14"]:
    """Return the sum of each atom's violations of the distance bounds to other atoms of its residue."""
    least, most = (table[aatype] for table in _bounds(tolerance_factor, overlap_tolerance, atoms.device))
    difference = rearrange(atoms, "b r a x -> b r a 1 x") - rearrange(atoms, "b r c x -> b r 1 c x")
    distance = (difference.square().sum(-1) + _SMALL_DISTANCE).sqrt()
    pairs = exists[..., :, None] * exists[..., None, :] * (1 - torch.eye(14, device=exists.device))
    # AlphaFold sums along rows and along columns; distances are symmetric, so that is twice the sum of a row.
    return 2 * (pairs * (torch.relu(least - distance) + torch.relu(distance - most))).sum(-1)


def _length_and_direction(vector: Float[Tensor, "b r 3"]) -> tuple[Float[Tensor, "b r"], Float[Tensor, "b r 3"]]:
    length = (vector.square().sum(-1) + _SMALL_BOND).sqrt()
    return length, vector / length[..., None]


def _excess(error: Float[Tensor, "b r"], tolerated: float | Float[Tensor, "b r"]) -> Float[Tensor, "b r"]:
    return torch.relu((error.square() + _SMALL_BOND).sqrt() - tolerated)


@cache
def _radii(device: torch.device) -> Float[Tensor, "37"]:
    return torch.tensor(norms.VAN_DER_WAALS_RADIUS, device=device)


@cache
def _bond_lengths(device: torch.device) -> Float[Tensor, "21 2"]:
    """Return the mean and deviation of the peptide bond's length, by the type of its second residue."""
    lengths = [norms.C_N_LENGTH_TO_PROLINE if each == _PROLINE else norms.C_N_LENGTH for each in range(UNKNOWN + 1)]
    return torch.tensor(lengths, dtype=torch.float64, device=device)


@cache
def _bounds(
    tolerance_factor: float, overlap_tolerance: float, device: torch.device
) -> tuple[Float[Tensor, "21 14 14"], Float[Tensor, "21 14 14"]]:
    least, most = distance_bounds(tolerance_factor, overlap_tolerance)
    return torch.tensor(least, device=device), torch.tensor(most, device=device)
