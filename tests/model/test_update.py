"""What every update promises to the executors that carry it out.

All updates that the blocks carry out are tested, in the order in which they come. A new one needs no line here if a
setting of type `bool` adds it.
"""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import nn

from helixfold.model.config import StackConfig, TemplateConfig
from helixfold.model.evoformer import EvoformerBlock
from helixfold.model.templates import TemplatePairBlock
from helixfold.model.update import Context, ContextInput, Executor, Stream, Update, transposed

C_M, C_Z, ROWS, RESIDUES = 16, 8, 5, 7
Run = tuple[Update, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


class Recorder(Executor):
    """Carries out nothing, and notes each update with its stream, the context's source, and their masks."""

    def __init__(self) -> None:
        self.runs: list[Run] = []

    def __call__(
        self, update: Update, stream: Stream, mask: torch.Tensor, context_from: ContextInput | None = None
    ) -> Stream:
        self.runs.append((update, stream, mask, *(context_from or (stream, mask))))
        return stream

    def map_rows(self, *_: object) -> Stream:
        raise NotImplementedError("blocks make no streams")


def switched_on(kind: type) -> dict[str, Any]:
    """Every setting of type `bool`, as true."""
    return {field.name: True for field in fields(kind) if field.type is bool}


def stack(**settings: Any) -> StackConfig:
    sizes = {"blocks": 1, "c_m": C_M, "msa_heads": 4, "pair_heads": 2, "c_outer": 4, "c_triangle": 6}
    return StackConfig(**sizes, **switched_on(StackConfig), **settings)


def streams() -> tuple[torch.Tensor, ...]:
    """An MSA and a pair stream, and their masks."""
    torch.manual_seed(1)
    msa, msa_mask = torch.randn(2, ROWS, RESIDUES, C_M), (torch.rand(2, ROWS, RESIDUES) > 0.2).float()
    pair, pair_mask = torch.randn(2, RESIDUES, RESIDUES, C_Z), (torch.rand(2, RESIDUES, RESIDUES) > 0.2).float()
    return msa, pair, msa_mask, pair_mask


def updates() -> Iterator[tuple[str, Run]]:
    """All updates of all blocks, with random parameters and what they are given."""
    template = TemplateConfig(blocks=1, c_t=C_Z, pair_heads=2, c_triangle=6, **switched_on(TemplateConfig))
    blocks = {
        "evoformer": EvoformerBlock(stack(), C_Z, global_columns=False),
        "extra": EvoformerBlock(stack(), C_Z, global_columns=True),
        "template": TemplatePairBlock(template),
    }
    msa, pair, msa_mask, pair_mask = streams()
    for block_name, block in blocks.items():
        for parameter in block.parameters():
            nn.init.normal_(parameter, std=0.5)
        run = Recorder()
        block.eval()(run, *((pair, pair_mask) if block_name == "template" else (msa, pair, msa_mask, pair_mask)))
        names = {module: name for name, module in block.named_modules()}
        yield from ((f"{block_name}.{names[given[0]]}", given) for given in run.runs)


RUNS = dict(updates())
UPDATES = {name: given[0] for name, given in RUNS.items()}


def kinds(of: type[Update]) -> set[type[Update]]:
    """All classes of updates in the package."""
    found = {each for kind in of.__subclasses__() for each in (kind, *kinds(kind))}
    return {each for each in found if each.__module__.startswith("helixfold.")}


def test_all_updates_of_the_network_are_tested() -> None:
    without = kinds(Update) - {type(update) for update in UPDATES.values()}
    assert not without, "no block in `updates` carries these out; give it the setting that adds them"


@pytest.mark.parametrize("global_columns", [False, True])
def test_both_halves_of_a_block_together_are_the_block(global_columns: bool) -> None:
    """Branch parallelism carries out the two halves and the outer product mean, and nothing else."""
    block = EvoformerBlock(stack(outer_product="end"), C_Z, global_columns=global_columns)
    msa, pair, msa_mask, pair_mask = streams()
    whole, halves = Recorder(), Recorder()
    block(whole, msa, pair, msa_mask, pair_mask)
    block.msa_half(halves, msa, pair, msa_mask, pair_mask)
    block.pair_half(halves, pair, pair_mask)
    expected = [update for update, *_ in halves.runs] + [block.outer_product_mean]
    assert [update for update, *_ in whole.runs] == expected, "call new updates in `msa_half` or in `pair_half`"


def stream_and_context_input(name: str) -> tuple[torch.Tensor, ...]:
    """Stream, its mask, the context's source and its mask, not transposed."""
    return RUNS[name][1:]


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
    """AlphaFold 2, Suppl. Alg. 6: row-wise, but column-wise round the ending node; none in transitions and columns.

    Updates that the paper does not have drop what they say.
    """
    update = UPDATES[name]
    axis, rate = DROPOUT.get(name.split(".")[1], (update.dropout_axis, update.dropout_rate))
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
