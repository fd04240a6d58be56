"""Invariant point attention in blocks of rows equals its reference, wherever the points are."""

from typing import Any

import pytest
import torch
from torch import Tensor

from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.ops.dispatch import forced
from helixfold.ops.structure.point_attention import invariant_point_attention
from helixfold.ops.weights import PointAttentionWeights
from tests.ops.comparing import affine, assert_as_near, assert_equal, mask, norm

PAIR, MASK, KEY_MASK = 6, 7, 8


def arguments(
    i: int,
    j: int,
    h: int = 3,
    b: int = 1,
    c_z: int = 6,
    *,
    channels: int = 4,
    counts: tuple[int, int] = (2, 3),
    extent: float = 1.0,
    center: float = 0.0,
) -> list[Any]:
    """As the structure module makes them: heads' points are views of (b r h p x), one residue's are close together.

    `counts` are the numbers of points that queries and values have.
    """
    of_queries, of_values = counts
    place, key_place = (center + extent * torch.randn(b, r, 1, 1, 3) for r in (i, j))

    def points(where: Tensor, count: int) -> Tensor:
        return (where + torch.randn(*where.shape[:2], h, count, 3)).transpose(1, 2)

    given = [
        torch.randn(b, h, i, channels),
        torch.randn(b, h, j, channels),
        torch.randn(b, h, j, channels),
        points(place, of_queries),
        points(key_place, of_queries),
        points(key_place, of_values),
        3 * torch.randn(b, i, j, c_z) + torch.randn(b, i, j, 1),
    ]
    key_mask = mask(b, j, empty_row=False)
    key_mask[:, 0] = 1
    weights = PointAttentionWeights((torch.rand(h) + 0.1).requires_grad_(), norm(c_z), affine(h, c_z))
    return [*(each.requires_grad_() for each in given), torch.ones(b, i), key_mask, weights]


@pytest.mark.parametrize(
    ("i", "j", "options"),
    [(1, 1, {}), (7, 63, {"b": 2}), (65, 7, {"h": 1}), (200, 256, {"h": 12}), (1, 65, {"h": 12}), (2, 2500, {})],
)
def test_outputs_and_gradients_equal_the_references(i: int, j: int, options: dict[str, int]) -> None:
    given = arguments(i, j, **options)
    with forced("rows") as used:
        assert_equal(invariant_point_attention, invariant_point_attention.reference, given)
    assert used["invariant_point_attention"] == 1


@pytest.mark.parametrize("turned", [False, True])
def test_rows_of_a_larger_pair_are_taken_where_they_are(turned: bool) -> None:
    given = arguments(20, 9)
    with torch.no_grad():
        pair = given[PAIR].new_empty(1, 9, 40, 6).transpose(1, 2) if turned else given[PAIR].new_empty(1, 40, 9, 6)
        given[PAIR] = pair[:, 5:25].copy_(given[PAIR])
    expected = invariant_point_attention(*given[:PAIR], given[PAIR].contiguous(), *given[PAIR + 1 :])
    with torch.no_grad():
        assert all(map(torch.equal, invariant_point_attention(*given), expected))
    given[PAIR] = given[PAIR].detach().requires_grad_()
    assert_equal(invariant_point_attention, invariant_point_attention.reference, given)


def test_a_bfloat16_pair_loses_no_more_than_in_the_reference() -> None:
    def all_else_in_float32(run: Any) -> Any:
        def attention(*given: Any) -> Any:
            weights = given[-1]._replace(point_weight=given[-1].point_weight.float())
            wide = [*(each.float() if each.dtype == torch.bfloat16 else each for each in given[:-1]), weights]
            return run(*wide[:PAIR], given[PAIR], *wide[PAIR + 1 :])

        return attention

    runs = [all_else_in_float32(each) for each in (invariant_point_attention, invariant_point_attention.reference)]
    with forced("rows") as used:
        assert_as_near(*runs, arguments(30, 70, h=4, c_z=32), floor=1e-5)
    assert used["invariant_point_attention"] == 1


@pytest.mark.parametrize(("extent", "center"), [(20.0, 0.0), (10.0, 100.0)])
def test_near_points_far_from_the_origin_keep_their_distances(extent: float, center: float) -> None:
    given = arguments(40, 40, extent=extent, center=center)
    given[KEY_MASK][:] = 1
    with torch.no_grad():
        # Every query is near one key, as every residue is near itself.
        given[4] += 0.1 * (given[3] - given[4])
        given[4] += 0.8 * (given[3] - given[4])
    with forced("rows") as used:
        assert_equal(invariant_point_attention, invariant_point_attention.reference, given)
    assert used["invariant_point_attention"] == 1


def test_padding_is_not_seen_and_attends_itself_to_everything() -> None:
    given = arguments(9, 9, b=2)
    given[KEY_MASK][:] = 1
    given[MASK][0, 5:] = given[KEY_MASK][0, 5:] = 0
    given[MASK][1] = given[KEY_MASK][1] = 0
    # Logits of padding keep two decimals beside the 1e5, in the reference as well.
    with forced("rows"):
        assert_equal(invariant_point_attention, invariant_point_attention.reference, given, tolerance=1e-2)
        found = invariant_point_attention(*given)
        with torch.no_grad():
            for each in (1, 2, 4, 5):
                given[each][0, :, 5:] += 1
            given[PAIR][0, :, 5:, 0] += 1
        other = invariant_point_attention(*given)
    for before, after in zip(found, other, strict=True):
        assert torch.equal(before[0, :, :5], after[0, :, :5])
        assert not torch.allclose(before[0, :, 5:], after[0, :, 5:])


def test_a_training_pass_keeps_the_pair_as_it_came_and_nothing_else_of_its_size() -> None:
    given, kept = arguments(60, 60), []
    given[PAIR] = given[PAIR].detach().bfloat16().requires_grad_()

    def pack(each: Tensor) -> Tensor:
        kept.append(each)
        return each

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda each: each):
        invariant_point_attention(*given)
    large = [each for each in kept if each.numel() >= 60 * 60]
    assert [each.untyped_storage().data_ptr() for each in large] == [given[PAIR].untyped_storage().data_ptr()]


def test_what_it_cannot_take_is_left_to_the_reference() -> None:
    given = arguments(3, 4)
    assert invariant_point_attention.unsupported_reasons(DEVICE_MODELS["cpu"], *given)["rows"] is None
    for dtype in (torch.float64, torch.bfloat16):
        reasons = invariant_point_attention.unsupported_reasons(DEVICE_MODELS["cpu"], given[0].to(dtype), *given[1:])
        assert reasons["rows"] == f"{dtype} is left to the reference"
    empty = arguments(0, 4)
    assert (
        invariant_point_attention.unsupported_reasons(DEVICE_MODELS["cpu"], *empty)["rows"]
        == "there is nothing to compute"
    )
    assert invariant_point_attention(*empty)[0].shape == (1, 3, 0, 4)
