"""Fold targets within planned memory: several as one batch, or one with fallbacks that need less memory."""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from tqdm import tqdm

from data_pipeline.features.complexes.feature_set import TargetFeatures
from helixfold.execution.available import is_out_of_memory
from helixfold.execution.device import dtype_on, in_threads, threads_for
from helixfold.execution.iteration_runner import EAGER, IterationRunner
from helixfold.execution.stages import Stage, Stages, peak_memory, reset_peak_memory
from helixfold.folding.model_input import model_input
from helixfold.folding.options import FoldingOptions
from helixfold.folding.prediction import Prediction, PredictionIdentity
from helixfold.folding.provenance import Provenance
from helixfold.folding.recycling import STAGES, FoldingTarget, can_share_batch, fold
from helixfold.ops.device_properties import properties_of
from helixfold.ops.dispatch import recorded_backends, sorted_backends
from helixfold.parallel.worker_group import WorkerGroup
from helixfold.planning.estimate import Device, NotEnoughMemoryError, PredictionEstimate, fit_together
from helixfold.planning.executors import bounded_memory, executor, memory_kept, release
from helixfold.planning.memory import FeatureRows, MemoryOptions
from helixfold.weights.find import ReadyModel

_BAR_AFTER = 2.0  # seconds until the bar is shown
_BAR_FORMAT = "{desc}: {percentage:3.0f}%|{bar}| {n:.2f}/{total} [{elapsed}<{remaining}]"


def plan_prediction(
    model: ReadyModel,
    features: TargetFeatures,
    options: FoldingOptions,
    memory: MemoryOptions,
    device: Device,
    *,
    name: str,
) -> PredictionEstimate:
    """Return the plan of a target's prediction by a model within the memory of a device.

    Raise `NotEnoughMemoryError`, which begins with `name`, if the prediction does not fit.
    """
    rows = FeatureRows.of(model_input(features, model.preset).features)
    size = rows.size(model.preset, dtype_on(options.dtype, device.properties), options.num_ensemble)
    plan = memory.plan(model.preset, size, device)
    memory.check(plan, name)
    return plan


def fold_planned(
    model: ReadyModel,
    target: FoldingTarget,
    plan: PredictionEstimate,
    options: FoldingOptions,
    *,
    stages: Stages,
    spill: Path,
    say: Callable[[str], object] = lambda _: None,
    runner: IterationRunner = EAGER,
    workers: WorkerGroup | None = None,
    hides_bar: bool | None = True,
) -> Prediction:
    """Predict one target with the executor of a plan, or with its fallbacks if memory runs out.

    `spill` is the directory for spilled streams, and `say` is called with a line when the executor changes or CUDA
    graphs are given up. `runner` runs recycling iterations. Its CUDA graphs are not used if the plan has no room for
    them, and are freed before another executor is tried. All ranks of a group of `workers` call this. `hides_bar` is
    the `disable` argument of tqdm: None hides the bar unless stderr is a terminal.

    The prediction has its identity, provenance and measurements. Raise `NotEnoughMemoryError` if the last fallback runs
    out of memory, too.
    """
    workers, device = workers or WorkerGroup.alone(stages.device), stages.device
    config = model.preset.model
    if not plan.has_room_for_graphs:
        runner.clear()
        runner = EAGER
    plans = deque([plan, *plan.fallbacks])
    while plans:
        current_plan = plans.popleft()
        size = current_plan.size
        largest_row = max(size.residues * config.c_z, size.msa_rows * config.evoformer.c_m)
        threads = threads_for(size.residues * largest_row, device)
        release(device, peak=current_plan.memory.peak)
        reset_peak_memory(device)
        memory_in_use, num_stages_before, replays = peak_memory(device), len(stages.finished), runner.replays
        try:
            with (
                memory_kept(current_plan.executor, size.ranks),
                bounded_memory(device, current_plan.device.memory),
                recorded_backends() as backends,
                in_threads(threads),
                workers.executor_on_group(
                    executor(current_plan.executor, spill, device, current_plan.slab_budget)
                ) as run,
                _progress_bar(model, target.name, options, runner, hides_bar=hides_bar),
            ):
                (prediction,) = fold(model.network, model.preset, [target], options, run, stages=stages, passes=runner)
        except (RuntimeError, MemoryError, OSError) as error:
            if not is_out_of_memory(error):
                raise
        else:
            measured = max(stage.peak_memory for stage in stages.finished[num_stages_before:]) - memory_in_use
            return replace(
                prediction,
                identity=_identity(model, options),
                provenance=_provenance(
                    backends, executor=current_plan.executor, slab_budget=current_plan.slab_budget, threads=threads
                ),
                measurements={
                    "executor": current_plan.executor,
                    "replayed_passes": runner.replays - replays,
                    "predicted_peak_gib": _gib(current_plan.memory.peak),
                    "measured_peak_gib": _gib(measured),
                },
            )
        # After the `except` block, because the exception keeps the frames alive, and with them the tensors.
        release(device)
        if runner.clear():
            release(device)
            say("out of memory; trying again without CUDA graphs")
            plans.appendleft(current_plan)
        elif plans and plans[0].memory.spilled <= plans[0].device.spill:
            next_attempt = "smaller slabs" if plans[0].executor == current_plan.executor else f"'{plans[0].executor}'"
            say(f"out of memory with the executor '{current_plan.executor}'; starting again with {next_attempt}")
        else:
            plans.clear()
    # The failure shows that less memory was available than the last attempt was estimated to need.
    smaller_device = replace(plan.device, memory=min(plan.device.memory, current_plan.memory.peak))
    problem = replace(plan, device=smaller_device).problem
    raise NotEnoughMemoryError(f"out of memory with the executor '{current_plan.executor}'; {problem}")


def fold_together(
    model: ReadyModel,
    targets: Sequence[FoldingTarget],
    plans: Sequence[PredictionEstimate],
    options: FoldingOptions,
    *,
    stages: Sequence[Stages],
    spill: Path,
    say: Callable[[str], object] = lambda _: None,
    runner: IterationRunner = EAGER,
    hides_bar: bool | None = True,
) -> list[Prediction] | None:
    """Predict several targets as one batch, with the executor "whole".

    Return None if there are fewer than two targets, if they cannot be one batch, do not fit into memory together, or
    the computation fails. In the last case `say` is called with the reason. Each target has its own plan and its own
    `stages`, which get an equal share of the time.
    """
    shared_stages, replays = Stages(stages[0].device), runner.replays
    dtype = dtype_on(options.dtype, properties_of(shared_stages.device))
    if len(targets) < 2 or not fit_together(plans) or not can_share_batch(targets, options, dtype):
        return None
    try:
        with (
            memory_kept("whole"),
            recorded_backends() as backends,
            _progress_bar(model, targets[0].name, options, runner, hides_bar=hides_bar),
        ):
            run = executor("whole", spill)
            predictions = fold(model.network, model.preset, targets, options, run, stages=shared_stages, passes=runner)
    except Exception as error:  # the caller folds each target alone by its own plan, in which memory suffices
        problem = f"{type(error).__name__}: {error}"
    else:
        for target, own in zip(targets, stages, strict=True):
            _share(shared_stages, own, target.name or model.preset.name, len(targets))
        provenance = _provenance(backends, executor="whole", targets_at_once=len(targets))
        measurements = {
            "executor": "whole",
            "replayed_passes": runner.replays - replays,
            "targets_at_once": len(targets),
            "peak_of_all_gib": _gib(max(stage.peak_memory for stage in shared_stages.finished)),
        }
        identity = _identity(model, options)
        return [
            replace(prediction, identity=identity, provenance=provenance, measurements=measurements)
            for prediction in predictions
        ]
    # After the `except` block, because the exception keeps the frames alive, and with them the tensors.
    runner.clear()
    release(shared_stages.device)
    say(f"{len(targets)} targets together failed ({problem}); starting again with one at a time")
    return None


def fold_all(
    model: ReadyModel,
    targets: Sequence[FoldingTarget],
    plans: Sequence[PredictionEstimate],
    options: FoldingOptions,
    *,
    stages: Sequence[Stages],
    spill: Path,
    say: Callable[[str], object] = lambda _: None,
    runner: IterationRunner = EAGER,
) -> list[Prediction]:
    """Predict several targets, as one batch if that is possible (`fold_together`), else each alone (`fold_planned`)."""
    predictions = fold_together(model, targets, plans, options, stages=stages, spill=spill, say=say, runner=runner)
    if predictions is not None:
        return predictions
    return [
        fold_planned(model, target, plan, options, stages=own_stages, spill=spill, say=say, runner=runner)
        for target, plan, own_stages in zip(targets, plans, stages, strict=True)
    ]


def _identity(model: ReadyModel, options: FoldingOptions) -> PredictionIdentity:
    """Return the identity of a prediction by a model with these options."""
    return PredictionIdentity(
        model=model.preset.name, seed=options.seed, weights=model.digest, weights_provenance=model.provenance
    )


def _provenance(
    backends: Mapping[str, Collection[str]],
    *,
    executor: str,
    slab_budget: int | None = None,
    threads: int | None = None,
    targets_at_once: int = 1,
) -> Provenance:
    """Return the part of a prediction's provenance that folding determines; `threads` defaults to PyTorch's number."""
    return Provenance(
        threads=threads or torch.get_num_threads(),
        targets_at_once=targets_at_once,
        executor=executor,
        slab_budget=slab_budget,
        backends=sorted_backends(backends),
    )


def _gib(size: int) -> float:
    """Convert bytes to GiB, rounded to three digits."""
    return round(size / 2**30, 3)


def _share(shared: Stages, own: Stages, name: str, count: int) -> None:
    """Add to `own` one target's share of the time of the stages that `count` targets shared."""
    for stage_name in STAGES:
        parts = [stage for stage in shared.finished if stage.name == stage_name]
        seconds = sum(stage.seconds for stage in parts) / count
        own.add(Stage(name=f"{name}: {stage_name}", seconds=seconds, peak_memory=max(s.peak_memory for s in parts)))


@contextmanager
def _progress_bar(
    model: ReadyModel, name: str | None, options: FoldingOptions, runner: IterationRunner, *, hides_bar: bool | None
) -> Iterator[None]:
    """Show a progress bar of recycling iterations.

    It moves with every block, because one iteration of a large model takes minutes on a CPU.
    """
    blocks = [*model.network.extra_msa_stack.blocks, *model.network.evoformer.blocks]
    share = 1 / (len(blocks) * options.num_ensemble)
    total, title = options.recycles(model.preset) + 1, f"{name or model.preset.name} iterations"
    with (
        tqdm(total=total, desc=title, bar_format=_BAR_FORMAT, leave=False, delay=_BAR_AFTER, disable=hides_bar) as bar,
        ExitStack() as stack,
    ):

        def update(*_: object) -> None:  # returns None, because a hook's result replaces the block's output
            bar.update(share)

        for block in blocks if not hides_bar else ():
            stack.enter_context(block.register_forward_hook(update))
        stack.enter_context(runner.reporting(bar.update))
        yield
