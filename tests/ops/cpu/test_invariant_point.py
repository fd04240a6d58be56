"""Invariant point attention in blocks of rows equals its reference, wherever the points are."""

import pytest
import torch
from torch import Tensor

from helixfold.ops.dispatch import forced
from helixfold.ops.invariant_point import (
    INVARIANT_POINT_ATTENTION,
    invariant_point_attention,
    invariant_point_attention_reference,
)
from tests.ops.comparing import assert_equal, mask


def arguments(
    i: int, j: int, h: int = 3, b: int = 1, c_z: int = 6, *, extent: float = 1.0, center: float = 0.0
) -> list[Tensor]:
    """As the structure module makes them: heads' points are views of (b r h p x), one residue's are close together."""
    place, key_place = (center + extent * torch.randn(b, r, 1, 1, 3) for r in (i, j))

    def points(where: Tensor, count: int) -> Tensor:
        return (where + torch.randn(*where.shape[:2], h, count, 3)).transpose(1, 2)

    given = [
        torch.randn(b, h, i, 4),
        torch.randn(b, h, j, 4),
        torch.randn(b, h, j, 4),
        points(place, 2),
        points(key_place, 2),
        points(key_place, 3),
        torch.rand(h) + 0.1,
        torch.randn(b, i, j, h).permute(0, 3, 1, 2),
        torch.randn(b, i, j, c_z),
    ]
    key_mask = mask(b, j, empty_row=False)
    key_mask[:, 0] = 1
    return [*(each.requires_grad_() for each in given), torch.ones(b, i), key_mask]


@pytest.mark.parametrize(
    ("i", "j", "options"), [(1, 1, {}), (7, 63, {"b": 2}), (65, 7, {"h": 1}), (200, 256, {}), (1, 65, {"h": 12})]
)
def test_outputs_and_gradients_equal_the_references(i: int, j: int, options: dict[str, int]) -> None:
    given = arguments(i, j, **options)
    with forced("rows") as used:
        assert_equal(invariant_point_attention, invariant_point_attention_reference, given)
    assert used["invariant_point_attention"] == 1


@pytest.mark.parametrize(("extent", "center"), [(20.0, 0.0), (10.0, 100.0)])
def test_near_points_far_from_the_origin_keep_their_distances(extent: float, center: float) -> None:
    given = arguments(40, 40, extent=extent, center=center)
    given[-1][:] = 1
    with torch.no_grad():
        # Every query is near one key, as every residue is near itself.
        given[4] += 0.1 * (given[3] - given[4])
        given[4] += 0.8 * (given[3] - given[4])
    with forced("rows") as used:
        assert_equal(invariant_point_attention, invariant_point_attention_reference, given)
    assert used["invariant_point_attention"] == 1


def test_padding_is_not_seen_and_attends_itself_to_everything() -> None:
    given = arguments(9, 9, b=2)
    given[-1][:] = 1
    given[-2][0, 5:] = given[-1][0, 5:] = 0
    given[-2][1] = given[-1][1] = 0
    # Logits of padding keep two decimals beside the 1e5, in the reference as well.
    with forced("rows"):
        assert_equal(invariant_point_attention, invariant_point_attention_reference, given, tolerance=1e-2)
        found = invariant_point_attention(*given)
        with torch.no_grad():
            for each in (1, 2, 4, 5):
                given[each][0, :, 5:] += 1
            given[8][0, :, 5:] += 1
        other = invariant_point_attention(*given)
    for before, after in zip(found, other, strict=True):
        assert torch.equal(before[0, :, :5], after[0, :, :5])
        assert not torch.allclose(before[0, :, 5:], after[0, :, 5:])


def test_nothing_of_the_size_of_pairs_is_kept_but_the_arguments() -> None:
    given, new = arguments(60, 60), []
    before = {each.untyped_storage().data_ptr() for each in given}

    def pack(each: Tensor) -> Tensor:
        if each.untyped_storage().data_ptr() not in before:
            new.append(each.numel())
        return each

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda each: each):
        invariant_point_attention(*given)
    assert max(new) < 60 * 60


def test_what_it_cannot_take_is_left_to_the_reference() -> None:
    given = arguments(3, 4)
    assert INVARIANT_POINT_ATTENTION.refusals("cpu", *given)["rows"] is None
    for dtype in (torch.float64, torch.bfloat16):
        refusals = INVARIANT_POINT_ATTENTION.refusals("cpu", *(each.to(dtype) for each in given))
        assert refusals["rows"] == f"{dtype} is left to the reference"
    empty = arguments(0, 4)
    assert INVARIANT_POINT_ATTENTION.refusals("cpu", *empty)["rows"] == "there is nothing to compute"
    assert invariant_point_attention(*empty)[0].shape == (1, 3, 0, 4)
