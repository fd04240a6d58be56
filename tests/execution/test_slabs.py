"""`Slabs` computes what `Whole` computes, in the stream's own memory."""

import math
from contextlib import nullcontext

import pytest
import torch

from helixfold.execution import slabs
from helixfold.execution.slabs import Slabs, map_row_bytes
from helixfold.execution.whole import Whole
from helixfold.model.config import StackConfig
from helixfold.model.evoformer import EvoformerBlock, EvoformerStack
from helixfold.model.layers import Transition
from helixfold.model.triangle import TriangleMultiplication
from helixfold.ops.device_properties import properties_of, simulated_device
from tests.support.networks import random_batch, relative_error, tiny_config, tiny_model


def streams(c_m: int = 64, c_z: int = 32, rows: int = 6, residues: int = 11) -> list[torch.Tensor]:
    msa, pair = torch.randn(2, rows, residues, c_m), torch.randn(2, residues, residues, c_z)
    msa_mask = (torch.rand(2, rows, residues) > 0.2).float()
    pair_mask = (torch.rand(2, residues, residues) > 0.2).float()
    return [msa, pair, msa_mask, pair_mask]


def random_stack(outer_product: str, global_columns: bool) -> EvoformerStack:
    config = tiny_config(outer_product)
    stack = EvoformerStack(config.evoformer, config.c_z, global_columns=global_columns).eval()
    for parameter in stack.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return stack


@pytest.mark.parametrize("rows", [1, 7, 10**6])
@pytest.mark.parametrize("outer_product", ["first", "middle", "end"])
@pytest.mark.parametrize("global_columns", [False, True])
def test_a_stack_gives_the_same_streams_as_whole(rows: int, outer_product: str, global_columns: bool) -> None:
    stack = random_stack(outer_product, global_columns)
    inputs = streams()
    with torch.no_grad():
        whole = stack(Whole(), *inputs)
        slabs = stack(Slabs(rows=rows), *[each.clone() for each in inputs])
    for ours, theirs in zip(slabs, whole, strict=True):
        assert relative_error(ours, theirs) < 1e-5


@pytest.mark.parametrize("budget", [1, 2**16, 2**30])
def test_the_whole_model_agrees_at_every_budget(budget: int) -> None:
    model, batch = tiny_model(), random_batch()
    with torch.no_grad():
        whole, slabs = (model(run, [batch]) for run in (Whole(), Slabs(budget=budget)))
    assert relative_error(slabs.structure.positions, whole.structure.positions) < 1e-5
    assert relative_error(slabs.logits.distogram, whole.logits.distogram) < 1e-5


def test_the_streams_keep_their_memory() -> None:
    stack = random_stack("middle", False)
    inputs = streams()
    msa, pair = stack(Slabs(rows=3), *inputs)
    assert (msa.data_ptr(), pair.data_ptr()) == (inputs[0].data_ptr(), inputs[1].data_ptr())


@pytest.mark.parametrize("replaces", [False, True])
def test_rows_are_made_slab_by_slab(replaces: bool) -> None:
    one, other = torch.randn(2, 7, 4), torch.randn(2, 7, 3)
    expected, sizes = one * other.sum(-1, keepdim=True), list[int]()

    def make(rows: slice, some: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        sizes.append(some.shape[1])
        assert rows.stop - rows.start == some.shape[1]
        return some * others.sum(-1, keepdim=True)

    run = Slabs(rows=3)
    made = (run.replace_rows if replaces else run.map_rows)(make, one, other)
    assert torch.equal(run.gather(made), expected)
    assert (run.gather(made).data_ptr() == one.data_ptr()) == replaces
    # Of one row, to see what comes out, where there is no room for it yet.
    assert sizes == [*([] if replaces else [1]), 3, 3, 1]


def test_a_copy_may_be_given_away() -> None:
    stream = torch.randn(1, 5, 3)
    copied = Slabs(rows=2).copy(stream)
    Slabs(rows=2).replace_rows(lambda _, rows: rows + 1, copied)
    assert torch.equal(Slabs().gather(copied), stream + 1)


@pytest.mark.parametrize(("numbers", "most"), [(4, 7), (8, 3), (1000, 1)])
def test_the_rows_of_a_slab_follow_from_what_they_are_found_to_take(
    numbers: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slabs, "_row_bytes", {})
    sizes, rows = list[int](), torch.randn(1, 7, 2)

    def make(_: slice, some: torch.Tensor) -> torch.Tensor:
        sizes.append(some.shape[1])
        torch.empty(some.shape[1], numbers)
        return some

    Slabs(budget=4 * 4 * 7).replace_rows(make, rows)
    # After those that are run to be measured.
    used = sizes[-math.ceil(7 / most) :]
    assert (max(used), sum(used)) == (most, 7)


def test_gradients_are_not_recorded() -> None:
    inputs = streams()
    msa, pair = random_stack("middle", False)(Slabs(), *inputs)
    assert not msa.requires_grad
    assert not pair.requires_grad


def test_a_larger_budget_means_fewer_slabs() -> None:
    block = EvoformerBlock(StackConfig(blocks=1, c_m=64), 32, global_columns=False).eval()
    calls = dict.fromkeys((2**16, 2**22), 0)
    for budget in calls:

        def count(*_: object, budget: int = budget) -> None:
            calls[budget] += 1

        handle = block.triangle_starting.register_forward_hook(count)
        block(Slabs(budget=budget), *streams())
        handle.remove()
    assert calls[2**16] > calls[2**22] == 1


def test_dropout_is_refused() -> None:
    block = EvoformerBlock(StackConfig(blocks=1, c_m=64), 32, global_columns=False).train()
    with pytest.raises(ValueError, match="inference"):
        block(Slabs(), *streams())


@pytest.mark.parametrize(("budget", "rows"), [(0, None), (None, 0)])
def test_impossible_sizes_are_refused(budget: int, rows: int | None) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Slabs(budget, rows)


def test_what_temporaries_left_is_given_back_after_every_update_of_a_large_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = []
    monkeypatch.setattr(slabs, "return_free_memory", lambda: given.append(1))
    update = Transition(4, 2).eval()
    for least, expected in ((2**30, 0), (0, 1)):
        monkeypatch.setattr(slabs, "MIN_SETTLED", least)
        Slabs()(update, torch.zeros(1, 3, 3, 4), torch.ones(1, 3, 3))
        assert len(given) == expected


def test_a_new_stream_is_not_made_beside_the_last_context() -> None:
    run, held = Slabs(rows=2), []
    update = TriangleMultiplication(8, 8, "rows", 0.0).eval()
    run(update, torch.zeros(1, 5, 5, 8), torch.ones(1, 5, 5))
    assert run._buffer is not None

    def rows(_: slice, mask: torch.Tensor) -> torch.Tensor:
        held.append(run._buffer)
        return torch.zeros(1, mask.shape[1], 5, 8)

    run.map_rows(rows, torch.ones(1, 5))
    assert held
    assert all(each is None for each in held)


def test_rows_measured_in_a_run_do_not_count_for_an_estimate() -> None:
    measured = []

    def make(_: slice, rows: torch.Tensor) -> torch.Tensor:
        measured.append(rows.device.type)
        return rows + 1

    properties = properties_of(torch.device("cpu"))
    for device in ("cpu", "meta"):
        stream = torch.ones(1, 9, 7, device=device)
        with simulated_device(properties) if device == "meta" else nullcontext():
            map_row_bytes(make, stream[:, :1], lambda count, stream=stream: [stream[:, :count]], [stream])
    assert measured == ["cpu"] * 2 + ["meta"] * 2
