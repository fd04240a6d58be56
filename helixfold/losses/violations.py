"""Violations of stereochemistry: peptide bonds and angles, clashes between residues, distances within residues.

AlphaFold 2, Suppl. Sec. 1.9.11.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from data_pipeline import stereochemistry as norms
from data_pipeline.residues import ATOM14_NAMES, ATOM14_TO_ATOM37, RESTYPES, UNKNOWN
from data_pipeline.stereochemistry import distance_bounds
from helixfold.losses.labels import Labels
from helixfold.model.batch import Batch, MultimerBatch
from helixfold.model.geometry.rigid import length
from helixfold.model.outputs import PredictedStructure
from helixfold.ops.device_properties import properties_of
from helixfold.ops.mask_bias import unmasked

_N, _CA, _C = 0, 1, 2  # atom14 slots
_BACKBONE = slice(_N, _C + 1)
_PROLINE = RESTYPES.index("P")
# Added to squared lengths, so that the root has a gradient if two atoms coincide.
_SMALL_BOND, _SMALL_DISTANCE = 1e-6, 1e-10
_COUNT_FLOOR = 1e-6  # added to counts (DeepMind's program)


@dataclass(frozen=True, kw_only=True)
class Violations:
    """Violations beyond the tolerances, in Angstrom (angles as cosines), and masks that are 1 at violations.

    `bond_c_n` and the angles are means over peptide bonds. `clashes` and `within` are sums for each atom: of its
    overlaps with other residues, and of deviations of its distances within its residue, each counted twice. A broken
    peptide bond counts for both residues in `connections_mask`. `residues_mask` is 1 for residues with any violation.
    """

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
    """Return the violation loss of the atoms of the last iteration (Suppl. Eq. 47).

    It is the mean excess of peptide bonds and of their two angles, plus the sum of `clashes` and `within` per atom.
    Tolerances are as in `violations`.
    """
    exists, tolerances = labels.atom14_atom_exists, (tolerance_factor, overlap_tolerance)
    asym_id = batch.asym_id if isinstance(batch, MultimerBatch) else None
    indices = _ResidueIndices(batch.residue_index, asym_id)
    deviations = _deviations(structure.atom14[-1], exists, labels.aatype, indices, tolerances)
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
    """Return the violations of atoms (Angstrom); residues with consecutive `residue_index` count as bonded.

    In a complex, `asym_id` is the index of each residue's chain, and bonds are within chains only. Bonds and angles may
    deviate by `tolerance_factor` standard deviations, other atoms may overlap by `overlap_tolerance` Angstrom.
    """
    tolerances = tolerance_factor, overlap_tolerance
    deviations = _deviations(atoms, exists, aatype, _ResidueIndices(residue_index, asym_id), tolerances)
    connections = (deviations.excess.detach() * deviations.counted).amax(0)
    clashes_mask, within_mask, broken = (
        (each.detach() > 0).to(exists.dtype) for each in (deviations.clashes, deviations.within, connections)
    )
    # Both residues of a bond count.
    connections_mask = torch.maximum(pad(broken, (0, 1)), pad(broken, (1, 0)))
    return Violations(
        bond_c_n=deviations.connections[0],
        angle_ca_c_n=deviations.connections[1],
        angle_c_n_ca=deviations.connections[2],
        connections_mask=connections_mask,
        clashes=deviations.clashes,
        clashes_mask=clashes_mask,
        within=deviations.within,
        within_mask=within_mask,
        residues_mask=torch.stack([connections_mask, clashes_mask.amax(-1), within_mask.amax(-1)]).amax(0),
    )


class _ResidueIndices(NamedTuple):
    """Index of each residue in its chain, and of its chain in the complex."""

    residue_index: Int[Tensor, "b r"]
    asym_id: Int[Tensor, "b r"] | None

    def are_neighbours(self) -> Bool[Tensor, "b bonds"]:
        """Return whether each residue is followed by the next residue of its chain."""
        numbers, chains = self
        consecutive = numbers[:, 1:] - numbers[:, :-1] == 1
        # Differs from AlphaFold: in DeepMind's program for complexes two chains are bonded if a crop makes the indices
        # of their last and first residues consecutive.
        return consecutive if chains is None else consecutive & (chains[:, 1:] == chains[:, :-1])


class _Deviations(NamedTuple):
    """Deviations from ideal geometry, from which `Violations` is computed.

    The dim of size 3 is the length of the peptide bond, its angle at C and its angle at N.
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
    indices: _ResidueIndices,
    tolerances: tuple[float, float],
) -> _Deviations:
    """Compute all deviations; `tolerances` are the factor of standard deviations and the overlap in Angstrom."""
    # Absent atoms never overlap.
    radius = torch.where(exists > 0, _radii(atoms.device)[aatype].to(atoms.dtype), -torch.inf)
    return _Deviations(
        *_connections(atoms, exists, aatype, indices.are_neighbours(), tolerances[0]),
        clashes=clashes(atoms, radius, indices.residue_index, tolerances[1], indices.asym_id),
        within=_within(atoms, exists, aatype, tolerances),
    )


def _connections(
    atoms: Float[Tensor, "b r 14 3"],
    exists: Float[Tensor, "b r 14"],
    aatype: Int[Tensor, "b r"],
    are_neighbours: Bool[Tensor, "b bonds"],
    tolerance_factor: float,
) -> tuple[Float[Tensor, "3 b bonds"], Float[Tensor, "3 b bonds"], Float[Tensor, "3 b"]]:
    """Return the excess of bonds and angles between residues, a mask of those that count, and the mean over these."""
    backbone = atoms[:, :, _BACKBONE]
    _, alpha_before, carbon = backbone[:, :-1].unbind(2)
    nitrogen, alpha_after, _ = backbone[:, 1:].unbind(2)
    # C to N, C to CA, N to CA
    bonds = torch.stack([nitrogen, alpha_before, alpha_after]) - torch.stack([carbon, carbon, nitrogen])
    lengths = length(bonds, _SMALL_BOND**0.5)
    directions = bonds / lengths[..., None]
    cosines = (directions[:1] * directions[1:]).sum(-1)  # the second is the negative cosine of the angle at N
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
    """Return for each atom the sum of violations of the distance bounds to other atoms of its residue."""
    lower, upper = (table[aatype] for table in _bounds(*tolerances, atoms.device))
    difference = rearrange(atoms, "b r a x -> b r a 1 x") - rearrange(atoms, "b r c x -> b r 1 c x")
    distance = length(difference, _SMALL_DISTANCE**0.5)
    excess = torch.relu(torch.maximum(lower - distance, distance - upper))
    # An atom has no bounds to itself. AlphaFold sums along rows and along columns. Distances are symmetric, so this is
    # twice the sum of a row.
    return 2 * exists * (excess @ exists[..., None]).squeeze(-1)


@cache
def _radii(device: torch.device) -> Float[Tensor, "21 14"]:
    """Return the radius of every atom by residue type."""
    return torch.tensor(norms.VAN_DER_WAALS_RADIUS[ATOM14_TO_ATOM37], device=device)


@cache
def _peptide_bonds(tolerance_factor: float, device: torch.device) -> Float[Tensor, "21 2 3"]:
    """Return means and tolerances by the type of a bond's second residue: length, cosine at C, negative cosine at N."""
    rows = []
    for residue in range(UNKNOWN + 1):
        bond = norms.C_N_LENGTH_TO_PROLINE if residue == _PROLINE else norms.C_N_LENGTH
        # As in the released code, the angle at C has the standard deviation of the bond length.
        deviations = bond.deviation, norms.C_N_LENGTH.deviation, norms.C_N_CA_COSINE.deviation
        means = bond.mean, norms.CA_C_N_COSINE.mean, -norms.C_N_CA_COSINE.mean
        rows.append((means, tuple(tolerance_factor * deviation for deviation in deviations)))
    return torch.tensor(rows, dtype=torch.float64, device=device)


@cache
def _bounds(
    tolerance_factor: float, overlap_tolerance: float, device: torch.device
) -> tuple[Float[Tensor, "21 14 14"], Float[Tensor, "21 14 14"]]:
    """Return the minimum and maximum distances of atom14 pairs by residue type; an atom has no bounds to itself."""
    lower, upper = (table.copy() for table in distance_bounds(tolerance_factor, overlap_tolerance))
    for table, value in ((lower, -np.inf), (upper, np.inf)):
        table[:, range(14), range(14)] = value
    return torch.tensor(lower, device=device), torch.tensor(upper, device=device)


_SULPHUR = ATOM14_NAMES[RESTYPES.index("C")].index("SG")
# Pairs of atoms that are computed at once: as many as fit into a CPU's cache, or 64 MiB of float32 on other devices.
_CPU_BLOCK, _LARGE_BLOCK = 2**15, 2**24


def clashes(
    atoms: Float[Tensor, "b r 14 3"],
    radius: Float[Tensor, "b r 14"],
    residue_index: Int[Tensor, "b r"],
    tolerance: float,
    asym_id: Int[Tensor, "b r"] | None = None,
) -> Float[Tensor, "b r 14"]:
    """Return for each atom the sum of overlaps beyond `tolerance` with atoms of other residues, in Angstrom (Eq. 46).

    `radius` is minus infinity for absent atoms. Residues with the same index count as one. Peptide bonds, which are
    within a chain of a complex (`asym_id`), and disulphide bonds are not overlaps.
    """
    residue = residue_index.to(atoms.dtype)[..., None].expand_as(radius)
    # A C and the N of the next residue have the same bond number, and all sulphurs share one. As in the released code,
    # the slot of cysteine's sulphur counts for every residue type.
    bond = torch.full_like(radius, torch.nan)
    # Bond numbers of different chains are different.
    bonded = residue[..., 0] if asym_id is None else residue[..., 0] + asym_id * (residue_index.amax() + 2)
    bond[..., _N], bond[..., _C], bond[..., _SULPHUR] = bonded, bonded + 1, torch.inf
    half = radius - tolerance / 2
    flat = (x.flatten(1, 2) for x in (atoms, half, residue, bond))
    overlaps: Tensor = _Overlaps.apply(*flat)
    return overlaps.view_as(radius)


class _Overlaps(torch.autograd.Function):
    """Sum of overlaps of each atom. Forward and backward compute a few atoms with all others at a time.

    Selecting the few pairs that overlap would make the host wait for a GPU, and autograd would save several tensors of
    all pairs, each 51 MB for 256 residues.
    """

    @staticmethod
    def forward(
        ctx: Any,
        points: Float[Tensor, "b n 3"],
        radius: Float[Tensor, "b n"],
        residue: Float[Tensor, "b n"],
        bond: Float[Tensor, "b n"],
    ) -> Float[Tensor, "b n"]:
        """Return each atom's sum of overlaps with all others, except within a residue or a bond.

        `radius` is reduced by half the tolerance, and -inf for absent atoms. Atoms with equal `residue` or equal `bond`
        do not overlap; NaN in `bond` is no bond.
        """
        total = torch.zeros_like(radius)
        indices = unmasked(radius > -torch.inf)
        atoms = _Atoms(points[:, indices], radius[:, indices], residue[:, indices], bond[:, indices])
        total[:, indices] = torch.cat([_pairs(atoms, rows)[2].sum(-1) for rows in atoms.blocks()], 1)
        ctx.save_for_backward(points, radius, residue, bond, total)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, "b n"]) -> tuple[Tensor | None, ...]:
        points, radius, residue, bond, total = ctx.saved_tensors
        indices = unmasked(total > 0)
        atoms = _Atoms(points[:, indices], radius[:, indices], residue[:, indices], bond[:, indices])
        grad_points = torch.zeros_like(points)
        grad_points[:, indices] = torch.cat([_gradient(atoms, rows, grad[:, indices]) for rows in atoms.blocks()], 1)
        return grad_points, None, None, None


class _Atoms(NamedTuple):
    """Positions and radii of atoms, and their residue and bond numbers; pairs with an equal number do not count."""

    points: Float[Tensor, "b n 3"]
    radius: Float[Tensor, "b n"]
    residue: Float[Tensor, "b n"]
    bond: Float[Tensor, "b n"]

    def blocks(self) -> list[slice]:
        """Return slices of atoms; the pairs of a slice with all atoms are computed at once."""
        b, n = self.radius.shape
        block = _CPU_BLOCK if properties_of(self.radius.device).kind == "cpu" else _LARGE_BLOCK
        size = max(1, block // max(1, b * n))
        return [slice(start, start + size) for start in range(0, max(n, 1), size)]


def _pairs(
    atoms: _Atoms, rows: slice
) -> tuple[Float[Tensor, "3 b p n"], Float[Tensor, "b p n"], Float[Tensor, "b p n"]]:
    """Return the differences, distances and overlaps of some atoms p and all atoms."""
    points, radius, residue, bond = atoms
    coordinates = rearrange(points, "b n x -> x b n").contiguous()
    difference = coordinates[:, :, rows, None] - coordinates[:, :, None]
    distance = difference.square().sum(0).add_(_SMALL_DISTANCE).sqrt_()
    overlap = (radius[:, rows, None] + radius[:, None]).sub_(distance).clamp_(min=0)
    overlap.masked_fill_(residue[:, rows, None] == residue[:, None], 0)
    overlap.masked_fill_(bond[:, rows, None] == bond[:, None], 0)
    return difference, distance, overlap


def _gradient(atoms: _Atoms, rows: slice, grad: Float[Tensor, "b n"]) -> Float[Tensor, "b p 3"]:
    """Return the gradient of the positions of some atoms; `grad` is the gradient of each atom's sum of overlaps."""
    difference, distance, overlap = _pairs(atoms, rows)
    # The overlap of a pair counts for both atoms and decreases with their distance.
    slope = torch.add(grad[:, rows, None], grad[:, None]).div_(distance).mul_(overlap > 0)
    return rearrange(difference.mul_(slope).sum(-1), "x b p -> b p x").neg()
