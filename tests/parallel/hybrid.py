"""What ranks of a layout compute, beside what a process alone does: each function runs on every rank."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar, cast
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from jaxtyping import config
from torch import Tensor

from helixfold.execution import spilled
from helixfold.execution.random_inputs import random_labels
from helixfold.execution.recompute import Keep, RecomputeConfig
from helixfold.execution.slabs import Slabs
from helixfold.execution.whole import Whole
from helixfold.folding.residue_offsets import ring_offsets
from helixfold.losses.config import initial_training
from helixfold.losses.labels import Labels
from helixfold.losses.total import total_loss
from helixfold.model.alphafold import AlphaFold
from helixfold.model.batch import Batch
from helixfold.model.confidence import aligned_error, expected_distances
from helixfold.model.config import OuterProductPosition
from helixfold.model.evoformer import EvoformerStack
from helixfold.model.outputs import Recycled
from helixfold.model.update import Executor
from helixfold.optim.config import OptimizerConfig
from helixfold.parallel import axial
from helixfold.parallel.axial import Axial
from helixfold.parallel.collectives import Channel, Kind, Message, Pending
from helixfold.parallel.mesh import Layout, Mesh, join, leave
from helixfold.parallel.parallelize import parallelize
from helixfold.parallel.shard import Shard
from helixfold.training.stopping import StopRequest
from tests.support.networks import random_batch, relative_error, tiny_config, tiny_model
from tests.training.runs import MODEL, small_config, small_run

# Neither divides by 2 or 4, nor does the number of extra sequences or templates' rows.
RESIDUES = 13
LOSS = initial_training()
STREAMS = (1, 5, RESIDUES, 64), (1, RESIDUES, RESIDUES, 32)
Tensors = TypeVar("Tensors", Batch, Labels)


def sample(part: int, dtype: torch.dtype) -> tuple[Batch, Labels]:
    torch.manual_seed(part)
    batch = random_batch(residues=RESIDUES, rows=5, extra=7, templates=2, seed=part)
    batch = replace(batch, msa_mask=batch.msa_mask * (torch.rand(batch.msa_mask.shape) > 0.2))
    if part % 2 == 0:
        # A ring, whose offsets are not the differences of its residues' numbers.
        batch = replace(batch, offsets=torch.from_numpy(ring_offsets(RESIDUES))[None])
    return _in(dtype, batch), _in(dtype, random_labels(batch))


def _in(dtype: torch.dtype, tensors: Tensors) -> Tensors:
    given = {field.name: getattr(tensors, field.name) for field in fields(tensors)}
    return replace(
        tensors,
        **{name: each.to(dtype) for name, each in given.items() if each is not None and each.is_floating_point()},
    )


def learn(model: AlphaFold, run: Executor, parts: Iterable[int], dtype: torch.dtype) -> Tensor:
    """Add the gradients of some parts, each after a recycling pass, with dropout; their summed losses."""
    total = torch.zeros((), dtype=dtype)
    for part in parts:
        batch, labels = sample(part, dtype)
        torch.manual_seed(100 + part)
        with torch.no_grad():
            previous: Recycled = model.fold(run, [batch], None, dtype).recycled()
        losses = total_loss(model(run, [batch], previous, dtype), batch, labels, LOSS)
        losses.total.sum().backward()
        total += losses.total.sum().detach()
    return total


def save_learned_alone(path: Path, order: OuterProductPosition, dtype: torch.dtype, parts: int) -> None:
    """Save the loss and the gradients of a process alone, with which ranks compare theirs."""
    model = tiny_model(order).to(dtype).train()
    loss = learn(model, Whole(), range(parts), dtype)
    torch.save((loss, gradients(model)), path)


def gradients_on(mesh: Mesh, dtype: torch.dtype, keep: Keep, alone: Path) -> tuple[float, float]:
    """How far loss and gradients of all parts are from those of a process alone.

    Relative to each tensor's largest gradient, or to a hundredth of the largest of all: some are zero but for rounding.
    """
    parts = range(mesh.layout.dp)
    expected, right = torch.load(alone)
    model = tiny_model(order_on(mesh.layout, "middle")).to(dtype).train()
    run = parallelize(model, mesh, RecomputeConfig.everywhere(keep))
    found = learn(model, run, mesh.micro_batches(len(parts)), dtype)
    dist.all_reduce(found)
    largest = max(float(each.abs().max()) for each in right)
    worst = 0.0
    summed = torch.cat([each.flatten() for each in gradients(model)])
    dist.all_reduce(summed)
    for flat, other in zip(summed.split([each.numel() for each in right]), right, strict=True):
        gradient = flat.view_as(other)
        difference = (gradient / mesh.layout.sharing - other).abs().max()
        worst = max(worst, float(difference / other.abs().max().clamp(min=0.01 * largest)))
    return float((found / mesh.layout.sharing - expected).abs() / expected), worst


def order_on(layout: Layout, otherwise: OuterProductPosition) -> OuterProductPosition:
    """The order of a block, of which branches allow one only."""
    return "end" if layout.bp > 1 else otherwise


def gradients(model: AlphaFold) -> list[Tensor]:
    return [torch.zeros_like(each) if each.grad is None else each.grad for each in model.parameters()]


@torch.no_grad()
def save_predicted_alone(path: Path, order: OuterProductPosition) -> None:
    torch.save(results(tiny_model(order).eval(), Whole()), path)


@torch.no_grad()
def predictions_on(mesh: Mesh, within: Whole | Slabs, alone: Path) -> dict[str, float]:
    """How far all results of two passes, the second over two draws, are from those of a process alone."""
    model = tiny_model(order_on(mesh.layout, "first")).eval()
    found = results(model, parallelize(model, mesh, within=within))
    return {name: relative_error(found[name], each) for name, each in torch.load(alone).items()}


def results(model: AlphaFold, run: Executor) -> dict[str, Tensor]:
    draws = [sample(part, torch.float32)[0] for part in range(3)]
    previous = model.fold(run, draws[:1], None).recycled()
    outputs = model(run, draws[1:], previous)
    assert model.heads.aligned_error is not None
    assert outputs.logits.aligned_error is not None
    mask = draws[0].seq_mask
    distances = expected_distances(run, model.heads.distogram, outputs.representations.pair)
    error = aligned_error(run, model.heads.aligned_error, outputs.representations.pair, mask)
    return {
        "pair": run.gather(outputs.representations.pair),
        "msa": run.gather(outputs.representations.msa),
        "single": outputs.representations.single,
        "positions": outputs.structure.positions,
        "distogram": outputs.logits.distogram,
        "masked_msa": outputs.logits.masked_msa,
        "aligned_error": outputs.logits.aligned_error,
        "expected_error": error.expected,
        "ptm": error.ptm,
        "expected_distance": distances.expected,
        "contact": distances.contact,
    }


def learn_on_ranks(layout: str, dtype: torch.dtype, keeps: Sequence[Keep], alone: Path) -> None:
    """Loss and gradients are those of a process alone, whatever is recomputed."""
    with joined(layout) as mesh:
        for keep in keeps:
            of_loss, of_gradients = gradients_on(mesh, dtype, keep, alone)
            tolerance = 1e-9 if dtype == torch.float64 else 1e-5
            assert of_loss < tolerance, (keep, of_loss)
            assert of_gradients < tolerance, (keep, of_gradients)


def predict_on_ranks(layout: str, executors: Sequence[str], directory: Path, alone: Path) -> None:
    """So are predictions, however a rank computes its part."""
    # Few groups of channels, of which the last is smaller.
    spilled.MIN_BYTES, axial.CHANNEL_GROUPS = 1, 3
    choices = {
        "whole": Whole(),
        "slabs": Slabs(),
        "slabs of two rows": Slabs(rows=2),
        "spilled": spilled.Spilled(directory),
    }
    with joined(layout) as mesh:
        for name in executors:
            deviations = predictions_on(mesh, choices[name], alone)
            assert max(deviations.values()) < 1e-5, (name, deviations)


@contextmanager
def joined(layout: str) -> Iterator[Mesh]:
    with ExitStack() as stack:
        stack.callback(leave)
        yield join("cpu", layout)


def faulty_on_ranks(layout: str, kinds: Sequence[Kind], alone: Path) -> None:
    """A fault in any collective is seen."""
    start, faulty, noise = Channel.start, "", torch.Generator()

    def wrong(channel: Channel, given: Kind, tensor: Tensor, root: int) -> tuple[Tensor, dist.Work]:
        found, work = start(channel, given, tensor, root)
        work.wait()
        if given == faulty:
            # From a stream of its own, so that dropout is as without it.
            found *= 1 + 1e-4 * torch.rand(found.shape, generator=noise)
        return found, cast(dist.Work, SimpleNamespace(wait=lambda: None))

    with joined(layout) as mesh, patch.object(Channel, "start", wrong):
        for faulty in kinds:
            _, of_gradients = gradients_on(mesh, torch.float64, "none", alone)
            assert of_gradients > 1e-9, faulty


def train_on_ranks(layout: str, steps: int, directory: Path) -> None:
    """All replicas have the same bits, and after four steps those of a process alone but for rounding."""
    stacks = {name: replace(getattr(MODEL, name), outer_product="end") for name in ("evoformer", "extra_msa")}
    # A larger epsilon: Adam makes steps of full length of gradients that are nothing but rounding.
    optimizer = OptimizerConfig(warmup_steps=3, ema_decay=0.9, eps=1e-3)
    config = small_config(model=replace(MODEL, **stacks), optimizer=optimizer, steps=4, save_every=2)
    with joined(layout) as mesh:
        trainer = small_run(directory / "together", replace(config, steps=steps), mesh=mesh)
        assert trainer.progress.step == (0 if steps < config.steps else config.save_every)
        assert trainer.run(StopRequest())
        found = trainer.optimizer.tensors()["master"]
        everyone = [torch.empty_like(found) for _ in range(mesh.size)]
        dist.all_gather(everyone, found)
        assert all((each == found).all() for each in everyone)
        if mesh.is_first and steps == config.steps:
            alone = small_run(directory / "alone", config)
            assert alone.run(StopRequest())
            # The state has the same form on any number of ranks.
            assert trainer.optimizer.layout == alone.optimizer.layout
            difference = float((found - alone.optimizer.tensors()["master"]).abs().max())
            assert difference < 1e-5, difference


@contextmanager
def travelling() -> Iterator[list[int]]:
    """How many contexts were gathered while each stream was on its way."""
    started, found = Counter[int](), list[int]()
    start, finish = Pending.start, Pending.finish

    def noted(pending: Pending, kind: Kind, tensor: Tensor) -> None:
        for each in started:
            started[each] += kind == "all_gather"
        if kind == "all_to_all":
            started[id(pending)] = 0
        start(pending, kind, tensor)

    def ended(pending: Pending) -> Tensor:
        if pending.kind == "all_to_all":
            found.append(started.pop(id(pending)))
        return finish(pending)

    with patch.object(Pending, "start", noted), patch.object(Pending, "finish", ended):
        yield found


def check_on_ranks() -> None:
    """Streams that several ranks share have the whole's shape, which is checked in every process."""
    config.update("jaxtyping_disable", False)
    with joined("dap=2") as mesh:
        run = Axial(mesh.axial)
        stack = EvoformerStack(tiny_config().evoformer, c_z=32).eval()
        msa, pair = (run.map_rows(lambda _, rows: rows.clone(), torch.randn(*shape)) for shape in STREAMS)
        masks = torch.ones(1, 5, 13), torch.ones(1, 13, 13)
        stack(run, msa, pair, *masks)
        with pytest.raises(TypeError, match="pair"):
            stack(run, msa, pair, masks[0], torch.ones(1, 13, 12))
        # A part is not the whole.
        assert isinstance(pair, Shard)
        with pytest.raises(TypeError):
            stack(run, msa, pair.part, *masks)


def count_on_ranks(order: OuterProductPosition) -> None:
    """A block exchanges streams six times and gathers six contexts."""
    with joined("dap=2") as mesh:
        run = Axial(mesh.axial)
        config, r, s = tiny_config(order).evoformer, 14, 6
        stack = EvoformerStack(config, c_z=32).eval()
        masks = torch.ones(1, s, r), torch.ones(1, r, r)
        for early in (0, config.blocks):
            msa, pair = (
                run.map_rows(lambda _, rows: rows.clone(), torch.randn(*mask.shape, c))
                for mask, c in zip(masks, (config.c_m, 32), strict=True)
            )
            messages: list[Message] = []
            run.channel.messages = messages
            with torch.no_grad(), travelling() as meanwhile:
                stack(run, msa, pair, *masks)
            # Once it is known that it will be needed, the MSA travels while the pair stream is updated: in the order in
            # which that comes between the outer product, which reads the MSA, and the next block.
            assert (max(meanwhile) >= 4) == (early > 0 and order == "middle")
            calls, sent = Counter(kind for kind, _ in messages), Counter[Kind]()
            for kind, size in messages:
                sent[kind] += size
            assert calls["all_gather"] == 6 * config.blocks
            assert 5 * config.blocks <= calls["all_to_all"] <= 6 * config.blocks
            assert calls.total() == calls["all_gather"] + calls["all_to_all"]
            # Of each half, half goes to the other rank; what is gathered goes there whole.
            heads, c = config.msa_heads + 2 * config.pair_heads, config.c_triangle
            operands = r * r * (heads + 2 * c) + r * s * (config.c_outer + 1)
            assert sent["all_gather"] == config.blocks * 4 * operands // 2
            assert sent["all_to_all"] <= config.blocks * 4 * (4 * r * r * 32 + 2 * r * s * config.c_m) // 4
