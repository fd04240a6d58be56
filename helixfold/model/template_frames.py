"""Backbone frames of templates: directions between residues, and where the structure module may start."""

from typing import NamedTuple

import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from data_pipeline.residues import ATOM_ORDER
from helixfold.model.batch import Batch
from helixfold.model.geometry.frames import BackboneFrames
from helixfold.model.geometry.rigid import Rigid, rigid_from_three_points

BACKBONE_ATOMS = slice(ATOM_ORDER["N"], ATOM_ORDER["C"] + 1)  # N, CA and C
_LEAST_DISTANCE = 1e-6


def directions(positions: Float[Tensor, "b r 37 3"], rows: slice) -> Float[Tensor, "b i r 3"]:
    """Return the unit vectors from some residues' alpha carbons to all others, in the first residues' frames.

    # Differs from AlphaFold: from a residue to itself the vector is exactly 0. DeepMind's program rotates both ends
    before it subtracts them, so that compilers may leave a rounding error there, which it scales up to length 1.
    """
    frames = backbone_frames(positions[:, rows])
    alpha = rearrange(positions[:, :, ATOM_ORDER["CA"]], "b j x -> b 1 x j").expand(
        -1, frames.translation.shape[1], -1, -1
    )
    local = rearrange(frames.invert_apply_to_columns(alpha), "b i x j -> b i j x")
    return local / torch.linalg.vector_norm(local, dim=-1, keepdim=True).clamp(min=_LEAST_DISTANCE)


def backbone_frames(positions: Float[Tensor, "b r 37 3"]) -> Rigid:
    """Return frames at the alpha carbons, whose x axis points to the C and whose xy plane contains the N."""
    nitrogen, alpha, carbon = (positions[:, :, ATOM_ORDER[name]] for name in ("N", "CA", "C"))
    # The function takes a point on the negative x axis.
    return rigid_from_three_points(2 * alpha - carbon, alpha, nitrogen)


class Start(NamedTuple):
    """The frames that the structure module starts from, which residues have one, and the factors of their updates."""

    frames: BackboneFrames
    present: Float[Tensor, "b r"]
    update_factors: Float[Tensor, "b r 1"]


def start_from_template(batch: Batch, unit: float, update_factor: float) -> Start:
    """Return the frames of each sample's first template, and `update_factor` for the residues that it has, else 1."""
    present = _present(batch)
    return Start(initial_frames(batch, unit), present, update_factor + (1 - update_factor) * (1 - present)[..., None])


def initial_frames(batch: Batch, unit: float) -> BackboneFrames:
    """Return the frames of each sample's first template, with its centre at the origin and lengths in `unit` Angstrom.

    A residue that the template lacks has the frame of the nearest residue in the sequence that it has. Without a
    template, all residues are at the origin, unturned, as in AlphaFold 2 (Suppl. Alg. 20 line 4).
    """
    positions = batch.template_all_atom_positions[:, 0]
    present = _present(batch)
    found = BackboneFrames.from_rigid(backbone_frames(positions))
    shares = present / present.sum(1, keepdim=True).clamp(min=1)
    centre = einsum(shares, found.translation, "b r, b r x -> b x")
    centred = (found.translation - centre[:, None]) / unit
    nearest = _nearest(present > 0)
    has_template = present.sum(1)[:, None, None] > 0
    like = BackboneFrames.identity(centred)

    def placed(values: Float[Tensor, "b r c"], otherwise: Float[Tensor, "b r c"]) -> Float[Tensor, "b r c"]:
        taken = values.gather(1, repeat(nearest, "b r -> b r c", c=values.shape[-1]))
        return torch.where(has_template, taken, otherwise)

    return BackboneFrames.of(placed(found.quaternion, like.quaternion), placed(centred, like.translation))


def _present(batch: Batch) -> Float[Tensor, "b r"]:
    """Return 1 for each residue whose backbone the first template has."""
    return batch.template_all_atom_masks[:, 0, :, BACKBONE_ATOMS].prod(-1) * batch.template_mask[:, :1]


def _nearest(present: Bool[Tensor, "b r"]) -> Int[Tensor, "b r"]:
    """Return for each residue the index of the nearest one in the sequence that is present, or any if none is."""
    count = present.shape[1]
    index = torch.arange(count, device=present.device).expand_as(present)
    before = torch.where(present, index, -count).cummax(1).values
    after = torch.where(present, index, 2 * count).flip(1).cummin(1).values.flip(1)
    return torch.where(index - before <= after - index, before, after).clamp(0, count - 1)
