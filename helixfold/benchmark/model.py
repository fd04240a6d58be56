"""Measure one forward pass of the whole network for `helixfold benchmark model`, next to other programs.

`PEERS` has the names of other programs in tables, `PEER` of DeepMind's. `PUBLISHED` are the models that it can compute.
"""

import re
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from data_pipeline.io.errors import InputError, SearchError
from data_pipeline.io.extras import are_installed
from helixfold.apps.verify.runs import MISSING, run_deepmind
from helixfold.benchmark.measurement import (
    PLAIN,
    WHOLE,
    BenchmarkDevice,
    Cost,
    Readings,
    Work,
    measure_parts,
    reason_of_failure,
    settle,
    show,
)
from helixfold.benchmark.options import CommonOptions, ModelOptions
from helixfold.benchmark.peers import NETWORKS, PUBLISHED, built_once, compared, require_peers
from helixfold.benchmark.peers import PEERS as PROGRAMS
from helixfold.execution.counter import Counter
from helixfold.execution.nested import with_tensors_changed
from helixfold.execution.random_inputs import random_batch
from helixfold.execution.slabs import Slabs
from helixfold.execution.stages import mean_seconds
from helixfold.execution.whole import Whole
from helixfold.model.alphafold import AlphaFold
from helixfold.model.batch import Batch
from helixfold.model.outputs import Outputs
from helixfold.model.presets import Preset, preset
from helixfold.model.update import Executor
from helixfold.ops.dispatch import forced
from helixfold.planning.passes import META
from helixfold.weights.untrained import untrained_model

# Names of other programs in tables, by the value of `--peer`; "colabfold" is DeepMind's with ColabFold's fused kernels.
PEERS = {name: program.name for name, program in PROGRAMS.items()} | {"colabfold": "ColabFold's kernels in JAX"}
PEER = PEERS["jax"]
# A function that runs a network forward.
_Network = Callable[[Batch], object]


def run(options: ModelOptions, common: CommonOptions) -> None:
    """Measure a forward pass, print the readings, and write them to the file of `common.json`, if it is set.

    Raise `InputError` before anything is measured if a peer is not installed.
    """
    require_peers([name for name in options.peer if name in NETWORKS], options.preset, common.threads)
    is_here = options.jax_python == Path(sys.executable)
    if is_here and not set(options.peer) <= set(NETWORKS) and not are_installed("jax", "haiku", "alphafold"):
        raise InputError(f"--peer jax and colabfold need jax, haiku and alphafold, not installed here; {MISSING}")
    show(partial(readings, options, common), common)


def readings(options: ModelOptions, common: CommonOptions, machine: BenchmarkDevice) -> Iterator[Readings]:
    """Yield a reading of one forward pass without recycling for each dtype, by every executor and peer of the options.

    The network has random parameters and inputs. Executors and OpenFold are measured by turns, and then the programs in
    JAX, each in its own process.
    """
    network = preset(options.preset)
    model = untrained_model(network.model, seed=0).requires_grad_(False).to(machine.device)
    rows = options.rows or network.sampling.max_msa_clusters
    extra_rows = options.extra_rows or network.sampling.max_extra_msa
    templates = network.sampling.max_templates
    batch = random_batch(options.residues, rows, extra_rows, templates, machine.device, method=network.model.method)
    small = random_batch(16, 8, 8, templates, machine.device, method=network.model.method)
    work = Work(flops=_flops(network, batch), bytes=0)
    repeats = common.repeats or 1
    for dtype in common.dtypes:
        kind = getattr(torch, dtype)
        notes: list[str] = []
        shapes: dict[str, tuple[int, ...]] = {}
        networks: dict[str, _Network] = {
            way if way == PLAIN else f"ours ({way})": partial(_pass_with_shapes, way, model, kind, shapes)
            for way in map(str.lower, options.executors)
        } | {
            PEERS[peer]: built_once(partial(NETWORKS[peer], options.preset, kind, machine.device))
            for peer in options.peer
            if peer in NETWORKS
        }
        costs = _by_turns(networks, batch, small, repeats)
        for peer in dict.fromkeys(options.peer):
            if peer in NETWORKS:
                continue
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
            notes=(*notes, *compared(costs, PEERS.values())),
        )


def _by_turns(networks: Mapping[str, _Network], batch: Batch, small: Batch, repeats: int) -> dict[str, Cost]:
    """Measure the cost of forward passes; measurements of time alternate. An error in the first call is the result.

    The first call initialises threads, libraries and, on a GPU, kernels for this size, and is not timed. On a CPU it
    takes the batch `small`.
    """
    device = batch.aatype.device
    costs: dict[str, Cost] = {}
    for name, run in networks.items():
        try:
            run(batch if device.type == "cuda" else small)
        # An error of a peer on this machine is a result, too; the other networks are still measured.
        except Exception as error:
            costs[name] = Cost(failure=reason_of_failure(error))
            continue
        costs[name] = measure_parts({WHOLE: partial(run, batch)}, device, 1)[WHOLE]
    if repeats == 1:
        return costs
    running = {name: partial(networks[name], batch) for name, cost in costs.items() if cost.failure is None}
    rounds = [{name: mean_seconds(run, device=device) for name, run in running.items()} for _ in range(repeats)]
    medians = {name: statistics.median(seconds[name] for seconds in rounds) for name in running}
    return costs | {name: replace(costs[name], seconds=seconds) for name, seconds in medians.items()}


def _pass_with_shapes(
    way: str, model: AlphaFold, dtype: torch.dtype, shapes: dict[str, tuple[int, ...]], batch: Batch
) -> None:
    """Run a forward pass in one way, and write the shapes of its outputs to `shapes`."""
    run = Slabs() if way == "slabs" else Whole()
    shapes.update(_shapes(_pass(model, run, batch, dtype, plain=way == PLAIN)))


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
