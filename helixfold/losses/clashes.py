"""Overlaps of atoms of different residues, computed block by block without a search for the pairs that overlap."""

from typing import Any, NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from data_pipeline.residues import ATOM14_NAMES, RESTYPES
from helixfold.ops.card import card_of
from helixfold.ops.mask_bias import unmasked

_N, _C = 0, 2  # atom14 slots
_SULPHUR = ATOM14_NAMES[RESTYPES.index("C")].index("SG")
# Added to squared distances, so that their roots have a gradient where two atoms coincide (DeepMind's program).
_SMALL_DISTANCE = 1e-10
# Pairs of atoms computed at once: as many as a CPU's cache holds, on other devices 64 MiB in float32 per tensor.
_CPU_BLOCK, _LARGE_BLOCK = 2**15, 2**24


def clashes(
    atoms: Float[Tensor, "b r 14 3"],
    radius: Float[Tensor, "b r 14"],
    residue_index: Int[Tensor, "b r"],
    tolerance: float,
    asym_id: Int[Tensor, "b r"] | None = None,
) -> Float[Tensor, "b r 14"]:
    """Return the sum of each atom's overlaps with atoms of other residues beyond `tolerance` (Suppl. Eq. 46), Angstrom.

    `radius` is minus infinity for absent atoms, which overlap with no other. Residues with the same index count as one.
    Peptide bonds, which are within a chain of a complex (`asym_id`), and disulphide bonds are no overlaps.
    """
    residue = residue_index.to(atoms.dtype)[..., None].expand_as(radius)
    # A C and the N of the next residue have the same number, all sulphurs have one, all other atoms have none. As in
    # the released code, the slot of cysteine's sulphur counts, whatever the residue type.
    bond = torch.full_like(radius, torch.nan)
    # Chains share no number of a bond.
    bonded = residue[..., 0] if asym_id is None else residue[..., 0] + asym_id * (residue_index.amax() + 2)
    bond[..., _N], bond[..., _C], bond[..., _SULPHUR] = bonded, bonded + 1, torch.inf
    half = radius - tolerance / 2
    flat = (x.flatten(1, 2) for x in (atoms, half, residue, bond))
    overlaps: Tensor = _Overlaps.apply(*flat)
    return overlaps.view_as(radius)


class _Overlaps(torch.autograd.Function):
    """The sum of each atom's overlaps; both passes compute all pairs of a few atoms with all others at a time.

    A search for the few pairs that overlap would make the host wait for a GPU, and autograd would keep several tensors
    of all pairs, each 51 MB for 256 residues.
    """

    @staticmethod
    def forward(
        ctx: Any,
        points: Float[Tensor, "b n 3"],
        radius: Float[Tensor, "b n"],
        residue: Float[Tensor, "b n"],
        bond: Float[Tensor, "b n"],
    ) -> Float[Tensor, "b n"]:
        total = torch.zeros_like(radius)
        chosen = unmasked(radius > -torch.inf)
        atoms = _Atoms(points[:, chosen], radius[:, chosen], residue[:, chosen], bond[:, chosen])
        total[:, chosen] = torch.cat([_pairs(atoms, rows)[2].sum(-1) for rows in atoms.blocks()], 1)
        ctx.save_for_backward(points, radius, residue, bond, total)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, "b n"]) -> tuple[Tensor | None, ...]:
        points, radius, residue, bond, total = ctx.saved_tensors
        chosen = unmasked(total > 0)
        atoms = _Atoms(points[:, chosen], radius[:, chosen], residue[:, chosen], bond[:, chosen])
        grad_points = torch.zeros_like(points)
        grad_points[:, chosen] = torch.cat([_gradient(atoms, rows, grad[:, chosen]) for rows in atoms.blocks()], 1)
        return grad_points, None, None, None


class _Atoms(NamedTuple):
    """Positions and radii, and the numbers of residues and of bonds within which pairs do not count."""

    points: Float[Tensor, "b n 3"]
    radius: Float[Tensor, "b n"]
    residue: Float[Tensor, "b n"]
    bond: Float[Tensor, "b n"]

    def blocks(self) -> list[slice]:
        """Return slices of atoms whose pairs with all atoms are computed at once."""
        b, n = self.radius.shape
        block = _CPU_BLOCK if card_of(self.radius.device).kind == "cpu" else _LARGE_BLOCK
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
    """Return the gradient of some atoms' points; `grad` is that of each atom's sum."""
    difference, distance, overlap = _pairs(atoms, rows)
    # Each pair's overlap counts for both atoms and falls with their distance.
    slope = torch.add(grad[:, rows, None], grad[:, None]).div_(distance).mul_(overlap > 0)
    return rearrange(difference.mul_(slope).sum(-1), "x b p -> b p x").neg()
