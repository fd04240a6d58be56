"""Fold one target with models that are found, in memory that is planned for.

`predict` is the Python entrance, which finds models and plans memory as `helixfold predict` does.
"""

import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from data_pipeline.complexes.chain_sequences import CHAIN_SEPARATOR
from data_pipeline.complexes.complex_input import AnyTarget
from data_pipeline.complexes.feature_set import TargetFeatures, alignment_of
from data_pipeline.complexes.pipeline import prepare_any
from helixfold.config import Method
from helixfold.execution.device import cast_trunk, dtype_on, in_threads, pick_device, threads_for
from helixfold.execution.recorded_passes import LAUNCHED, Passes, passes_on
from helixfold.execution.slabs import Slabs
from helixfold.execution.stages import Stages, peak_memory, reset_peak_memory
from helixfold.execution.whole import Whole
from helixfold.folding import FoldingOptions, fold
from helixfold.initial_guess import guessed_positions
from helixfold.model.update import Executor
from helixfold.model_input import model_input
from helixfold.ops.card import card_of
from helixfold.ops.dispatch import recorded_backends, sorted_backends
from helixfold.options import CudaGraphs
from helixfold.planning.executors import Plan, release, run_with_fallback
from helixfold.planning.memory import FeatureRows, MemoryOptions
from helixfold.prediction import Prediction
from helixfold.presets import Preset
from helixfold.weights.adapters import WeightedAdapter
from helixfold.weights.find import ReadyModel, find_models
from helixfold.write.origin import templates_in, templates_read

# Calls its second argument with an executor that works as the first one does.
CarryOut = Callable[[Whole | Slabs, Callable[[Executor], Prediction]], Prediction]


def predict(
    target: AnyTarget,
    models: Sequence[str] = (),
    weights: Path | None = None,
    options: FoldingOptions | None = None,
    *,
    device: str = "auto",
    memory: MemoryOptions | None = None,
    cuda_graphs: CudaGraphs = "auto",
    initial_guess: Path | None = None,
    offsets: Int[np.ndarray, "r r"] | None = None,
    adapters: Sequence[WeightedAdapter] = (),
) -> list[Prediction]:
    """Fold one target as `helixfold predict` does, without searches and files; return its predictions, best first.

    Models and weights are found as there: without both, the demonstration model may stand in, and `notes` of its
    predictions say so. Notes also name templates that are not used, and so do Python warnings. Each model's executor
    is planned for the free memory of the device, or for `memory.memory`. `adapters` are added to the parameters.
    Recycling starts from the atoms of `initial_guess`, a structure file. `offsets` (r, r) are whole numbers that
    replace the distances i - j of residues along the chain, in the order of the predictions' residues. With
    `cuda_graphs` "auto", an NVIDIA GPU captures CUDA graphs of short targets; with "off", it launches every kernel.
    Raise `InputError` for wrong input and `NotEnoughMemoryError` if a model does not fit.
    """
    options, memory, where = options or FoldingOptions(), memory or MemoryOptions(), pick_device(device)
    prepared, stages = prepare_any(target), Stages(where)
    features = prepared.features
    method: Method = "multimer" if CHAIN_SEPARATOR in target.sequence else "monomer"
    found = find_models(models, weights, seed=options.seed, method=method, adapters=adapters)
    ready = [memory.limited(model) for model in found]
    dtype = dtype_on(options.dtype, card_of(where))
    for model in ready:
        cast_trunk(model.network.to(where), dtype)
    spill = memory.spill_directory or Path(tempfile.gettempdir())
    available = memory.available(where, spill)
    plans = []
    for model in ready:
        rows = FeatureRows.of(model_input(features, model.preset).features)
        size = rows.size(model.preset, dtype, options.num_ensemble)
        plans.append(memory.plan(model.preset, size, where, available))
        memory.check(plans[-1], model.preset.name)
    predictions: list[Prediction] = []
    passes = passes_on(where, cuda_graphs)
    guess = None if initial_guess is None else guessed_positions(initial_guess, features)
    for model, plan in zip(ready, plans, strict=True):
        made = fold_planned(
            model,
            plan,
            features,
            options,
            stages=stages,
            spill=spill,
            passes=passes,
            initial_guess=guess,
            offsets=offsets,
        )
        notes = (*made.prediction.notes, *prepared.notes, *_unread(target, features, model.preset))
        predictions.append(replace(made.prediction, notes=notes))
        if options.stop_at_score is not None and predictions[-1].plddt.mean() >= options.stop_at_score:
            break
    return sorted(predictions, key=lambda prediction: -prediction.ranking_confidence)


def _unread(target: AnyTarget, features: TargetFeatures, preset: Preset) -> tuple[str, ...]:
    """Return a note, and issue it as a warning, if a target has templates that the model of a preset does not read."""
    if not target.templates or templates_read(features, preset) or not templates_in(alignment_of(features)):
        return ()
    note = f"'{preset.name}' reads no templates, so the templates of '{target.name}' are not used"
    warnings.warn(note, stacklevel=3)
    return (note,)


@dataclass(frozen=True, kw_only=True)
class PlannedPrediction:
    """A prediction with the executor and the backends that made it, and its peak memory beyond the loaded model.

    `slab_budget` is the bytes that temporaries of a slab may take, None for the executor's own choice. `backends` are
    the names of those that each operator used. Peaks are in bytes; the measured one leaves out what recordings hold.
    `replayed_passes` counts the passes that were replayed, and `threads` those of a CPU.
    """

    prediction: Prediction
    executor: str
    slab_budget: int | None
    backends: Mapping[str, tuple[str, ...]]
    replayed_passes: int
    threads: int
    predicted_peak: int
    measured_peak: int


def fold_planned(
    model: ReadyModel,
    plan: Plan,
    features: TargetFeatures,
    options: FoldingOptions,
    *,
    stages: Stages,
    spill: Path,
    name: str | None = None,
    say: Callable[[str], None] = lambda _: None,
    carry_out: CarryOut = lambda within, action: action(within),
    passes: Passes = LAUNCHED,
    initial_guess: Float[np.ndarray, "r 37 3"] | None = None,
    offsets: Int[np.ndarray, "r r"] | None = None,
) -> PlannedPrediction:
    """Predict one target with the executor of a plan, or with the next one if that runs out of memory.

    `spill` is the directory for spilled streams and `say` prints a line about a change of executors. `carry_out` calls
    its second argument with an executor that works as its first one does, such as one of several ranks. `passes`
    launches or replays the passes; recordings are given up before another executor is tried.
    """
    device = stages.device
    earlier = passes.replays
    size, config = plan.size, model.preset.model
    largest = size.residues * max(size.residues * config.c_z, size.msa_rows * config.evoformer.c_m)
    threads = threads_for(largest, device)

    def attempt(within: Whole | Slabs) -> tuple[Prediction, dict[str, set[str]], int]:
        release(device, peak=plan.estimate.peak)
        reset_peak_memory(device)
        held, before = peak_memory(device), len(stages.finished)
        with recorded_backends() as backends, in_threads(threads):
            prediction = carry_out(
                within,
                lambda run: fold(
                    model.network,
                    run,
                    features,
                    model.preset,
                    options,
                    stages=stages,
                    name=name,
                    passes=passes,
                    initial_guess=initial_guess,
                    offsets=offsets,
                ),
            )
        return prediction, backends, max(stage.peak_memory for stage in stages.finished[before:]) - held

    succeeded, (prediction, backends, peak) = run_with_fallback(
        attempt, plan, device, spill, say, give_up_memory=passes.clear
    )
    return PlannedPrediction(
        prediction=prediction,
        executor=succeeded.executor,
        slab_budget=succeeded.slab_budget,
        backends=sorted_backends(backends),
        replayed_passes=passes.replays - earlier,
        threads=threads,
        predicted_peak=succeeded.estimate.peak,
        measured_peak=peak,
    )


__all__ = ["FoldingOptions", "PlannedPrediction", "fold", "fold_planned", "predict"]
