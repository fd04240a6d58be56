"""The structure module turns representations into atoms, in float32, and padding stays out of it."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from helixfold.execution.slabs import LocalStream, Slabs
from helixfold.execution.whole import Whole
from helixfold.model.config import StructureConfig
from helixfold.model.geometry.frames import BackboneFrames
from helixfold.model.geometry.rigid import Rigid
from helixfold.model.layers import LayerNorm
from helixfold.model.point_attention import InvariantPointAttention, PairInput
from helixfold.model.structure_module import Angles, StructureModule
from helixfold.model.update import Stream
from helixfold.ops import shared_parameters
from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.ops.structure.quaternions import quaternion_to_rotation

CONFIG = StructureConfig(layers=3, c=16, heads=2, c_scalar=4, query_points=2, value_points=3, c_angles=8)
C_S, C_Z, R = 12, 6, 7
RUN = Whole()


def randomised(module: torch.nn.Module) -> torch.nn.Module:
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return module.eval()


def inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    aatype = torch.randint(0, 20, (1, R))
    return torch.randn(1, R, C_S), torch.randn(1, R, R, C_Z), aatype, torch.ones(1, R)


def random_frames() -> Rigid:
    rotation = quaternion_to_rotation(normalize(torch.randn(1, R, 4), dim=-1))
    return Rigid(rotation=rotation, translation=2 * torch.randn(1, R, 3))


def test_every_iteration_is_kept_and_the_last_is_the_result() -> None:
    module = randomised(StructureModule(CONFIG, C_S, C_Z))
    single, pair, aatype, mask = inputs()
    found = module(RUN, single, pair, aatype, mask)
    for trajectory in (found.frames, found.rigid_groups, found.atom14, found.torsions, found.unnormalized_torsions):
        assert trajectory.shape[:3] == (CONFIG.layers, 1, R)
    assert not torch.allclose(found.frames[0], found.frames[1])
    # In Angstrom all: the backbone group is the frame, and C-alpha stands at its origin.
    torch.testing.assert_close(found.rigid_groups[-1, :, :, 0, :, 3], found.frames[-1, ..., 4:])
    torch.testing.assert_close(found.positions[:, :, 1], found.frames[-1, ..., 4:])
    torch.testing.assert_close(found.torsions.norm(dim=-1), torch.ones(CONFIG.layers, 1, R, 7))
    torch.testing.assert_close(normalize(found.unnormalized_torsions, dim=-1), found.torsions)


def test_a_fresh_module_leaves_everyone_at_the_origin() -> None:
    module = StructureModule(CONFIG, C_S, C_Z).eval()
    found = module(RUN, *inputs())
    expected = BackboneFrames.identity(torch.zeros(1, R, 1)).to_tensor()
    assert (found.frames == expected).all()


def test_it_computes_in_float32_whatever_it_is_given() -> None:
    module = randomised(StructureModule(CONFIG, C_S, C_Z))
    single, pair, aatype, mask = inputs()
    found = module(RUN, single.bfloat16(), pair.bfloat16(), aatype, mask)
    expected = module(RUN, single.bfloat16().float(), pair.bfloat16().float(), aatype, mask)
    assert found.positions.dtype == torch.float32
    assert (found.positions == expected.positions).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_slabs_of_query_rows_give_what_all_rows_give(dtype: torch.dtype) -> None:
    module = randomised(StructureModule(CONFIG, C_S, C_Z))
    single, pair, aatype, mask = inputs()
    mask[0, 5:] = 0
    rows: list[int] = []

    class Counted(Slabs):
        def map_rows(self, make: Callable[..., Tensor], *streams: Stream) -> LocalStream:
            def counted(some: slice, *given: Tensor) -> Tensor:
                rows.append(given[0].shape[1])
                return make(some, *given)

            return super().map_rows(counted, *streams)

    with torch.no_grad():
        whole, slabs = (module(run, single, pair.to(dtype), aatype, mask) for run in (RUN, Counted(rows=3)))
    torch.testing.assert_close(slabs.atom14, whole.atom14)
    assert set(rows) == {3, 1}


def test_all_iterations_of_a_training_pass_keep_one_pair_as_it_came() -> None:
    module, r = randomised(StructureModule(CONFIG, C_S, C_Z)), 90
    pair, mask = torch.randn(1, r, r, C_Z).bfloat16().requires_grad_(), torch.ones(1, r)
    state = torch.randn(1, r, CONFIG.c)
    kept = set()

    def pack(each: Tensor) -> Tensor:
        if each.numel() >= r * r:
            kept.add(each.untyped_storage().data_ptr())
        return each

    frames = BackboneFrames.identity(state)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda each: each):
        for parameters in module.parameters_of_iterations(pair, r):
            state, frames = module.iteration(RUN, state, frames, parameters, mask)
    assert kept == {pair.untyped_storage().data_ptr()}
    assert torch.autograd.grad(state.sum(), pair)[0].abs().max() > 0


def test_gradients_that_are_computed_at_once_for_all_iterations_are_autograds(monkeypatch: pytest.MonkeyPatch) -> None:
    module, (single, pair, aatype, mask) = randomised(StructureModule(CONFIG, C_S, C_Z)).double(), inputs()
    leaves = [single.double().requires_grad_(), pair.double().requires_grad_(), *module.parameters()]

    def gradients() -> tuple[Tensor, ...]:
        found = module(RUN, *leaves[:2], aatype, mask)
        return torch.autograd.grad(found.atom14.sin().sum() + found.single.sin().sum(), leaves, allow_unused=True)

    expected = gradients()
    monkeypatch.setattr(shared_parameters, "properties_of", lambda _: DEVICE_MODELS["h100"])
    for found, right in zip(gradients(), expected, strict=True):
        torch.testing.assert_close(found, right)


def test_padding_residues_are_seen_by_no_other() -> None:
    module = randomised(StructureModule(CONFIG, C_S, C_Z))
    single, pair, aatype, mask = inputs()
    mask[0, 5:] = 0
    other_single, other_pair, real = single.clone(), pair.clone(), slice(5)
    other_single[:, 5:] = torch.randn(1, 2, C_S)
    other_pair[:, 5:], other_pair[:, :, 5:] = 10, 10
    found, other = module(RUN, single, pair, aatype, mask), module(RUN, other_single, other_pair, aatype, mask)
    torch.testing.assert_close(other.atom14[:, :, real], found.atom14[:, :, real])
    assert found.mask[:, 5:].sum() == 0
    assert (found.positions[:, 5:] == 0).all()


def test_gradients_do_not_pass_through_rotations_between_iterations() -> None:
    """With the last update blocked, earlier ones reach the result through translations only (Suppl. Alg. 20)."""
    module, (single, pair, aatype, mask) = randomised(StructureModule(replace(CONFIG, layers=2), C_S, C_Z)), inputs()
    updates: list[Tensor] = []

    def keep(_module: object, _inputs: object, output: Tensor) -> None:
        output.retain_grad()
        updates.append(output)

    module.backbone_update.register_forward_hook(keep)
    quaternion = module(RUN, single, pair, aatype, mask).frames[-1, ..., :4]
    quaternion.square()[..., 0].sum().backward()
    first, last = (update.grad for update in updates)
    assert last[..., :3].abs().max() > 0
    # The first rotation reaches the last through attention's frames alone, which are cut too; its shift is not.
    assert (first[..., :3] == 0).all()
    assert first[..., 3:].abs().max() > 0


def test_dropout_comes_before_both_norms_of_every_iteration() -> None:
    """AlphaFold 2, Suppl. Alg. 20 lines 7 and 9."""
    module, norms, drawn = randomised(StructureModule(CONFIG, C_S, C_Z)).train(), [], []

    def keep(_module: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        unscaled, factors = given[0] + given[1], given[3]
        norms.append(unscaled * factors)
        drawn.append((unscaled, factors, norms[-1]))

    for norm in (module.norm_attention, module.norm_transition):
        norm.register_forward_pre_hook(keep)
    module(RUN, *inputs())
    assert len(norms) == 2 * CONFIG.layers
    zeros = sum((each == 0).sum() for each in norms) / sum(each.numel() for each in norms)
    assert abs(zeros - CONFIG.dropout) < 0.05
    # What is kept is scaled up, so that its mean stays.
    kept = 1 - CONFIG.dropout
    for unscaled, factors, dropped in drawn:
        torch.testing.assert_close(dropped, unscaled * (factors > 0) / kept)
    # Each has a mask of its own.
    assert len({tuple((normed == 0).flatten().tolist()) for normed in norms}) == len(norms)


@pytest.mark.parametrize("training", [True, False])
def test_dropout_is_active_in_training_only(training: bool) -> None:
    module, given = randomised(StructureModule(CONFIG, C_S, C_Z)).train(training), inputs()
    assert (module(RUN, *given).single == module(RUN, *given).single).all() == (not training)


def test_heads_start_with_point_weight_one_and_prefer_near_points() -> None:
    attention = InvariantPointAttention(CONFIG, C_Z)
    torch.testing.assert_close(torch.nn.functional.softplus(attention.point_weights), torch.ones(CONFIG.heads))
    # With nothing but points, all at their residue's origin, weights follow distances.
    for parameter in attention.parameters():
        parameter.data.zero_()
    attention.point_weights.data.fill_(0.541324854612918)
    channel = CONFIG.heads * CONFIG.c_scalar  # the first x of the first head's value points
    attention.out.weight.data[0, channel] = 1
    place = torch.arange(R, dtype=torch.float32)
    on_a_line = torch.stack([place, torch.zeros(R), torch.zeros(R)], -1)[None]
    frames = Rigid(rotation=torch.eye(3).expand(1, R, 3, 3), translation=on_a_line)
    pair_input = PairInput(torch.randn(1, R, R, C_Z), *attention.maps(LayerNorm(C_Z).affine, R))
    found = attention(RUN, torch.randn(1, R, CONFIG.c), pair_input, torch.ones(1, R), frames)[0, :, 0]
    # Every one of P points adds its squared distance; the weight is (3 P 9/2)^-1/2 and half of that counts.
    logits = -0.5 * CONFIG.query_points * (place[:, None] - place).square() * (3 * CONFIG.query_points * 4.5) ** -0.5
    torch.testing.assert_close(found, logits.softmax(-1) @ place - place, rtol=1e-4, atol=1e-4)


def test_attention_shifts_by_pair_and_by_scalars_with_a_third_of_the_variance_each() -> None:
    attention = InvariantPointAttention(CONFIG, C_Z)
    for parameter in attention.parameters():
        parameter.data.zero_()
    attention.point_weights.data.fill_(-100)
    torch.nn.init.normal_(attention.pair_bias.weight)
    torch.nn.init.normal_(attention.query.weight)
    torch.nn.init.normal_(attention.key_value.weight)
    attention.out.weight.data[: CONFIG.c_scalar, : CONFIG.c_scalar] = torch.eye(CONFIG.c_scalar)  # head 0's values
    single, pair = torch.randn(1, R, CONFIG.c), torch.randn(1, R, R, C_Z)
    norm = LayerNorm(C_Z)
    torch.nn.init.normal_(norm.weight)
    pair_input = PairInput(pair, *attention.maps(norm.affine, R))
    found = attention(RUN, single, pair_input, torch.ones(1, R), random_frames())[0, :, : CONFIG.c_scalar]
    query = attention.query(single)[0, :, : CONFIG.c_scalar]
    key, value = attention.key_value(single)[0, :, : 2 * CONFIG.c_scalar].chunk(2, -1)
    logits = query @ key.T * CONFIG.c_scalar**-0.5 + attention.pair_bias(norm(pair))[0, ..., 0]
    torch.testing.assert_close(found, (logits / 3**0.5).softmax(-1) @ value, rtol=1e-4, atol=1e-4)


def test_torsions_of_vanishing_vectors_stay_finite() -> None:
    angles = Angles(CONFIG, C_S)
    angles.out.weight.data.zero_()
    torsions, raw = angles(torch.randn(1, R, CONFIG.c, requires_grad=True), torch.randn(1, R, C_S))
    assert (raw == 0).all()
    torsions.sum().backward()
    assert torch.isfinite(torsions).all()
    assert all(torch.isfinite(each.grad).all() for each in angles.parameters())
