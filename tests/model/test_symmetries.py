"""What must not matter does not matter: padding, order of sequences, position and orientation in space."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import pad

from helixfold.execution.slabs import Slabs
from helixfold.execution.whole import Whole
from helixfold.model.batch import Batch, sampled_fields
from helixfold.model.geometry.atoms import atom14_from_rigid_groups, atom14_mask, rigid_groups_from_torsions
from helixfold.model.geometry.rigid import Rigid
from helixfold.model.geometry.torsions import torsions_from_atom37
from helixfold.model.layers import LayerNorm
from helixfold.model.outputs import Recycled
from helixfold.model.point_attention import InvariantPointAttention, PairInput
from helixfold.model.templates import template_pair_features
from helixfold.model.update import Executor
from helixfold.ops.structure.quaternions import quaternion_to_rotation
from tests.support.networks import random_batch, relative_error, tiny_config, tiny_model

RESIDUES, PADDING = 13, 4
RESIDUE_DIMS = {
    "msa_feat": 2,
    "msa_mask": 2,
    "extra_msa": 2,
    "extra_has_deletion": 2,
    "extra_deletion_value": 2,
    "extra_msa_mask": 2,
}


def padded_residues(batch: Batch) -> Batch:
    """Four more residues that no mask counts."""

    def grown(name: str, value: torch.Tensor) -> torch.Tensor:
        if name == "template_mask":
            return value
        dim = 2 if name in RESIDUE_DIMS or name.startswith("template") else 1
        widths = [0, 0] * (value.ndim - 1 - dim) + [0, PADDING]
        return pad(value, widths)

    return Batch(**{name: grown(name, getattr(batch, name)) for name in sampled_fields(Batch)})


def padded_rows(batch: Batch) -> Batch:
    """Three more MSA and extra-MSA rows and one more template that no mask counts, filled with rubbish."""
    changes = {}
    for name in ("msa_feat", "msa_mask", "extra_msa", "extra_has_deletion", "extra_deletion_value", "extra_msa_mask"):
        value = getattr(batch, name)
        filling = 0 if name.endswith("mask") else 2
        changes[name] = pad(value, [0, 0] * (value.ndim - 2) + [0, 3], value=filling)
    for name in (each for each in sampled_fields(Batch) if each.startswith("template")):
        value = getattr(batch, name)
        changes[name] = pad(value, [0, 0] * (value.ndim - 2) + [0, 1])
    return replace(batch, **changes)


@pytest.mark.parametrize("run", [Whole(), Slabs(rows=5)])
def test_padding_residues_changes_nothing_on_the_real_ones(run: Executor) -> None:
    model, batch = tiny_model(), random_batch(residues=RESIDUES)
    with torch.no_grad():
        plain = model(run, [batch], model(run, [batch]).recycled())
        padded = padded_residues(batch)
        grown = model(run, [padded], model(run, [padded]).recycled())
    real = slice(RESIDUES)
    assert relative_error(grown.representations.pair[:, real, real], plain.representations.pair) < 1e-5
    assert relative_error(grown.representations.msa[:, :, real], plain.representations.msa) < 1e-5
    assert relative_error(grown.structure.positions[:, real], plain.structure.positions) < 1e-5
    assert relative_error(grown.logits.lddt[:, real], plain.logits.lddt) < 1e-5
    assert (grown.structure.mask[:, RESIDUES:] == 0).all()


@pytest.mark.parametrize("run", [Whole(), Slabs(rows=5)])
def test_padding_rows_and_templates_changes_nothing(run: Executor) -> None:
    model, batch = tiny_model(), random_batch()
    with torch.no_grad():
        plain, grown = model(run, [batch]), model(run, [padded_rows(batch)])
    assert relative_error(grown.representations.pair, plain.representations.pair) < 1e-5
    assert relative_error(grown.structure.positions, plain.structure.positions) < 1e-5


def test_order_of_the_other_sequences_does_not_matter() -> None:
    model, batch = tiny_model(), random_batch(rows=6, extra=8)
    order, extra_order = torch.tensor([0, 4, 2, 5, 1, 3]), torch.randperm(8)
    shuffled = replace(
        batch,
        msa_feat=batch.msa_feat[:, order],
        **{
            name: getattr(batch, name)[:, extra_order]
            for name in ("extra_msa", "extra_has_deletion", "extra_deletion_value")
        },
    )
    with torch.no_grad():
        plain, other = model(Whole(), [batch]), model(Whole(), [shuffled])
    assert relative_error(other.representations.pair, plain.representations.pair) < 1e-5
    assert relative_error(other.representations.single, plain.representations.single) < 1e-5
    assert relative_error(other.representations.msa, plain.representations.msa[:, order]) < 1e-5


def random_motion() -> Rigid:
    rotation = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))[0]
    return Rigid(
        rotation=(rotation * torch.linalg.det(rotation)).float(), translation=torch.tensor([30.0, -20.0, 10.0])
    )


def test_moving_recycled_atoms_in_space_changes_nothing() -> None:
    model, batch, motion = tiny_model(), random_batch(), random_motion()
    with torch.no_grad():
        previous = model(Whole(), [batch]).recycled()
        plain = model(Whole(), [batch], previous)
        other = model(Whole(), [batch], replace(previous, positions=motion.apply(previous.positions)))
    assert relative_error(other.logits.lddt, plain.logits.lddt) < 1e-4
    assert relative_error(other.logits.aligned_error, plain.logits.aligned_error) < 1e-4
    assert relative_error(other.structure.positions, plain.structure.positions) < 1e-4


def test_turning_templates_changes_nothing() -> None:
    """Only about the origin, by right angles and with the first nitrogen on an axis.

    AlphaFold shows its networks torsions across chain ends, where the missing atoms stand at the origin; any other
    motion changes those, in DeepMind's program as here.
    """
    model, batch = tiny_model(), random_batch()
    positions = batch.template_all_atom_positions.clone()
    positions[:, :, 0, 0] = torch.tensor([4.0, 0.0, 0.0])
    quarter = torch.tensor([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    batch = replace(batch, template_all_atom_positions=positions)
    turned = replace(
        batch,
        template_all_atom_positions=positions @ quarter.T,
        template_pseudo_beta=batch.template_pseudo_beta @ quarter.T,
    )
    with torch.no_grad():
        plain, other = model(Whole(), [batch]), model(Whole(), [turned])
    assert relative_error(other.logits.lddt, plain.logits.lddt) < 1e-4
    assert relative_error(other.structure.positions, plain.structure.positions) < 1e-4


def test_moving_templates_changes_no_pair_feature_and_no_defined_torsion() -> None:
    batch, motion = random_batch(), random_motion()
    present = (torch.rand(batch.template_all_atom_masks.shape) > 0.1).float()
    batch = replace(
        batch,
        template_all_atom_masks=present,
        template_all_atom_positions=batch.template_all_atom_positions * present[..., None],
    )
    moved = replace(
        batch,
        template_all_atom_positions=motion.apply(batch.template_all_atom_positions) * present[..., None],
        template_pseudo_beta=motion.apply(batch.template_pseudo_beta),
    )
    assert relative_error(template_pair_features(moved, slice(1, 2)), template_pair_features(batch, slice(1, 2))) == 0
    before, after = (
        torsions_from_atom37(each.template_aatype, each.template_all_atom_positions, each.template_all_atom_masks)
        for each in (batch, moved)
    )
    defined = before.mask[..., None]
    assert 0.3 < defined.mean() < 1
    assert relative_error(after.sin_cos * defined, before.sin_cos * defined) < 1e-4


def test_moving_all_frames_moves_the_structure_along() -> None:
    config = tiny_config()
    attention = InvariantPointAttention(config.structure, config.c_z)
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    single, pair, motion = torch.randn(1, 9, 64), torch.randn(1, 9, 9, 32), random_motion()
    frames = Rigid(
        rotation=quaternion_to_rotation(torch.nn.functional.normalize(torch.randn(1, 9, 4), dim=-1)),
        translation=torch.randn(1, 9, 3),
    )
    pair_input, mask = PairInput(pair, *attention.maps(LayerNorm(config.c_z).affine, 9)), torch.ones(1, 9)
    update, moved = (attention(Whole(), single, pair_input, mask, each) for each in (frames, motion.compose(frames)))
    assert relative_error(moved, update) < 1e-4
    aatype, torsions = torch.arange(9)[None], torch.nn.functional.normalize(torch.randn(1, 9, 7, 2), dim=-1)

    def atoms(backbone: Rigid) -> torch.Tensor:
        return atom14_from_rigid_groups(aatype, rigid_groups_from_torsions(aatype, backbone, torsions))

    atom_mask = atom14_mask(aatype, mask)[..., None]
    assert relative_error(atoms(motion.compose(frames)), motion.apply(atoms(frames)) * atom_mask) < 1e-5


def test_the_first_pass_is_as_if_everything_recycled_were_zero() -> None:
    model, batch = tiny_model(), random_batch()
    zero = Recycled(
        msa_first_row=torch.zeros(1, 13, 64), pair=torch.zeros(1, 13, 13, 32), positions=torch.zeros(1, 13, 37, 3)
    )
    with torch.no_grad():
        assert (model(Whole(), [batch]).logits.lddt == model(Whole(), [batch], zero).logits.lddt).all()
