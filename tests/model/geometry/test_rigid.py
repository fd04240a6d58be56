"""Rigid motions form a group and keep shapes."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from helixfold.model.geometry.rigid import Rigid, rigid_from_three_points
from helixfold.ops.structure.quaternions import quaternion_multiply, quaternion_to_rotation

few = settings(max_examples=40, deadline=None, derandomize=True)
coordinate = st.floats(-50, 50, width=32)
point = st.tuples(coordinate, coordinate, coordinate).map(torch.tensor)
component = st.floats(-1, 1, width=32)
quaternion = (
    st.tuples(component, component, component, component)
    .filter(lambda parts: math.hypot(*parts) > 0.1)
    .map(lambda parts: torch.nn.functional.normalize(torch.tensor(parts), dim=0))
)
rigid = st.builds(lambda q, t: Rigid(rotation=quaternion_to_rotation(q), translation=t), quaternion, point)


def close(value: Tensor, expected: Tensor, tolerance: float = 1e-4) -> bool:
    return bool((value - expected).abs().max() < tolerance)


@few
@given(rigid, point)
def test_going_there_and_back_gives_the_point(frame: Rigid, where: Tensor) -> None:
    assert close(frame.invert_apply(frame.apply(where)), where)
    assert close(frame.apply(frame.invert_apply(where)), where)


@few
@given(rigid, rigid, point)
def test_composition_applies_the_right_one_first(first: Rigid, second: Rigid, where: Tensor) -> None:
    assert close(first.compose(second).apply(where), first.apply(second.apply(where)))


@few
@given(rigid, rigid, rigid)
def test_composition_is_associative(a: Rigid, b: Rigid, c: Rigid) -> None:
    left, right = a.compose(b).compose(c), a.compose(b.compose(c))
    assert close(left.rotation, right.rotation)
    assert close(left.translation, right.translation)


@few
@given(quaternion)
def test_unit_quaternions_are_rotations(q: Tensor) -> None:
    rotation = quaternion_to_rotation(q)
    assert close(rotation @ rotation.mT, torch.eye(3), 1e-5)
    assert abs(torch.linalg.det(rotation).item() - 1) < 1e-5
    assert close(quaternion_to_rotation(-q), rotation, 1e-6)


@few
@given(quaternion, quaternion)
def test_the_product_of_quaternions_is_the_product_of_rotations(a: Tensor, b: Tensor) -> None:
    product = quaternion_multiply(a, b)
    assert close(quaternion_to_rotation(product), quaternion_to_rotation(a) @ quaternion_to_rotation(b), 1e-5)
    assert abs(product.norm().item() - 1) < 1e-5


def test_a_quarter_turn_about_z_takes_x_to_y() -> None:
    half = math.sqrt(0.5)
    rotation = quaternion_to_rotation(torch.tensor([half, 0.0, 0.0, half]))
    assert close(rotation @ torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 1.0, 0.0]), 1e-6)


def test_hamiltons_rule_i_j_is_k() -> None:
    _, i, j, k = torch.eye(4)
    assert (quaternion_multiply(i, j) == k).all()
    assert (quaternion_multiply(j, i) == -k).all()


@few
@given(rigid, st.floats(0.5, 3), st.floats(0.2, 3.0), st.floats(0.5, 3))
def test_three_points_give_back_the_frame_they_lie_in(frame: Rigid, length: float, y: float, x: float) -> None:
    local = torch.tensor([[-length, 0.0, 0.0], [0.0, 0.0, 0.0], [x, y, 0.0]])
    points = frame.rotation @ local[..., None]
    negative_x, origin, xy_plane = points[..., 0] + frame.translation
    found = rigid_from_three_points(negative_x, origin, xy_plane)
    assert close(found.rotation, frame.rotation, 1e-3)
    assert close(found.translation, frame.translation)


def test_coinciding_points_stay_finite() -> None:
    nowhere = torch.zeros(3, requires_grad=True)
    frame = rigid_from_three_points(nowhere, nowhere, nowhere)
    assert torch.isfinite(frame.rotation).all()
    frame.rotation.sum().backward()
    assert torch.isfinite(nowhere.grad).all()


def test_frames_are_picked_by_their_batch_dims() -> None:
    frames = Rigid(rotation=torch.randn(2, 5, 3, 3), translation=torch.randn(2, 5, 3))
    picked = frames[:, 1:3]
    assert (picked.rotation == frames.rotation[:, 1:3]).all()
    assert (picked.translation == frames.translation[:, 1:3]).all()
    assert frames[..., None].rotation.shape == (2, 5, 1, 3, 3)
