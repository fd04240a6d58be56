"""Masked residues, sequences and templates change no output and no gradient of any module.

What is expected is computed on smaller inputs, from which they are left out. Masked ones hold large numbers, stand in
the middle, at the front and at the end, and differ between the samples of a batch and between sequences.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from helixfold.execution.slabs import Slabs
from helixfold.execution.whole import Whole
from helixfold.model.alphafold import AlphaFold
from helixfold.model.batch import Batch, MultimerBatch
from helixfold.model.geometry.rigid import Rigid
from helixfold.model.layers import LayerNorm
from helixfold.model.msa import MSAColumnAttention, MSAGlobalColumnAttention, MSARowAttention
from helixfold.model.multimer import MultimerPointAttention
from helixfold.model.outer_product_mean import OuterProductMean
from helixfold.model.outputs import Outputs
from helixfold.model.point_attention import InvariantPointAttention, PairInput
from helixfold.model.triangle import TriangleAttention, TriangleMultiplication
from helixfold.model.update import Executor, Update
from helixfold.ops.structure.quaternions import quaternion_to_rotation
from tests.support.networks import (
    random_batch,
    random_complex,
    tiny_config,
    tiny_multimer_config,
    with_every_parameter_random,
)

C_M, C_Z, HEADS, S, R = 12, 8, 2, 5, 8
# Which of the residues of each sample are real.
REAL = ([1, 2, 4, 5, 7], [0, 1, 2, 3, 5, 6])
RUNS: dict[str, Executor] = {"whole": Whole(), "one row": Slabs(rows=1), "3 rows": Slabs(rows=3), "all": Slabs(rows=99)}
LARGE = 1e3


def randomised(module: nn.Module) -> Any:
    torch.manual_seed(4)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module.eval()


def seq_mask() -> Tensor:
    mask = torch.zeros(2, R)
    for sample, real in enumerate(REAL):
        mask[sample, real] = 1
    return mask


def pair_stream() -> tuple[Tensor, Tensor]:
    """A pair stream that holds large numbers wherever a residue is masked, and its mask."""
    mask = seq_mask()
    pair_mask = mask[:, :, None] * mask[:, None]
    return torch.where(
        pair_mask[..., None] > 0, torch.randn(2, R, R, C_Z), LARGE * torch.randn(2, R, R, C_Z)
    ), pair_mask


def carried_out(update: Update, run: Executor, *streams: Tensor) -> Tensor:
    """The change of the first stream (with its mask, and the context's source and mask if there are more)."""
    stream, mask, *source = streams
    with torch.no_grad():
        found = run(update, stream.clone(), mask, tuple(source) if source else None)
    assert isinstance(found, Tensor)
    return found - stream


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-4)


PAIR_UPDATES: dict[str, Callable[[], Update]] = {
    "outgoing": lambda: TriangleMultiplication(C_Z, 4, "rows", 0.0),
    "incoming": lambda: TriangleMultiplication(C_Z, 4, "columns", 0.0),
    "starting": lambda: TriangleAttention(C_Z, HEADS, "rows", 0.0),
    "ending": lambda: TriangleAttention(C_Z, HEADS, "columns", 0.0),
}


@pytest.mark.parametrize("name", PAIR_UPDATES)
@pytest.mark.parametrize("run", RUNS)
def test_triangles_are_those_of_the_real_residues(name: str, run: str) -> None:
    update = randomised(PAIR_UPDATES[name]())
    pair, mask = pair_stream()
    found = carried_out(update, RUNS[run], pair, mask)
    for sample, real in enumerate(REAL):
        small = pair[sample : sample + 1, real][:, :, real]
        expected = carried_out(update, Whole(), small, torch.ones(small.shape[:3]))
        close(found[sample : sample + 1, real][:, :, real], expected)


@pytest.mark.parametrize("run", RUNS)
def test_row_attention_is_that_of_each_sequences_own_residues(run: str) -> None:
    update = randomised(MSARowAttention(C_M, C_Z, HEADS, 0.0))
    pair, pair_mask = pair_stream()
    msa, mask = torch.randn(2, S, R, C_M), (torch.rand(2, S, R) > 0.3).float()
    mask[:, :, 1] = 1
    msa = msa + LARGE * (1 - mask)[..., None] * torch.randn(2, S, R, C_M)
    found = carried_out(update, RUNS[run], msa, mask, pair, pair_mask)
    for sample in range(2):
        for row in range(S):
            real = mask[sample, row].nonzero()[:, 0]
            small = msa[sample : sample + 1, row : row + 1, real]
            edges = pair[sample : sample + 1, real][:, :, real]
            arguments = (small, torch.ones(small.shape[:3]), edges, torch.ones(edges.shape[:3]))
            close(found[sample, row, real], carried_out(update, Whole(), *arguments)[0, 0])


@pytest.mark.parametrize("kind", [MSAColumnAttention, MSAGlobalColumnAttention])
@pytest.mark.parametrize("run", RUNS)
def test_column_attention_is_that_of_the_sequences_that_have_the_residue(kind: type[Any], run: str) -> None:
    update = randomised(kind(C_M, HEADS))
    mask = (torch.rand(2, S, R) > 0.4).float()
    mask[:, 2] = 1
    msa = torch.randn(2, S, R, C_M) + LARGE * (1 - mask)[..., None] * torch.randn(2, S, R, C_M)
    found = carried_out(update, RUNS[run], msa, mask)
    for sample in range(2):
        for column in range(R):
            real = mask[sample, :, column].nonzero()[:, 0]
            small = msa[sample : sample + 1, real, column : column + 1]
            expected = carried_out(update, Whole(), small, torch.ones(small.shape[:3]))
            close(found[sample, real, column], expected[0, :, 0])


@pytest.mark.parametrize("run", RUNS)
def test_the_outer_product_is_that_of_the_sequences_that_have_both_residues(run: str) -> None:
    update = randomised(OuterProductMean(C_M, C_Z, 3))
    mask = (torch.rand(2, S, R) > 0.4).float()
    mask[:, 2] = 1
    msa = torch.randn(2, S, R, C_M) + LARGE * (1 - mask)[..., None] * torch.randn(2, S, R, C_M)
    zeros, ones = torch.zeros(2, R, R, C_Z), torch.ones(2, R, R)
    found = carried_out(update, RUNS[run], zeros, ones, msa, mask)
    for sample in range(2):
        for i in range(R):
            for j in range(R):
                both = (mask[sample, :, i] * mask[sample, :, j]).nonzero()[:, 0]
                small = msa[sample : sample + 1, both][:, :, [i, j]]
                source = small, torch.ones(small.shape[:3])
                expected = carried_out(update, Whole(), zeros[:1, :2, :2], ones[:1, :2, :2], *source)
                close(found[sample, i, j], expected[0, 0, 1])


@pytest.mark.parametrize("kind", [InvariantPointAttention, MultimerPointAttention])
@pytest.mark.parametrize("run", RUNS)
def test_point_attention_and_its_gradients_are_those_of_the_real_residues(kind: type[Any], run: str) -> None:
    config = tiny_config().structure
    attention, norm = randomised(kind(config, C_Z)), LayerNorm(C_Z)
    mask, (pair, _) = seq_mask(), pair_stream()
    single = torch.randn(2, R, config.c) + LARGE * (1 - mask)[..., None]
    rotation = quaternion_to_rotation(normalize(torch.randn(2, R, 4), dim=-1))
    translation = torch.randn(2, R, 3) + 30 * (1 - mask)[..., None]

    def result(real: Sequence[int], sample: slice, present: Tensor, executor: Executor) -> tuple[Tensor, list[Tensor]]:
        real = list(real)
        leaves = [each[sample][:, real].clone().requires_grad_() for each in (single, rotation, translation)]
        edges = pair[sample][:, real][:, :, real].clone().requires_grad_()
        maps = attention.maps(norm.affine, len(real) * len(present))[0]
        with torch.set_grad_enabled(executor is RUNS["whole"]):
            frames = Rigid(rotation=leaves[1], translation=leaves[2])
            return attention(executor, leaves[0], PairInput(edges, maps), present[:, real], frames), [*leaves, edges]

    found, leaves = result(range(R), slice(None), mask, RUNS[run])
    weights = torch.randn(found.shape) * mask[..., None]
    gradients = torch.autograd.grad((found * weights).sum(), leaves) if run == "whole" else []
    for sample, real in enumerate(REAL):
        part = slice(sample, sample + 1)
        expected, own = result(real, part, torch.ones(1, R), RUNS["whole"])
        close(found[part, real], expected)
        if run != "whole":
            continue
        theirs = torch.autograd.grad((expected * weights[part][:, real]).sum(), own)
        gone = [row for row in range(R) if row not in real]
        for place, (ours, each) in enumerate(zip(gradients, theirs, strict=True)):
            kept = ours[part, real] if place < 3 else ours[part, real][:, :, real]
            torch.testing.assert_close(kept, each, rtol=1e-3, atol=1e-3)
            assert not ours[part, gone].any()


# The whole network

RESIDUES = 10
MASKED = [0, 4, 5, 9]
KEPT = [row for row in range(RESIDUES) if row not in MASKED]


def axes_of(name: str) -> list[str]:
    kinds = {field.name: field.type for kind in (Batch, MultimerBatch) for field in fields(kind)}
    return kinds[name].dim_str.split()


def with_masked_residues(batch: Batch) -> tuple[Batch, Batch]:
    """A batch with masked residues, and the one that lacks them.

    Templates have no atoms beside a masked residue, because the torsions between two residues would be others.
    """
    beside = sorted({row + step for row in MASKED for step in (-1, 0, 1) if 0 <= row + step < RESIDUES})
    large, small = {}, {}
    for field in fields(batch):
        value = getattr(batch, field.name)
        if value is None or "r" not in axes_of(field.name):
            continue
        dim = axes_of(field.name).index("r")
        value = value.clone()
        rows = value.movedim(dim, 0)
        if field.name.startswith("template_") and value.is_floating_point():
            rows[beside] = 0
        small[field.name] = value.index_select(dim, torch.tensor(KEPT))
        if field.name.endswith("mask") or field.name == "residue_index":
            rows[MASKED] = 0
        elif value.is_floating_point() and not field.name.startswith("template_"):
            rows[MASKED] = 30.0
        elif field.name == "template_aatype":
            rows[MASKED] = 7
        large[field.name] = value
    return replace(batch, **large), replace(batch, **small)


@cache
def network(name: str) -> AlphaFold:
    """With one block in each stack."""
    config = tiny_multimer_config() if name == "multimer" else tiny_config()
    assert config.template is not None
    template = replace(config.template, blocks=1, unit_vectors=name == "unit vectors" or config.template.unit_vectors)
    stacks = replace(config.evoformer, blocks=1), replace(config.structure, layers=2)
    return with_every_parameter_random(replace(config, template=template, evoformer=stacks[0], structure=stacks[1]))


def sample_of(name: str) -> Batch:
    return random_complex("ABA", RESIDUES) if name == "multimer" else random_batch(residues=RESIDUES)


def of_residues(outputs: Outputs, rows: Sequence[int]) -> dict[str, Tensor]:
    rows = list(rows)
    logits, structure, representations = outputs.logits, outputs.structure, outputs.representations
    assert logits.aligned_error is not None
    return {
        "msa": representations.msa[:, :, rows],
        "pair": representations.pair[:, rows][:, :, rows],
        "single": representations.single[:, rows],
        "frames": structure.frames[:, :, rows],
        "positions": structure.positions[:, rows],
        "distogram": logits.distogram[:, rows][:, :, rows],
        "masked_msa": logits.masked_msa[:, :, rows],
        "lddt": logits.lddt[:, rows],
        "resolved": logits.experimentally_resolved[:, rows],
        "aligned_error": logits.aligned_error[:, rows][:, :, rows],
    }


def agree(found: dict[str, Tensor], expected: dict[str, Tensor], limit: float) -> None:
    for name, value in expected.items():
        assert float((found[name] - value).abs().max()) <= limit * float(value.abs().max()) + 1e-6, name


@pytest.mark.parametrize("name", ["monomer", "multimer", "unit vectors"])
def test_outputs_and_gradients_of_two_iterations_are_those_of_the_real_residues(name: str) -> None:
    model = network(name)
    large, small = with_masked_residues(sample_of(name))
    found = []
    for batch, rows in ((large, KEPT), (small, range(len(KEPT)))):
        first = model(Whole(), [batch])
        second = of_residues(model(Whole(), [batch], first.recycled()), rows)
        torch.manual_seed(0)
        loss = sum(
            (value * torch.randn(value.shape)).sum()
            for each in (of_residues(first, rows), second)
            for value in each.values()
        )
        model.zero_grad()
        loss.backward()
        gradients = {key: each.grad.clone() for key, each in model.named_parameters() if each.grad is not None}
        found.append(({key: value.detach() for key, value in second.items()}, gradients))
    agree(found[0][0], found[1][0], 1e-4)
    assert found[0][1].keys() == found[1][1].keys()
    # Of biases that shift all logits of a softmax alike, rounding is left.
    largest = max(float(each.abs().max()) for each in found[1][1].values())
    for key, value in found[1][1].items():
        off = float((found[0][1][key] - value).abs().max())
        assert off <= 5e-3 * float(value.abs().max()) + 1e-5 * largest, key


@pytest.mark.parametrize(("name", "rows"), [("monomer", 3), ("multimer", 3), ("multimer", 1), ("unit vectors", 99)])
def test_slabs_give_the_outputs_of_the_real_residues(name: str, rows: int) -> None:
    model, run = network(name), Slabs(rows=rows)
    large, small = with_masked_residues(sample_of(name))
    with torch.no_grad():
        found, expected = model(run, [large]), model(Whole(), [small])
    agree(of_residues(found, KEPT), of_residues(expected, range(len(KEPT))), 1e-4)


@pytest.mark.parametrize("run", [Whole(), Slabs(rows=3)])
def test_masked_sequences_and_templates_are_as_if_they_were_not_there(run: Executor) -> None:
    """In the middle, where the first and the last row are real."""
    model, small = network("monomer"), random_batch(residues=7, rows=4, extra=4, templates=2)
    order, gone = [0, 1, 2, 0, 3], 3
    changes = {}
    for field in fields(small):
        value = getattr(small, field.name)
        if value is None or axes_of(field.name)[1] not in ("s", "e", "t"):
            continue
        is_template = axes_of(field.name)[1] == "t"
        value = value[:, [0, 0, 1] if is_template else order].clone()
        row = 1 if is_template else gone
        if "mask" in field.name:
            value[:, row] = 0
        elif value.is_floating_point():
            value[:, row] = 40 * torch.randn(value[:, row].shape)
        else:
            value[:, row] = 3
        changes[field.name] = value
    with torch.no_grad():
        found, expected = model(run, [replace(small, **changes)]), model(run, [small])
    everyone = range(7)
    ours, theirs = of_residues(found, everyone), of_residues(expected, everyone)
    kept = [0, 1, 2, 4]
    agree({**ours, "msa": ours["msa"][:, kept], "masked_msa": ours["masked_msa"][:, kept]}, theirs, 1e-4)
