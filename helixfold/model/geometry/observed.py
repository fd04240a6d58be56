"""Geometry of observed structures: rigid groups and chi angles, computed together."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from helixfold.model.geometry.rigid import Rigid
from helixfold.model.geometry.rigid_groups import RigidGroups, rigid_groups_from_atom37
from helixfold.model.geometry.torsions import Torsions, chis_from_atom37
from helixfold.ops.device_properties import DeviceProperties
from helixfold.ops.dispatch import Backend, first_reason, operator, wants_gradient
from helixfold.ops.triton.requirements import missing_requirement


def _unsupported_by_triton(properties: DeviceProperties, aatype: Tensor, positions: Tensor, mask: Tensor) -> str | None:
    """Return why the Triton kernels do not support these arguments on a device with these properties, or None."""
    return first_reason(
        (positions.dtype != torch.float32 or mask.dtype != torch.float32, "it computes in float32 only"),
        (aatype.numel() == 0, "there is nothing to compute"),
        (wants_gradient(positions, mask), "it computes no gradients"),
    ) or missing_requirement(properties)


@operator(
    Backend(
        name="triton",
        kinds=("cuda",),
        run="helixfold.model.geometry.observed_kernel:observed_geometry_triton",
        unsupported_reason=_unsupported_by_triton,
    )
)
def observed_geometry(
    aatype: Int[Tensor, "b r"], positions: Float[Tensor, "b r 37 3"], mask: Float[Tensor, "b r 37"]
) -> tuple[
    Float[Tensor, "b r 8 3 3"],
    Float[Tensor, "b r 8 3 3"],
    Float[Tensor, "b r 8 3"],
    Float[Tensor, "b r 8"],
    Float[Tensor, "b r 4 2"],
    Float[Tensor, "b r 4 2"],
    Float[Tensor, "b r 4"],
]:
    """Return the fields of `RigidGroups` and `Torsions` of the chi angles.

    They are the rotations, alternative rotations, translations and mask of the groups, then the sines and cosines, the
    alternative ones and the mask of the chi angles.
    """
    groups, chis = rigid_groups_from_atom37(aatype, positions, mask), chis_from_atom37(aatype, positions, mask)
    frames = groups.frames.rotation, groups.alternative.rotation, groups.frames.translation, groups.mask
    return *frames, chis.sin_cos, chis.alternative_sin_cos, chis.mask


def groups_and_chis_from_atom37(
    aatype: Int[Tensor, "b r"], positions: Float[Tensor, "b r 37 3"], mask: Float[Tensor, "b r 37"]
) -> tuple[RigidGroups, Torsions]:
    """Return the results of `rigid_groups_from_atom37` and `chis_from_atom37`, computed together."""
    rotation, alternative, translation, has_group, *chis = observed_geometry(aatype, positions, mask)
    sin_cos, alternative_sin_cos, has_chi = chis
    groups = RigidGroups(
        frames=Rigid(rotation=rotation, translation=translation),
        alternative=Rigid(rotation=alternative, translation=translation),
        mask=has_group,
    )
    return groups, Torsions(sin_cos=sin_cos, alternative_sin_cos=alternative_sin_cos, mask=has_chi)
