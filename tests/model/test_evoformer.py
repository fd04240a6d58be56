"""Blocks carry out the right updates in the right order."""

import pytest
import torch
from torch import Tensor

from helixfold.execution.whole import Whole
from helixfold.model.config import OuterProductPosition, StackConfig
from helixfold.model.evoformer import EvoformerBlock, EvoformerStack, outer_mask
from helixfold.model.update import ContextInput, Update
from helixfold.ops.cpu import products
from helixfold.ops.dispatch import forced
from tests.support.networks import relative_error, tiny_config

MSA_UPDATES = ["row_attention", "column_attention", "msa_transition"]
PAIR_UPDATES = ["triangle_outgoing", "triangle_incoming", "triangle_starting", "triangle_ending", "pair_transition"]

# What each backend must be used for in a block.
FUSED = {"self_attention", "outer_product_operands", "outer_product_mean", "transition", "triangle_update"}


def streams(rows: int = 5, n: int = 9) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(1, rows, n, 64), torch.randn(1, n, n, 32), torch.ones(1, rows, n), torch.ones(1, n, n)]


def random_block(outer_product: OuterProductPosition) -> EvoformerBlock:
    config = tiny_config(outer_product)
    block = EvoformerBlock(config.evoformer, config.c_z, global_columns=False).eval()
    torch.manual_seed(1)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return block


@pytest.mark.parametrize(
    ("outer_product", "expected"),
    [
        ("middle", [*MSA_UPDATES, "outer_product_mean", *PAIR_UPDATES]),
        ("first", ["outer_product_mean", *MSA_UPDATES, *PAIR_UPDATES]),
        ("end", [*MSA_UPDATES, *PAIR_UPDATES, "outer_product_mean"]),
    ],
)
def test_updates_are_carried_out_in_the_papers_order(outer_product: OuterProductPosition, expected: list[str]) -> None:
    block, done = random_block(outer_product), []
    names = {update: name for name, update in block.named_children()}

    class Recording(Whole):
        def __call__(
            self, update: Update, stream: Tensor, mask: Tensor, context_from: ContextInput | None = None
        ) -> Tensor:
            done.append(names[update])
            return super().__call__(update, stream, mask, context_from)

    block(Recording(), *streams())
    assert done == expected


def test_the_three_places_of_the_outer_product_differ() -> None:
    results = {}
    with torch.no_grad():
        for place in ("middle", "first", "end"):
            results[place] = random_block(place)(Whole(), *streams())
    for one, other in (("middle", "first"), ("middle", "end"), ("first", "end")):
        assert relative_error(results[one][1], results[other][1]) > 0.05
    # Only where the outer product comes first do the MSA's own updates see it.
    assert (results["middle"][0] == results["end"][0]).all()
    assert relative_error(results["first"][0], results["middle"][0]) > 1e-3


def test_at_the_end_the_two_streams_of_a_block_do_not_wait_for_each_other() -> None:
    """HelixFold's parallel block: pair updates read the pair stream alone, but for the last."""
    msa, pair, msa_mask, pair_mask = streams()
    found = []
    for rows in (msa, torch.randn_like(msa)):
        block = random_block("end")
        block.outer_product_mean.out.weight.data.zero_()
        found.append(block(Whole(), rows, pair, msa_mask, pair_mask)[1])
    assert (found[0] == found[1]).all()


def test_a_stack_is_its_blocks_one_after_the_other() -> None:
    stack = EvoformerStack(StackConfig(blocks=3, c_m=64, c_triangle=16), 32).eval()
    for parameter in stack.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    msa, pair, *masks = streams()
    assert len(stack.blocks) == 3
    with torch.no_grad():
        expected = (msa, pair)
        for block in stack.blocks:
            expected = block(Whole(), *expected, *masks)
        found = stack(Whole(), msa, pair, *masks)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours == theirs).all()


def test_a_pair_is_real_where_both_residues_are() -> None:
    mask = torch.tensor([[1.0, 0.0, 1.0]])
    assert outer_mask(mask)[0].tolist() == [[1, 0, 1], [0, 0, 0], [1, 0, 1]]


@pytest.mark.parametrize(
    ("backend", "has_onednn"),
    [
        ("rows", True),
        pytest.param("rows", False, id="rows, as where PyTorch has no oneDNN"),
        pytest.param("triton", True, marks=pytest.mark.integration),
    ],
)
def test_every_backend_gives_the_streams_and_gradients_of_the_references(
    backend: str, has_onednn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend == "triton":
        pytest.importorskip("triton")
    elif has_onednn and not products.HAS_ONEDNN:
        pytest.skip("this PyTorch has no oneDNN")
    monkeypatch.setattr(products, "HAS_ONEDNN", has_onednn)
    for minimum in ("_MIN_MULTIPLICATIONS", "_MIN_MULTIPLICATIONS_OF_ONE"):
        monkeypatch.setattr(products, minimum, 0)
    block, given = random_block("middle"), streams(rows=3, n=5)  # kernels are interpreted, which takes long

    def results(name: str) -> list[Tensor]:
        leaves = [each.clone().requires_grad_() for each in given[:2]]
        with forced(name) as used:
            msa, pair = block(Whole(), *leaves, *given[2:])
            gradients = torch.autograd.grad([msa.square().sum() + pair.square().sum()], [*leaves, *block.parameters()])
        assert used.keys() >= FUSED
        return [each.detach() for each in (msa, pair, *gradients)]

    for ours, theirs in zip(results(backend), results("reference"), strict=True):
        # Some gradients are nothing but rounding: softmax takes no notice of what all its logits have in common.
        assert (ours - theirs).abs().max() < 1e-5 * max(1.0, float(theirs.abs().max()))
