"""Find where a structure breaks the rules of chemistry: bonds and angles between residues, clashes, residue shapes.

AlphaFold 2, Suppl. Sec. 1.9.11.
"""

from dataclasses import dataclass
from functools import cache

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from data_pipeline import stereochemistry as norms
from data_pipeline.residues import ATOM14_NAMES, RESTYPES
from data_pipeline.stereochemistry import Norm, distance_bounds
from helixfold.batch import Batch
from helixfold.geometry.tables import per_residue
from helixfold.losses.labels import Labels
from helixfold.model.outputs import Structure

_N, _CA, _C = 0, 1, 2  # slots of every residue type
_PROLINE = RESTYPES.index("P")
_SULPHUR = ATOM14_NAMES[RESTYPES.index("C")].index("SG")
# Kept small beside squared lengths, so that roots have a gradient where two atoms coincide.
_SMALL_BOND, _SMALL_DISTANCE = 1e-6, 1e-10
_EXTREME = 1.5  # Angstrom that two neighbours' CA may be further apart than in a trans peptide
_SLAB_ELEMENTS = 2**20  # distances looked at at a time: 4 MiB, while everything else is held for the gradients


@dataclass(frozen=True, kw_only=True)
class Violations:
    """Distances of each sample's atoms beyond what is tolerated (Angstrom; angles as cosines), and masks of which are.

    The masks are 1 where a bound is crossed.
    """

    bond_c_n: Float[Tensor, " b"]  # mean over bonds, Eq. 44
    angle_ca_c_n: Float[Tensor, " b"]  # means over angles, Eq. 45
    angle_c_n_ca: Float[Tensor, " b"]
    connections: Float[Tensor, "b r"]  # half of what each bond and its two angles are off, for either residue
    connections_mask: Float[Tensor, "b r"]
    clash: Float[Tensor, " b"]  # mean over all pairs of atoms of different residues
    clashes: Float[Tensor, "b r 14"]  # Eq. 46, atoms of different residues; each pair counts for both its atoms
    clashes_mask: Float[Tensor, "b r 14"]
    within: Float[Tensor, "b r 14"]  # Eq. 46, atoms of one residue; each pair counts twice for both
    within_mask: Float[Tensor, "b r 14"]
    residues_mask: Float[Tensor, "b r"]  # any of the above
    extreme_ca_ca: Float[Tensor, " b"]  # share of neighbours that are far too far apart

    def shares(self, seq_mask: Float[Tensor, "b r"]) -> dict[str, Float[Tensor, " b"]]:
        """Return the share of residues with each kind of violation, by kind."""
        masks = {
            "between_residue_bond": self.connections_mask,
            "between_residue_clash": self.clashes_mask.amax(-1),
            "within_residue": self.within_mask.amax(-1),
            "per_residue": self.residues_mask,
        }
        return {
            **{name: _mean(seq_mask, mask, 1e-10) for name, mask in masks.items()},
            "extreme_ca_ca_distance": self.extreme_ca_ca,
        }


def violation_loss(
    structure: Structure,
    labels: Labels,
    batch: Batch,
    *,
    tolerance_factor: float = 12.0,
    overlap_tolerance: float = 1.5,
) -> Float[Tensor, " b"]:
    """Return the violations of the structure module's last atoms as one number (Suppl. Eq. 47)."""
    exists = labels.atom14_atom_exists
    found = violations(
        structure.atom14[-1],
        exists,
        labels.aatype,
        batch.residue_index,
        batch.seq_mask,
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
    seq_mask: Float[Tensor, "b r"],
    *,
    tolerance_factor: float = 12.0,
    overlap_tolerance: float = 1.5,
) -> Violations:
    """Return what is wrong with these atoms (Angstrom); residues whose numbers follow each other count as bonded.

    Bonds and angles may be `tolerance_factor` standard deviations off, other atoms overlap by `overlap_tolerance`.
    """
    bonds = _connections(atoms, exists, aatype, residue_index, seq_mask, tolerance_factor=tolerance_factor)
    clash, clashes = _clashes(atoms, exists, aatype, residue_index, overlap_tolerance)
    within = _within(atoms, exists, aatype, tolerance_factor, overlap_tolerance)
    clashes_mask = (clashes.detach() > 0).to(clashes.dtype)
    within_mask = (within.detach() > 0).to(within.dtype)
    return Violations(
        **bonds,
        clash=clash,
        clashes=clashes,
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
    seq_mask: Float[Tensor, "b r"],
    *,
    tolerance_factor: float,
) -> dict[str, Tensor]:
    """Return the part of `Violations` about the peptide bond between each residue and the next and its two angles."""
    ca, c = atoms[:, :-1, _CA], atoms[:, :-1, _C]
    next_n, next_ca = atoms[:, 1:, _N], atoms[:, 1:, _CA]
    has_ca, has_c = exists[:, :-1, _CA], exists[:, :-1, _C]
    has_next_n, has_next_ca = exists[:, 1:, _N], exists[:, 1:, _CA]
    follows = (residue_index[:, 1:] - residue_index[:, :-1] == 1).to(exists.dtype)

    length, c_to_n = _length_and_direction(next_n - c)
    _, c_to_ca = _length_and_direction(ca - c)
    _, n_to_ca = _length_and_direction(next_ca - next_n)
    to_proline = aatype[:, 1:] == _PROLINE
    mean, deviation = (
        torch.where(to_proline, length.new_tensor(proline), length.new_tensor(other))
        for proline, other in zip(norms.C_N_LENGTH_TO_PROLINE, norms.C_N_LENGTH, strict=True)
    )
    # The released code tolerates at C as many standard deviations of the bond's length, not of this angle's cosine.
    at_c = Norm(norms.CA_C_N_COSINE.mean, norms.C_N_LENGTH.deviation)
    at_n = norms.C_N_CA_COSINE
    off = [
        _excess(length - mean, tolerance_factor * deviation),
        _excess((c_to_ca * c_to_n).sum(-1) - at_c.mean, tolerance_factor * at_c.deviation),
        _excess((-c_to_n * n_to_ca).sum(-1) - at_n.mean, tolerance_factor * at_n.deviation),
    ]
    atoms_there = [has_c * has_next_n, has_ca * has_c * has_next_n, has_c * has_next_n * has_next_ca]
    means = [_mean(there * follows, value, 1e-6) for there, value in zip(atoms_there, off, strict=True)]

    # As in the released code, gaps in the numbering and absent atoms count here. Neither loss nor masks read it.
    sums = 0.5 * seq_mask[:, :-1] * seq_mask[:, 1:] * (off[0] + off[1] + off[2])
    crossed = torch.stack([there * follows * (value > 0) for there, value in zip(atoms_there, off, strict=True)])
    mask = crossed.detach().amax(0)
    far = ((next_ca - ca).square().sum(-1) + _SMALL_BOND).sqrt() - norms.CA_CA_DISTANCE > _EXTREME
    return {
        "bond_c_n": means[0],
        "angle_ca_c_n": means[1],
        "angle_c_n_ca": means[2],
        "connections": pad(sums, (0, 1)) + pad(sums, (1, 0)),
        "connections_mask": torch.maximum(pad(mask, (0, 1)), pad(mask, (1, 0))),
        "extreme_ca_ca": _mean(has_ca * has_next_ca * follows, far.to(exists.dtype), 1e-10),
    }


def _clashes(
    atoms: Float[Tensor, "b r 14 3"],
    exists: Float[Tensor, "b r 14"],
    aatype: Int[Tensor, "b r"],
    residue_index: Int[Tensor, "b r"],
    overlap_tolerance: float,
) -> tuple[Float[Tensor, " b"], Float[Tensor, "b r 14"]]:
    """Return by how much atoms of different residues overlap: mean over all pairs, and the sum of each atom.

    Only pairs that clash have a value or a gradient. They are few of many millions, so they are looked for slab by slab
    and without gradients, and only what is found is computed with.
    """
    radius = _radii(atoms.device)[per_residue("ATOM14_TO_ATOM37", aatype)]
    # An atom that is not there overlaps with none.
    radius = torch.where(exists > 0, radius, -torch.inf).flatten()
    one, other = _clashing(atoms.detach(), radius.view_as(exists), residue_index, overlap_tolerance)
    flat = atoms.flatten(0, 2)
    squared = (_rows(flat, one) - _rows(flat, other)).square().sum(-1)
    overlap = torch.relu(radius[one] + radius[other] - overlap_tolerance - (squared + _SMALL_DISTANCE).sqrt())
    sums = overlap.new_zeros(len(flat)).scatter_add(0, torch.cat([one, other]), overlap.repeat(2)).view_as(exists)
    # Each pair stands in the sums of two atoms.
    return sums.sum((1, 2)) / 2 / (_pairs(exists, residue_index) + 1e-6), sums


@torch.no_grad()
def _clashing(
    atoms: Float[Tensor, "b r 14 3"],
    radius: Float[Tensor, "b r 14"],
    residue_index: Int[Tensor, "b r"],
    overlap_tolerance: float,
) -> tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"]]:
    """Return the two atoms of each pair that may clash, numbered through the batch; in the order of the chain."""
    b, r, _ = radius.shape
    everything, reach = atoms.flatten(1, 2), radius.flatten(1) - overlap_tolerance + 1e-3
    found = []
    size = max(1, _SLAB_ELEMENTS // max(1, b * r * 14 * 14))
    for start in range(0, r, size):
        slab = slice(start, min(start + size, r))
        # Not by way of a matrix product: that would lose the digits that decide.
        distance = torch.cdist(atoms[:, slab].flatten(1, 2), everything, compute_mode="donot_use_mm_for_euclid_dist")
        close = distance < radius[:, slab].flatten(1)[..., None] + reach[:, None]
        close = rearrange(close, "b (i a) (j c) -> b i a j c", a=14, c=14)
        close &= _in_order(residue_index[:, slab], residue_index)[:, :, None, :, None]
        bonded = residue_index[:, slab, None] + 1 == residue_index[:, None]
        close[:, :, _C, :, _N] &= ~bonded
        # As in the released code: of any two residues with an atom in the slot of cysteine's sulphur, not of two
        # cysteines alone.
        close[:, :, _SULPHUR, :, _SULPHUR] = False
        # Of tensors without numbers nothing is known: as if every residue clashed once.
        places = close.new_empty(b * r, 5, dtype=torch.int64) if close.is_meta else close.nonzero()
        sample, i, a, j, c = places.unbind(1)
        found.append(((sample * r + start + i) * 14 + a, (sample * r + j) * 14 + c))
    one, other = (torch.cat(part) for part in zip(*found, strict=True))
    return one, other


@torch.no_grad()
def _pairs(exists: Float[Tensor, "b r 14"], residue_index: Int[Tensor, "b r"]) -> Float[Tensor, " b"]:
    """Return the number of pairs of atoms that `_clashing` looks at."""
    in_order = _in_order(residue_index, residue_index).to(exists.dtype)
    bonded = (residue_index[:, :, None] + 1 == residue_index[:, None]).to(exists.dtype)
    atoms, sulphur = exists.sum(-1), exists[..., _SULPHUR]
    pairs = torch.einsum("b i, b j, b i j -> b", atoms, atoms, in_order)
    pairs -= torch.einsum("b i, b j, b i j -> b", exists[..., _C], exists[..., _N], bonded)
    return pairs - torch.einsum("b i, b j, b i j -> b", sulphur, sulphur, in_order)


def _in_order(one: Int[Tensor, "b i"], other: Int[Tensor, "b j"]) -> Bool[Tensor, "b i j"]:
    return one[:, :, None] < other[:, None]


def _within(
    atoms: Float[Tensor, "b r 14 3"],
    exists: Float[Tensor, "b r 14"],
    aatype: Int[Tensor, "b r"],
    tolerance_factor: float,
    overlap_tolerance: float,
) -> Float[Tensor, "b r 14"]:
    """Return by how much each atom is nearer to others of its residue, or further away, than bonds and radii allow."""
    least, most = (table[aatype] for table in _bounds(tolerance_factor, overlap_tolerance, atoms.device))
    difference = rearrange(atoms, "b r a x -> b r a 1 x") - rearrange(atoms, "b r c x -> b r 1 c x")
    distance = (difference.square().sum(-1) + _SMALL_DISTANCE).sqrt()
    there = exists[..., :, None] * exists[..., None, :] * (1 - torch.eye(14, device=exists.device))
    # Distances are symmetric: what AlphaFold adds up along rows and columns is twice the sum of a row.
    return 2 * (there * (torch.relu(least - distance) + torch.relu(distance - most))).sum(-1)


def _length_and_direction(vector: Float[Tensor, "b r 3"]) -> tuple[Float[Tensor, "b r"], Float[Tensor, "b r 3"]]:
    length = (vector.square().sum(-1) + _SMALL_BOND).sqrt()
    return length, vector / length[..., None]


def _excess(error: Float[Tensor, "b r"], tolerated: float | Float[Tensor, "b r"]) -> Float[Tensor, "b r"]:
    return torch.relu((error.square() + _SMALL_BOND).sqrt() - tolerated)


@cache
def _radii(device: torch.device) -> Float[Tensor, "37"]:
    return torch.tensor(norms.VAN_DER_WAALS_RADIUS, device=device)


@cache
def _bounds(
    tolerance_factor: float, overlap_tolerance: float, device: torch.device
) -> tuple[Float[Tensor, "21 14 14"], Float[Tensor, "21 14 14"]]:
    least, most = distance_bounds(tolerance_factor, overlap_tolerance)
    return torch.tensor(least, device=device), torch.tensor(most, device=device)


def _rows(table: Float[Tensor, "n c"], index: Int[Tensor, " pairs"]) -> Float[Tensor, "pairs c"]:
    # Not `table[index]`: the sums of its gradient come in an order that changes from run to run.
    return table.gather(0, index[:, None].expand(-1, table.shape[1]))


def _mean(mask: Float[Tensor, "b r"], value: Float[Tensor, "b r"], small: float) -> Float[Tensor, " b"]:
    return (mask * value).sum(-1) / (mask.sum(-1) + small)
