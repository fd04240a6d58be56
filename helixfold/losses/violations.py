"""Violations of stereochemistry: peptide bonds and angles, clashes between residues, and distances within residues.

AlphaFold 2, Suppl. Sec. 1.9.11.
"""

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from data_pipeline import stereochemistry as norms
from data_pipeline.residues import ATOM14_TO_ATOM37, RESTYPES, UNKNOWN
from data_pipeline.stereochemistry import distance_bounds
from helixfold.batch import Batch, MultimerBatch
from helixfold.geometry.rigid import length
from helixfold.losses.clashes import clashes
from helixfold.losses.labels import Labels
from helixfold.model.outputs import PredictedStructure

_N, _CA, _C = 0, 1, 2  # atom14 slots
_BACKBONE = slice(_N, _C + 1)
_PROLINE = RESTYPES.index("P")
# Added to squared lengths, so that their roots have a gradient where two atoms coincide.
_SMALL_BOND, _SMALL_DISTANCE = 1e-6, 1e-10
_COUNT_FLOOR = 1e-6  # added to counts (DeepMind's program)


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
    exists, tolerances = labels.atom14_atom_exists, (tolerance_factor, overlap_tolerance)
    asym_id = batch.asym_id if isinstance(batch, MultimerBatch) else None
    numbers = _Numbers(batch.residue_index, asym_id)
    deviations = _deviations(structure.atom14[-1], exists, labels.aatype, numbers, tolerances)
    per_atom = (deviations.clashes + deviations.within).sum((1, 2)) / (exists.sum((1, 2)) + _COUNT_FLOOR)
    return deviations.connections.sum(0) + per_atom


def violations(
    atoms: Float[Tensor, "b r 14 3"],
    exists: Float[Tensor, "b r 14"],
    aatype: Int[Tensor, "b r"],
    residue_index: Int[Tensor, "b r"],
    *,
    asym_id: Int[Tensor, "b r"] | None = None,
    tolerance_factor: float = 12.0,
    overlap_tolerance: float = 1.5,
) -> Violations:
    """Return the violations of these atoms (Angstrom); residues with consecutive `residue_index` count as bonded.

    In a complex, `asym_id` has the number of each residue's chain, and bonds are within chains only. Bonds and angles
    may deviate by `tolerance_factor` standard deviations, other atoms may overlap by `overlap_tolerance`.
    """
    tolerances = tolerance_factor, overlap_tolerance
    found = _deviations(atoms, exists, aatype, _Numbers(residue_index, asym_id), tolerances)
    connections = (found.excess.detach() * found.counted).amax(0)
    clashes_mask, within_mask, broken = (
        (each.detach() > 0).to(exists.dtype) for each in (found.clashes, found.within, connections)
    )
    # Both residues of a bond count.
    connections_mask = torch.maximum(pad(broken, (0, 1)), pad(broken, (1, 0)))
    return Violations(
        bond_c_n=found.connections[0],
        angle_ca_c_n=found.connections[1],
        angle_c_n_ca=found.connections[2],
        connections_mask=connections_mask,
        clashes=found.clashes,
        clashes_mask=clashes_mask,
        within=found.within,
        within_mask=within_mask,
        residues_mask=torch.stack([connections_mask, clashes_mask.amax(-1), within_mask.amax(-1)]).amax(0),
    )


class _Numbers(NamedTuple):
    """Each residue's number within its chain, and its chain's number in a complex."""

    residue_index: Int[Tensor, "b r"]
    asym_id: Int[Tensor, "b r"] | None

    def are_neighbours(self) -> Bool[Tensor, "b bonds"]:
        """Return which residues are followed by the next one of their chain."""
        numbers, chains = self
        consecutive = numbers[:, 1:] - numbers[:, :-1] == 1
        # Differs from AlphaFold: DeepMind's program of complexes sees a bond between two chains if a crop makes the
        # numbers of the last residue of one and of the first residue of the next consecutive.
        return consecutive if chains is None else consecutive & (chains[:, 1:] == chains[:, :-1])


class _Deviations(NamedTuple):
    """Deviations from ideal geometry, of which `Violations` is made.

    The dimension of 3 has the peptide bond's length, its angle at C, and its angle at N.
    """

    excess: Float[Tensor, "3 b bonds"]
    counted: Float[Tensor, "3 b bonds"]
    connections: Float[Tensor, "3 b"]
    clashes: Float[Tensor, "b r 14"]
    within: Float[Tensor, "b r 14"]


def _deviations(
    atoms: Float[Tensor, "b r 14 3"],
    exists: Float[Tensor, "b r 14"],
    aatype: Int[Tensor, "b r"],
    numbers: _Numbers,
    tolerances: tuple[float, float],
) -> _Deviations:
    # Absent atoms overlap with no other.
    radius = torch.where(exists > 0, _radii(atoms.device)[aatype].to(atoms.dtype), -torch.inf)
    return _Deviations(
        *_connections(atoms, exists, aatype, numbers.are_neighbours(), tolerances[0]),
        clashes=clashes(atoms, radius, numbers.residue_index, tolerances[1], numbers.asym_id),
        within=_within(atoms, exists, aatype, tolerances),
    )


def _connections(
    atoms: Float[Tensor, "b r 14 3"],
    exists: Float[Tensor, "b r 14"],
    aatype: Int[Tensor, "b r"],
    are_neighbours: Bool[Tensor, "b bonds"],
    tolerance_factor: float,
) -> tuple[Float[Tensor, "3 b bonds"], Float[Tensor, "3 b bonds"], Float[Tensor, "3 b"]]:
    """Return what bonds and angles between residues exceed, which of them count, and their means over these."""
    backbone = atoms[:, :, _BACKBONE]
    _, alpha_before, carbon = backbone[:, :-1].unbind(2)
    nitrogen, alpha_after, _ = backbone[:, 1:].unbind(2)
    # C to N, C to CA, N to CA
    bonds = torch.stack([nitrogen, alpha_before, alpha_after]) - torch.stack([carbon, carbon, nitrogen])
    lengths = length(bonds, _SMALL_BOND**0.5)
    directions = bonds / lengths[..., None]
    cosines = (directions[:1] * directions[1:]).sum(-1)  # the second is minus the cosine of the angle at N
    norm, tolerated = _peptide_bonds(tolerance_factor, atoms.device)[aatype[:, 1:]].to(atoms.dtype).unbind(-2)
    error = torch.cat([lengths[:1], cosines]) - rearrange(norm, "b r n -> n b r")
    excess = torch.relu(length(error[..., None], _SMALL_BOND**0.5) - rearrange(tolerated, "b r n -> n b r"))
    has_bond = exists[:, :-1, _C] * exists[:, 1:, _N] * are_neighbours
    counted = torch.stack([has_bond, has_bond * exists[:, :-1, _CA], has_bond * exists[:, 1:, _CA]])
    return excess, counted, (counted * excess).sum(-1) / (counted.sum(-1) + _COUNT_FLOOR)


def _within(
    atoms: Float[Tensor, "b r 14 3"],
    exists: Float[Tensor, "b r 14"],
    aatype: Int[Tensor, "b r"],
    tolerances: tuple[float, float],
) -> Float[Tensor, "b r 14"]:
    """Return the sum of each atom's violations of the distance bounds to other atoms of its residue."""
    least, most = (table[aatype] for table in _bounds(*tolerances, atoms.device))
    difference = rearrange(atoms, "b r a x -> b r a 1 x") - rearrange(atoms, "b r c x -> b r 1 c x")
    distance = length(difference, _SMALL_DISTANCE**0.5)
    excess = torch.relu(torch.maximum(least - distance, distance - most))
    # An atom and itself have no bounds. AlphaFold sums along rows and along columns; distances are symmetric, so that
    # is twice the sum of a row.
    return 2 * exists * (excess @ exists[..., None]).squeeze(-1)


@cache
def _radii(device: torch.device) -> Float[Tensor, "21 14"]:
    """Return the radius of every atom by residue type."""
    return torch.tensor(norms.VAN_DER_WAALS_RADIUS[ATOM14_TO_ATOM37], device=device)


@cache
def _peptide_bonds(tolerance_factor: float, device: torch.device) -> Float[Tensor, "21 2 3"]:
    """Return norms and tolerances by the type of a bond's second residue: length, cosine at C, minus cosine at N."""
    rows = []
    for residue in range(UNKNOWN + 1):
        bond = norms.C_N_LENGTH_TO_PROLINE if residue == _PROLINE else norms.C_N_LENGTH
        # The released code uses the standard deviation of the bond's length for the angle at C.
        deviations = bond.deviation, norms.C_N_LENGTH.deviation, norms.C_N_CA_COSINE.deviation
        means = bond.mean, norms.CA_C_N_COSINE.mean, -norms.C_N_CA_COSINE.mean
        rows.append((means, tuple(tolerance_factor * deviation for deviation in deviations)))
    return torch.tensor(rows, dtype=torch.float64, device=device)


@cache
def _bounds(
    tolerance_factor: float, overlap_tolerance: float, device: torch.device
) -> tuple[Float[Tensor, "21 14 14"], Float[Tensor, "21 14 14"]]:
    least, most = (table.copy() for table in distance_bounds(tolerance_factor, overlap_tolerance))
    for table, value in ((least, -np.inf), (most, np.inf)):
        table[:, range(14), range(14)] = value
    return torch.tensor(least, device=device), torch.tensor(most, device=device)
