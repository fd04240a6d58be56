"""Fold one target with models that are found, in memory that is planned for.

`predict` is the Python entrance, which finds models and plans memory as `helixfold predict` does.
"""

import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Int

from data_pipeline.complexes.chain_sequences import CHAIN_SEPARATOR
from data_pipeline.complexes.complex_input import AnyTarget
from data_pipeline.complexes.feature_set import TargetFeatures, alignment_of
from data_pipeline.complexes.pipeline import prepare_any
from helixfold.config import Method
from helixfold.execution.device import cast_trunk, dtype_on, pick_device
from helixfold.execution.recorded_passes import passes_on
from helixfold.execution.stages import Stages
from helixfold.folding.initial_guess import guessed_positions
from helixfold.folding.model_input import model_input
from helixfold.folding.options import FoldingOptions
from helixfold.folding.planned import fold_planned
from helixfold.folding.prediction import Prediction
from helixfold.folding.recycling import FoldingTarget
from helixfold.folding.templates import templates_in, templates_read
from helixfold.ops.card import card_of
from helixfold.options import CudaGraphs
from helixfold.planning.memory import FeatureRows, MemoryOptions
from helixfold.presets import Preset
from helixfold.weights.adapters import WeightedAdapter
from helixfold.weights.find import find_models


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
    given = FoldingTarget(features=features, initial_guess=guess, offsets=offsets)
    for model, plan in zip(ready, plans, strict=True):
        made = fold_planned(model, given, plan, options, stages=stages, spill=spill, passes=passes)
        notes = (*made.notes, *prepared.notes, *_unread(target, features, model.preset))
        predictions.append(replace(made, notes=notes))
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
