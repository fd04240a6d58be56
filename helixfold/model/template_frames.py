"""Backbone frames of templates: directions between residues, and initial frames of the structure module."""

from typing import NamedTuple

import torch
from einops import einsum, rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor

from data_pipeline.residues import ATOM_ORDER
from helixfold.model.batch import Batch
from helixfold.model.geometry.frames import BackboneFrames
from helixfold.model.geometry.rigid import Rigid, rigid_from_three_points

BACKBONE_ATOMS = slice(ATOM_ORDER["N"], ATOM_ORDER["C"] + 1)  # N, CA and C in the atom37 order
_MIN_DISTANCE = 1e-6  # Å, the minimum divisor when vectors are scaled to length 1


def directions(positions: Float[Tensor, "b r 37 3"], rows: slice) -> Float[Tensor, "b i r 3"]:
    """Return unit vectors from the alpha carbon of each residue i in `rows` to all others, in the backbone frame of i.

    # Differs from AlphaFold: from a residue to itself the vector is exactly 0. DeepMind's program rotates both ends
    before it subtracts them, so compilers may leave a rounding error, which is then scaled to length 1.
    """
    frames = backbone_frames(positions[:, rows])
    alpha = rearrange(positions[:, :, ATOM_ORDER["CA"]], "b j x -> b 1 x j").expand(
        -1, frames.translation.shape[1], -1, -1
    )
    local = rearrange(frames.invert_apply_to_columns(alpha), "b i x j -> b i j x")
    return local / torch.linalg.vector_norm(local, dim=-1, keepdim=True).clamp(min=_MIN_DISTANCE)


def backbone_frames(positions: Float[Tensor, "b r 37 3"]) -> Rigid:
    """Return frames at the alpha carbons, whose x axis points to the C and whose xy plane contains the N."""
    nitrogen, alpha, carbon = (positions[:, :, ATOM_ORDER[name]] for name in ("N", "CA", "C"))
    # The argument is a point on the negative x axis.
    return rigid_from_three_points(2 * alpha - carbon, alpha, nitrogen)


class Start(NamedTuple):
    """Initial frames of the structure module from a template, for all residues.

    `present` is 1 for residues in the template, else 0. The structure module multiplies the updates of each residue's
    frame by its factor in `update_factors`, which is 1 for residues that are not in the template.
    """

    frames: BackboneFrames
    present: Float[Tensor, "b r"]
    update_factors: Float[Tensor, "b r 1"]


def start_from_template(batch: Batch, unit: float, update_factor: float) -> Start:
    """Return initial frames from the first template of each sample.

    Updates of residues in the template have the factor `update_factor`, others 1. One unit of length of the frames is
    `unit` Angstrom.
    """
    present = _present(batch)
    return Start(initial_frames(batch, unit), present, update_factor + (1 - update_factor) * (1 - present)[..., None])


def initial_frames(batch: Batch, unit: float) -> BackboneFrames:
    """Return the frames of the first template of each sample, centred at the origin.

    One unit of length is `unit` Angstrom. The mean of the alpha carbons in the template becomes the origin. A residue
    that is not in the template has the frame of the nearest residue in the sequence that is. Without a template, all
    frames are the identity, as in AlphaFold 2 (Suppl. Alg. 20 line 4).
    """
    positions = batch.template_all_atom_positions[:, 0]
    present = _present(batch)
    frames = BackboneFrames.from_rigid(backbone_frames(positions))
    shares = present / present.sum(1, keepdim=True).clamp(min=1)
    centre = einsum(shares, frames.translation, "b r, b r x -> b x")
    centred = (frames.translation - centre[:, None]) / unit
    nearest = _nearest(present > 0)
    has_template = present.sum(1)[:, None, None] > 0
    like = BackboneFrames.identity(centred)

    def placed(values: Float[Tensor, "b r c"], otherwise: Float[Tensor, "b r c"]) -> Float[Tensor, "b r c"]:
        """Return the values of the nearest residue in the template, or `otherwise` without a template."""
        nearest_values = values.gather(1, repeat(nearest, "b r -> b r c", c=values.shape[-1]))
        return torch.where(has_template, nearest_values, otherwise)

    return BackboneFrames.of(placed(frames.quaternion, like.quaternion), placed(centred, like.translation))


def _present(batch: Batch) -> Float[Tensor, "b r"]:
    """Return 1 for residues whose backbone is in the first template, else 0."""
    return batch.template_all_atom_masks[:, 0, :, BACKBONE_ATOMS].prod(-1) * batch.template_mask[:, :1]


def _nearest(present: Bool[Tensor, "b r"]) -> Int[Tensor, "b r"]:
    """Return for each residue the index of the nearest present residue in the sequence; arbitrary without any."""
    count = present.shape[1]
    index = torch.arange(count, device=present.device).expand_as(present)
    before = torch.where(present, index, -count).cummax(1).values
    after = torch.where(present, index, 2 * count).flip(1).cummin(1).values.flip(1)
    return torch.where(index - before <= after - index, before, after).clamp(0, count - 1)
