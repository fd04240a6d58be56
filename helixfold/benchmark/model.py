"""Measure one forward pass of the whole network for `helixfold benchmark model`, next to DeepMind's own program.

`PEERS` has the names of other programs in tables, `PEER` of DeepMind's. `PUBLISHED` are the models that it can compute.
"""

import re
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch

from data_pipeline.io.errors import SearchError
from helixfold.apps.verify.runs import MISSING, run_deepmind
from helixfold.benchmark.measurement import (
    PLAIN,
    WHOLE,
    BenchmarkDevice,
    Cost,
    Readings,
    Work,
    measure_parts,
    settle,
    show,
)
from helixfold.benchmark.options import CommonOptions, ModelOptions
from helixfold.execution.counter import Counter
from helixfold.execution.nested import with_tensors_changed
from helixfold.execution.random_inputs import random_batch
from helixfold.execution.slabs import Slabs
from helixfold.execution.whole import Whole
from helixfold.model.alphafold import AlphaFold
from helixfold.model.batch import Batch
from helixfold.model.outputs import Outputs
from helixfold.model.presets import PRESETS, Preset, preset
from helixfold.model.update import Executor
from helixfold.ops.dispatch import forced
from helixfold.planning.passes import META
from helixfold.weights.untrained import untrained_model

PEER = "DeepMind's JAX program"
# Names of other programs in tables, by the value of `--peer`; "colabfold" is DeepMind's with ColabFold's fused kernels.
PEERS = {"jax": PEER, "colabfold": "ColabFold's kernels in JAX"}
# The models that DeepMind's program can compute: the published monomer models.
PUBLISHED = tuple(name for name in PRESETS if name.startswith("model_") and "multimer" not in name)


def run(options: ModelOptions, common: CommonOptions) -> None:
    """Measure a forward pass, print the readings, and write them to the file of `common.json`, if it is set."""
    show(partial(readings, options, common), common)


def readings(options: ModelOptions, common: CommonOptions, machine: BenchmarkDevice) -> Iterator[Readings]:
    """Yield a reading of one forward pass without recycling for each dtype, by every executor and peer of the options.

    The network has random parameters and inputs.
    """
    network = preset(options.preset)
    model = untrained_model(network.model, seed=0).requires_grad_(False).to(machine.device)
    rows = options.rows or network.sampling.max_msa_clusters
    extra_rows = options.extra_rows or network.sampling.max_extra_msa
    templates = network.sampling.max_templates
    batch = random_batch(options.residues, rows, extra_rows, templates, machine.device, method=network.model.method)
    work = Work(flops=_flops(network, batch), bytes=0)
    repeats = common.repeats or 1
    for dtype in common.dtypes:
        kind = getattr(torch, dtype)
        notes: list[str] = []
        shapes: dict[str, tuple[int, ...]] = {}
        costs = {
            name if name == PLAIN else f"ours ({name})": _measure(
                name, model, batch, kind, repeats=repeats, shapes=shapes
            )
            for name in map(str.lower, options.executors)
        }
        for peer in dict.fromkeys(options.peer):
            fused = peer == "colabfold"
            costs[PEERS[peer]], note = measure_deepmind(
                model, network, batch, dtype=kind, options=options, repeats=repeats, expected=shapes, fused=fused
            )
            notes += [note] if note else []
        sizes = f"{options.residues} residues, {rows} + {templates} rows, {extra_rows} extra rows"
        yield Readings(
            part="model",
            name=f"forward pass of {options.preset}, {sizes}",
            dtype=kind,
            passes="forward",
            costs=costs,
            work=work,
            notes=tuple(notes),
        )


def _measure(
    way: str,
    model: AlphaFold,
    batch: Batch,
    dtype: torch.dtype,
    *,
    repeats: int,
    shapes: dict[str, tuple[int, ...]],
) -> Cost:
    """Measure one way to run the forward pass, and add the shapes of its outputs to `shapes`."""
    plain = way == PLAIN
    run = Slabs() if way == "slabs" else Whole()
    device, templates = batch.aatype.device, batch.template_mask.shape[1]
    # The first call initialises threads, libraries and, on a GPU, kernels for this size, and is not timed.
    first = batch if device.type == "cuda" else random_batch(16, 8, 8, templates, device, method=model.config.method)
    _pass(model, run, first, dtype, plain=plain)
    action = {WHOLE: lambda: shapes.update(_shapes(_pass(model, run, batch, dtype, plain=plain)))}
    return measure_parts(action, device, repeats)[WHOLE]


def _pass(model: AlphaFold, run: Executor, batch: Batch, dtype: torch.dtype, *, plain: bool) -> Outputs:
    with torch.no_grad(), forced("reference") if plain else nullcontext():
        outputs: Outputs = model(run, [batch], None, dtype)
    return outputs


def _flops(network: Preset, batch: Batch) -> int:
    """Return the FLOPs of the matrix products of a forward pass, counted on meta tensors without computing."""
    with META, Counter() as counter:
        meta = with_tensors_changed(lambda tensor: tensor.to(META), batch)
        _pass(AlphaFold(network.model).eval(), Whole(), meta, torch.float32, plain=True)
    return counter.products


def _shapes(outputs: Outputs) -> dict[str, tuple[int, ...]]:
    """Return the shapes, without the batch dimension, of the outputs that DeepMind's program also has."""
    tensors = {
        "positions": outputs.structure.positions,
        "pair": outputs.representations.pair,
        "msa": outputs.representations.msa,
        "single": outputs.representations.single,
        "distogram": outputs.logits.distogram,
        "lddt": outputs.logits.lddt,
    }
    return {name: tuple(tensor.shape[1:]) for name, tensor in tensors.items()}


def measure_deepmind(
    model: AlphaFold,
    network: Preset,
    batch: Batch,
    *,
    dtype: torch.dtype,
    options: ModelOptions,
    repeats: int,
    expected: dict[str, tuple[int, ...]],
    fused: bool = False,
) -> tuple[Cost, str]:
    """Measure DeepMind's program on our parameters and features in a separate process; return its cost and a note.

    `expected` are the shapes that its outputs must have, if not empty. With `fused`, it uses ColabFold's kernels if
    they support the device. If it cannot run, the cost has the reason.
    """
    if network.name not in PUBLISHED:
        return Cost(failure=f"it has no model {network.name}; choose {', '.join(PUBLISHED)}"), ""
    settle()
    if batch.aatype.device.type == "cuda":
        torch.cuda.empty_cache()
    settings = {
        "bfloat16": dtype == torch.bfloat16,
        "threads": torch.get_num_threads() if batch.aatype.device.type == "cpu" else None,
        "subbatch_size": options.jax_subbatch or None,
        "fused": fused,
        "repeats": repeats,
    }
    with tempfile.TemporaryDirectory() as name:
        try:
            result = run_deepmind(Path(name), model.state_dict(), network, [batch], settings, options.jax_python)
        except SearchError as error:
            return Cost(failure=reason_of(str(error))), MISSING
    shapes = {name: tuple(shape) for name, shape in result["shapes"].items()}
    if expected and shapes != expected:
        return Cost(failure=f"its outputs have other shapes: got {shapes}; expected {expected}"), ""
    rows = settings["subbatch_size"] or "all"
    note = f"jax {result['version']} on {result['device']}, {rows} rows at a time"
    note += f", compiled in {result['compile_seconds']:.1f} s"
    return Cost(seconds=statistics.median(result["seconds"]), memory=result["memory"]), note


def reason_of(message: str) -> str:
    """Return the last part of a message that has "Error: ", such as a missing package, or else the whole message."""
    errors = [line for line in re.split(r" \| |it printed: ", message) if "Error: " in line]
    return errors[-1].partition("; command: ")[0] if errors else message
