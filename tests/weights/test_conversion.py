import pytest
import torch

from data_pipeline.io.errors import InputError
from helixfold.weights.conversion import (
    IDENTITY,
    TRANSPOSE,
    Axes,
    ParameterMapping,
    differences,
    from_heads,
    head_bias,
    to_heads,
    to_ours,
    to_theirs,
)


@pytest.mark.parametrize(
    ("axes", "theirs", "ours"),
    [
        (IDENTITY, (5,), (5,)),
        (TRANSPOSE, (5, 7), (7, 5)),
        (TRANSPOSE, (1, 7), (7, 1)),
        (to_heads(3), (5, 3, 2), (6, 5)),
        (from_heads(3), (3, 2, 5), (5, 6)),
        (head_bias(3), (3, 2), (6,)),
    ],
)
def test_axes_are_moved_and_moved_back(axes: Axes, theirs: tuple[int, ...], ours: tuple[int, ...]) -> None:
    array = torch.randn(theirs)
    moved = axes.to_ours(array)
    assert moved.shape == ours
    assert torch.equal(axes.to_theirs(moved), array)
    row = ParameterMapping(ours=("a",), theirs=("b",), axes=axes, stacked=False)
    assert torch.equal(row.to_ours([array])[0], moved)
    assert torch.equal(row.to_theirs([moved])[0], array)
    assert row.their_shape(ours) == theirs


def test_heads_are_the_slow_axis() -> None:
    numbers = torch.arange(12)
    assert to_heads(3).to_ours(numbers.reshape(1, 3, 4))[:, 0].tolist() == list(range(12))
    assert from_heads(3).to_ours(numbers.reshape(3, 4, 1))[0].tolist() == list(range(12))
    assert head_bias(3).to_ours(numbers.reshape(3, 4)).tolist() == list(range(12))


def test_query_key_and_value_of_every_block_become_one_tensor() -> None:
    row = ParameterMapping(ours=("a.0", "a.1"), theirs=("q", "k", "v"), axes=to_heads(2), stacked=True)
    arrays = {name: torch.randn(2, 5, 2, 3) for name in ("q", "k", "v")}
    state = to_ours([row], arrays)
    assert [state[name].shape for name in ("a.0", "a.1")] == [(18, 5)] * 2
    for part, name in enumerate(("q", "k", "v")):
        assert torch.equal(state["a.1"][6 * part : 6 * part + 6].T.reshape(5, 2, 3), arrays[name][1])
    back = to_theirs([row], state)
    assert all(torch.equal(back[name], arrays[name]) for name in arrays)
    assert row.their_shape((18, 5)) == (2, 5, 2, 3)


def test_two_tensors_of_every_block_are_one_array() -> None:
    row = ParameterMapping(ours=("l.0", "r.0", "l.1", "r.1"), theirs=("lr",), axes=TRANSPOSE, stacked=True, parts=2)
    arrays = {"lr": torch.randn(2, 5, 6)}
    state = to_ours([row], arrays)
    for block in range(2):
        assert torch.equal(state[f"l.{block}"], arrays["lr"][block, :, :3].T)
        assert torch.equal(state[f"r.{block}"], arrays["lr"][block, :, 3:].T)
    assert torch.equal(to_theirs([row], state)["lr"], arrays["lr"])
    assert row.their_shape((3, 5)) == (2, 5, 6)
    state["l.0"].zero_()
    assert torch.equal(state["r.0"], arrays["lr"][0, :, 3:].T)


def test_converted_tensors_share_no_memory_with_their_source() -> None:
    row = ParameterMapping(ours=("a",), theirs=("b",), axes=IDENTITY, stacked=False)
    source = torch.zeros(3)
    to_ours([row], {"b": source})["a"].add_(1)
    to_theirs([row], {"a": source})["b"].add_(1)
    assert source.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("names", "word"), [(("a",), "1 array (b) is missing"), (("a", "b", "c", "d"), "2 arrays (c, d) are unknown")]
)
def test_names_that_do_not_fit_are_refused(names: tuple[str, ...], word: str) -> None:
    rows = [ParameterMapping(ours=(name.upper(),), theirs=(name,), axes=IDENTITY, stacked=False) for name in ("a", "b")]
    with pytest.raises(InputError) as refused:
        to_ours(rows, dict.fromkeys(names, torch.zeros(1)))
    assert word in str(refused.value)


def test_differences_list_everything_and_count_the_rest() -> None:
    expected = {**{f"m{number}": (1,) for number in range(9)}, "s": (2, 3), "same": (4,)}
    text = differences(expected, {"s": (3, 2), "same": (4,), "new": (1,)})
    assert text == (
        "9 arrays (m0, m1, m2, m3, m4 and 4 more) are missing; 1 array (new) is unknown; "
        "1 array (s [3, 2] instead of [2, 3]) is of another shape"
    )
    assert differences(expected, expected) == ""
