"""What every update promises to the executors that carry it out."""

from collections.abc import Iterator

import pytest
import torch

from helixfold.model.config import StackConfig, TemplateConfig
from helixfold.model.evoformer import EvoformerBlock
from helixfold.model.templates import TemplatePairBlock
from helixfold.model.update import Context, Update, transposed

C_M, C_Z, ROWS, RESIDUES = 16, 8, 5, 7


def updates() -> Iterator[tuple[str, Update]]:
    """All updates of all blocks, with random parameters."""
    stack = StackConfig(blocks=1, c_m=C_M, msa_heads=4, pair_heads=2, c_outer=4, c_triangle=6)
    blocks = {
        "evoformer": EvoformerBlock(stack, C_Z, global_columns=False),
        "extra": EvoformerBlock(stack, C_Z, global_columns=True),
        "template": TemplatePairBlock(TemplateConfig(blocks=1, c_t=C_Z, pair_heads=2, c_triangle=6)),
    }
    for block_name, block in blocks.items():
        for parameter in block.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
        yield from ((f"{block_name}.{name}", update.eval()) for name, update in block.named_children())


UPDATES = dict(updates())


def stream_and_context_input(name: str) -> tuple[torch.Tensor, ...]:
    """Stream, its mask, the context's source and its mask, not transposed."""
    torch.manual_seed(1)
    msa, msa_mask = torch.randn(2, ROWS, RESIDUES, C_M), (torch.rand(2, ROWS, RESIDUES) > 0.2).float()
    pair, pair_mask = torch.randn(2, RESIDUES, RESIDUES, C_Z), (torch.rand(2, RESIDUES, RESIDUES) > 0.2).float()
    last = name.split(".")[1]
    if last == "outer_product_mean":
        return pair, pair_mask, msa, msa_mask
    if last == "row_attention":
        return msa, msa_mask, pair, pair_mask
    return (msa, msa_mask) * 2 if last in ("column_attention", "msa_transition") else (pair, pair_mask) * 2


def parts(update: Update, name: str) -> tuple[list[torch.Tensor], Context, list[torch.Tensor]]:
    """Transposed stream and mask, context, and the transposed source if `forward` reads it."""
    stream, mask, source, source_mask = stream_and_context_input(name)
    context_rows = [transposed(each, update.context_axis) for each in (source, source_mask)]
    return (
        [transposed(each, update.axis) for each in (stream, mask)],
        update.context(*context_rows),
        context_rows if update.reads_context_rows else [],
    )


@pytest.mark.parametrize("name", UPDATES)
def test_a_row_does_not_depend_on_the_others_in_its_slab(name: str) -> None:
    update = UPDATES[name]
    slabs, context, aligned = parts(update, name)
    whole = update(*slabs, context, *aligned)
    row = slice(2, 3)
    alone = update(*(each[:, row] for each in slabs), context, *(each[:, row] for each in aligned))
    torch.testing.assert_close(alone, whole[:, row], rtol=1e-5, atol=1e-5)
    assert whole.shape == slabs[0].shape


@pytest.mark.parametrize("name", UPDATES)
def test_context_may_be_computed_in_parts(name: str) -> None:
    update = UPDATES[name]
    _, _, source, source_mask = stream_and_context_input(name)
    context_rows = [transposed(each, update.context_axis) for each in (source, source_mask)]
    whole = update.context(*context_rows)
    pieces = [update.context(*(each[:, part] for each in context_rows)) for part in (slice(0, 2), slice(2, None))]
    for index, expected in enumerate(whole):
        joined = torch.cat([piece[index] for piece in pieces], update.context_dim)
        torch.testing.assert_close(joined, expected, rtol=1e-5, atol=1e-5)


DROPOUT = {
    "row_attention": ("rows", 0.15),
    "column_attention": ("columns", 0.0),
    "msa_transition": ("rows", 0.0),
    "outer_product_mean": ("rows", 0.0),
    "triangle_outgoing": ("rows", 0.25),
    "triangle_incoming": ("rows", 0.25),
    "triangle_starting": ("rows", 0.25),
    "triangle_ending": ("columns", 0.25),
    "pair_transition": ("rows", 0.0),
}


@pytest.mark.parametrize("name", UPDATES)
def test_dropout_is_the_papers(name: str) -> None:
    """AlphaFold 2, Suppl. Alg. 6: row-wise, but column-wise round the ending node; none in transitions and columns."""
    update = UPDATES[name]
    axis, rate = DROPOUT[name.split(".")[1]]
    try:
        kept = update.train().dropout_mask((1, 40, 50, 64), dtype=torch.float32, device=torch.device("cpu"))
    finally:
        update.eval()
    assert update.dropout_mask((1, 2, 2, 1), dtype=torch.float32, device=torch.device("cpu")) is None
    if rate == 0:
        assert kept is None
        return
    assert kept is not None
    assert kept.shape == ((1, 1, 50, 64) if axis == "rows" else (1, 40, 1, 64))
    torch.testing.assert_close(kept.unique(), torch.tensor([0.0, 1 / (1 - rate)]))
    assert abs((kept == 0).float().mean() - rate) < 0.04


def test_turning_twice_gives_the_stream_back() -> None:
    stream, mask = torch.randn(1, 3, 4, 2), torch.ones(1, 3, 4)
    assert transposed(stream, "columns").shape == (1, 4, 3, 2)
    assert transposed(mask, "columns").shape == (1, 4, 3)
    assert (transposed(transposed(stream, "columns"), "columns") == stream).all()
    assert transposed(stream, "rows") is stream
    assert transposed(stream, "columns").data_ptr() == stream.data_ptr()
