"""Chains with known geometry: predictions made of frames and torsions, and the labels of such chains."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from data_pipeline.features.ground_truth import ground_truth
from data_pipeline.features.labels import ChainLabels
from data_pipeline.residues import RESTYPES
from helixfold.losses.labels import Labels
from helixfold.model.geometry.atoms import (
    atom14_from_rigid_groups,
    atom14_mask,
    atom14_to_atom37,
    atom37_mask,
    rigid_groups_from_torsions,
)
from helixfold.model.geometry.rigid import Rigid, rigid_from_tensor
from helixfold.model.outputs import PredictedStructure
from helixfold.ops.structure.quaternions import quaternion_to_rotation

# Every residue type, the ambiguous ones (D, E, F, Y) twice.
SEQUENCE = "ARNDCQEGHILKMFPSTWYVDEFY"


def residue_types(sequence: str = SEQUENCE) -> Tensor:
    return torch.tensor([[RESTYPES.find(letter) % 21 for letter in sequence]])


def random_structure(aatype: Tensor, seed: int = 0, *, layers: int = 2, spread: float = 8.0) -> PredictedStructure:
    """A prediction whose iterations have random frames (some Angstrom apart) and random torsions."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(layers, *aatype.shape, *shape, generator=generator)

    frames = torch.cat([normalize(randn(4), dim=-1), spread * randn(3)], -1)
    return structure_from(aatype, frames, randn(7, 2))


def structure_from(aatype: Tensor, frames: Tensor, raw: Tensor) -> PredictedStructure:
    """What the structure module hands out for these frames (l b r 7) and torsions that need not have unit length."""
    torsions, mask = normalize(raw, dim=-1), torch.ones(aatype.shape)
    groups, atoms = [], []
    for frame, torsion in zip(frames, torsions, strict=True):
        each = rigid_groups_from_torsions(aatype, rigid_from_tensor(frame), torsion)
        groups.append(torch.cat([each.rotation, each.translation[..., None]], -1))
        atoms.append(atom14_from_rigid_groups(aatype, each))
    mask37 = atom37_mask(aatype, mask)
    return PredictedStructure(
        single=torch.zeros(*aatype.shape, 1),
        frames=frames,
        rigid_groups=torch.stack(groups),
        atom14=torch.stack(atoms),
        torsions=torsions,
        unnormalized_torsions=raw,
        atom14_mask=atom14_mask(aatype, mask),
        positions=atom14_to_atom37(atoms[-1], aatype, mask37),
        mask=mask37,
        from_template=torch.zeros_like(mask),
    )


def labels_of(structure: PredictedStructure, aatype: Tensor, observed: Tensor | None = None, **settings: Any) -> Labels:
    """The labels of a chain that looks as the last iteration of `structure`; `observed` (b r 37) leaves atoms out."""
    mask = structure.mask if observed is None else structure.mask * observed
    return labels_from(aatype, structure.positions, mask, **settings)


def labels_from(aatype: Tensor, positions: Tensor, mask: Tensor, **settings: Any) -> Labels:
    """The labels of chains with these atoms (b r 37)."""
    truths = [
        ground_truth(
            types.numpy().astype(np.int32),
            ChainLabels(
                all_atom_positions=(atoms * present[..., None]).numpy(),
                all_atom_mask=present.numpy(),
                confidence=np.ones(len(types), np.float32),
                resolution=2.0,
                is_distillation=False,
            ),
        )
        for types, atoms, present in zip(aatype, positions, mask, strict=True)
    ]
    b, r = aatype.shape
    given = {
        field.name: torch.tensor(np.stack([getattr(truth, field.name) for truth in truths]))
        for field in fields(truths[0])
    }
    given = {name: value if value.is_floating_point() else value.long() for name, value in given.items()}
    others = {
        "true_msa": torch.zeros(b, 2, r, dtype=torch.int64),
        "bert_mask": torch.ones(b, 2, r),
        "use_clamped_fape": torch.ones(b),
        "resolution": torch.full((b,), 2.0),
        "is_distillation": torch.zeros(b),
    }
    return Labels(**(given | others | settings))


def a_motion(seed: int = 0) -> Rigid:
    """A rotation and a shift by some 20 Angstrom."""
    generator = torch.Generator().manual_seed(seed)
    return Rigid(
        rotation=quaternion_to_rotation(normalize(torch.randn(4, generator=generator), dim=-1)),
        translation=20 * torch.randn(3, generator=generator),
    )


def moved(points: Tensor, motion: Rigid) -> Tensor:
    return points @ motion.rotation.mT + motion.translation


def moved_structure(structure: PredictedStructure, motion: Rigid) -> PredictedStructure:
    """The same prediction elsewhere; `frames`, which hold quaternions, stay where they are."""
    groups = structure.rigid_groups
    return replace(
        structure,
        rigid_groups=torch.cat(
            [motion.rotation @ groups[..., :3], moved(groups[..., 3], motion)[..., None]],
            -1,
        ),
        atom14=moved(structure.atom14, motion),
        positions=moved(structure.positions, motion),
    )
