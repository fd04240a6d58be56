"""Compute representations of many targets in one call, such as for another network or to compare proteins.

The network is run as in a prediction; its structures and confidences are left out.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from data_pipeline.complexes.complex_input import AnyTarget
from data_pipeline.complexes.feature_set import TargetFeatures
from data_pipeline.complexes.pipeline import target_features
from helixfold.execution.device import cast_trunk, dtype_on, pick_device
from helixfold.execution.stages import Stages
from helixfold.folding import FoldingOptions
from helixfold.folding_together import TargetToFold, fit_together, fold_together
from helixfold.inference import fold_planned
from helixfold.model_input import model_input
from helixfold.ops.card import card_of
from helixfold.options import RepresentationName
from helixfold.planning.executors import Plan, executor
from helixfold.planning.memory import FeatureRows, MemoryOptions
from helixfold.prediction import Prediction
from helixfold.weights.find import ReadyModel, find_models


def representations(
    targets: Sequence[AnyTarget],
    names: Sequence[RepresentationName] = ("single",),
    *,
    model: str | None = None,
    weights: Path | None = None,
    options: FoldingOptions | None = None,
    device: str = "auto",
    memory: MemoryOptions | None = None,
    targets_at_once: int = 16,
) -> list[dict[RepresentationName, np.ndarray]]:
    """Return representations of each target, float32, by name; the names and shapes are those of `RepresentationName`.

    `model` and `weights` are found as `helixfold.inference.predict` finds them; of several models, the first is run.
    The executor of each target is planned for the memory that is free, or for `memory`. Targets whose streams fit into
    it whole are run in the same passes, at most `targets_at_once` of about the same length; results do not depend on
    it, but for rounding. Raise `InputError` for wrong input and `NotEnoughMemoryError` for a target that does not fit.
    """
    options = replace(options or FoldingOptions(), representations=tuple(names))
    memory, where = memory or MemoryOptions(), pick_device(device)
    ready = memory.limited(find_models(() if model is None else (model,), weights, seed=options.seed)[0])
    dtype = dtype_on(options.dtype, card_of(where))
    cast_trunk(ready.network.to(where), dtype)
    found: dict[int, dict[RepresentationName, np.ndarray]] = {}
    order = sorted(range(len(targets)), key=lambda number: len(targets[number].sequence))
    at_once = max(1, targets_at_once)
    for lot in (order[start : start + at_once] for start in range(0, len(order), at_once)):
        features = [target_features(targets[number]) for number in lot]
        for number, prediction in zip(lot, _predicted(features, ready, options, memory, Stages(where)), strict=True):
            found[number] = dict(prediction.representations or {})
    return [found[number] for number in range(len(targets))]


def _predicted(
    targets: Sequence[TargetFeatures],
    ready: ReadyModel,
    options: FoldingOptions,
    memory: MemoryOptions,
    stages: Stages,
) -> list[Prediction]:
    """Return the predictions of a lot of targets, in the same passes if they can be."""
    spill = memory.spill_directory or Path(tempfile.gettempdir())
    available = memory.available(stages.device, spill)
    plans: list[Plan] = []
    for features in targets:
        rows = FeatureRows.of(model_input(features, ready.preset).features)
        size = rows.size(ready.preset, dtype_on(options.dtype, card_of(stages.device)), options.num_ensemble)
        plans.append(memory.plan(ready.preset, size, stages.device, available))
        memory.check(plans[-1], features.domain_name)
    # Padding would be averaged by a model of complexes, as the place of a template is that a target has not.
    if len(plans) > 1 and ready.preset.model.method != "multimer" and fit_together(plans):
        lot = [TargetToFold(features=features, name=ready.preset.name) for features in targets]
        return fold_together(ready.network, executor("whole", spill), lot, ready.preset, options, stages=stages)
    return [
        fold_planned(ready, plan, features, options, stages=stages, spill=spill).prediction
        for plan, features in zip(plans, targets, strict=True)
    ]
