"""Backbone frames move by small motions given in their own coordinates."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from helixfold.model.geometry.frames import BackboneFrames
from helixfold.model.geometry.rigid import Rigid
from helixfold.ops.structure.quaternions import quaternion_to_rotation

few = settings(max_examples=25, deadline=None, derandomize=True)
seeds = st.integers(0, 2**31)


def random_frames(generator: torch.Generator) -> BackboneFrames:
    return BackboneFrames.of(
        normalize(torch.randn(2, 5, 4, generator=generator), dim=-1), 10 * torch.randn(2, 5, 3, generator=generator)
    )


def largest(difference: Tensor) -> float:
    return float(difference.abs().max())


@few
@given(seeds, st.floats(0, 3))
def test_an_update_composes_with_a_motion_in_the_local_frame(seed: int, size: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    frames, update = random_frames(generator), size * torch.randn(2, 5, 6, generator=generator)
    turn = torch.cat([torch.ones(2, 5, 1), update[..., :3]], -1)
    motion = Rigid(rotation=quaternion_to_rotation(normalize(turn, dim=-1)), translation=update[..., 3:])
    found, expected = frames.updated(update), frames.rigid().compose(motion)
    assert largest(found.quaternion.norm(dim=-1) - 1) < 1e-5
    assert largest(found.rigid().rotation - expected.rotation) < 1e-5
    assert largest(found.translation - expected.translation) < 1e-4


def test_a_zero_update_changes_nothing_at_all() -> None:
    frames = BackboneFrames.identity(torch.zeros(1, 4, 8))
    updated = frames.updated(torch.zeros(1, 4, 6))
    assert (updated.to_tensor() == frames.to_tensor()).all()


def test_all_residues_start_at_the_origin_unturned() -> None:
    frames = BackboneFrames.identity(torch.zeros(2, 3, 8, dtype=torch.float64))
    assert frames.quaternion.dtype == torch.float64
    assert (frames.rigid().rotation == torch.eye(3, dtype=torch.float64)).all()
    assert (frames.translation == 0).all()


def test_gradients_pass_through_translations_only() -> None:
    frames = random_frames(torch.Generator().manual_seed(0))
    quaternion, translation = frames.quaternion.requires_grad_(), frames.translation.requires_grad_()
    stopped = BackboneFrames.of(quaternion, translation).without_rotation_gradient()
    (stopped.quaternion.sum() + stopped.rotation.sum() + stopped.translation.sum()).backward()
    assert quaternion.grad is None
    assert (translation.grad == 1).all()


def test_a_tensor_of_frames_has_quaternions_and_then_translations() -> None:
    frames = random_frames(torch.Generator().manual_seed(0))
    assert (frames.to_tensor() == torch.cat([frames.quaternion, frames.translation], -1)).all()


@few
@given(seeds, st.sampled_from([0.0, 1e-4, 1.0]), st.sampled_from(range(4)))
def test_quaternions_of_rotations_are_found_again_but_for_their_sign(seed: int, spread: float, axis: int) -> None:
    # With a small spread, all but one component are about 0: half turns and unturned frames.
    generator = torch.Generator().manual_seed(seed)
    noise = spread * torch.randn(2, 5, 4, generator=generator)
    expected = normalize(noise + torch.eye(4)[axis], dim=-1)
    frames = BackboneFrames.of(expected, torch.randn(2, 5, 3, generator=generator))
    found = BackboneFrames.from_rigid(frames.rigid())
    sign = (found.quaternion * expected).sum(-1, keepdim=True).sign()
    assert largest(sign * found.quaternion - expected) < 1e-6
    assert largest(found.rotation - frames.rotation) < 1e-6
    assert (found.translation == frames.translation).all()
