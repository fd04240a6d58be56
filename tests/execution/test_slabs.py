"""`Slabs` computes what `Whole` computes, in the stream's own memory."""

import pytest
import torch

from helixfold.config import StackConfig
from helixfold.execution import slabs
from helixfold.execution.slabs import Slabs
from helixfold.execution.whole import Whole
from helixfold.model.evoformer import EvoformerBlock, EvoformerStack
from helixfold.model.layers import Transition
from helixfold.model.triangle import TriangleMultiplication
from helixfold.model.update import Update, row_numbers
from tests.networks import random_batch, relative_error, tiny_config, tiny_model


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


@pytest.mark.parametrize("given", ["nothing", "room", "what is read"])
def test_rows_are_made_slab_by_slab_in_the_memory_given(given: str) -> None:
    one, other = torch.randn(2, 7, 4), torch.randn(2, 7, 3)
    into = {"nothing": None, "room": torch.full_like(one, torch.nan), "what is read": one}[given]
    expected, sizes = one * other.sum(-1, keepdim=True), list[int]()

    def make(some: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        sizes.append(some.shape[1])
        return some * others.sum(-1, keepdim=True)

    made = Slabs(rows=3).each(make, one, other, workspace=7, into=into)
    assert torch.equal(made, expected)
    assert into is None or made.data_ptr() == into.data_ptr()
    # Of one row, to see what comes out, where there is no room for it yet.
    assert sizes == [*([1] if into is None else []), 3, 3, 1]


@pytest.mark.parametrize(("workspace", "most"), [(4, 7), (8, 3), (1000, 1)])
def test_the_rows_of_a_slab_follow_from_their_workspace(workspace: int, most: int) -> None:
    sizes = list[int]()
    rows = torch.randn(1, 7, 2)
    Slabs(budget=4 * 4 * 7).each(lambda some: sizes.append(some.shape[1]) or some, rows, workspace=workspace, into=rows)
    assert (max(sizes), sum(sizes)) == (most, 7)


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


def test_every_update_says_what_it_needs() -> None:
    for name, module in tiny_model().named_modules():
        if isinstance(module, Update):
            assert module.workspace(16, 32) > 0, name


def test_what_temporaries_left_is_given_back_after_every_update_of_a_large_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = []
    monkeypatch.setattr(slabs, "give_back", lambda: given.append(1))
    update = Transition(4, 2).eval()
    for least, expected in ((2**30, 0), (0, 1)):
        monkeypatch.setattr(slabs, "LEAST_SETTLED", least)
        Slabs()(update, torch.zeros(1, 3, 3, 4), torch.ones(1, 3, 3))
        assert len(given) == expected


def test_a_new_stream_is_not_made_beside_the_last_context() -> None:
    run, held = Slabs(rows=2), []
    update = TriangleMultiplication(8, 8, "rows", 0.0).eval()
    run(update, torch.zeros(1, 5, 5, 8), torch.ones(1, 5, 5))
    assert run._buffer is not None

    def rows(numbers: torch.Tensor) -> torch.Tensor:
        held.append(run._buffer)
        return torch.zeros(1, numbers.shape[1], 5, 8)

    run.each(rows, row_numbers(5), workspace=1)
    assert held
    assert all(each is None for each in held)
