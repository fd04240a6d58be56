"""Compute representations of many targets in one call, such as for another network or to compare proteins.

The network is run as in a prediction; its structures and confidences are left out.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from tqdm import tqdm

from data_pipeline.features.complexes.complex_input import AnyTarget, ComplexInput
from data_pipeline.features.complexes.feature_set import TargetFeatures
from data_pipeline.features.complexes.pipeline import target_features
from data_pipeline.pipeline import Target
from helixfold.execution.device import cast_trunk, dtype_on, pick_device
from helixfold.execution.stages import Stages
from helixfold.folding.model_input import model_input
from helixfold.folding.options import FoldingOptions
from helixfold.folding.planned import fold_planned, fold_together
from helixfold.folding.prediction import Prediction
from helixfold.folding.recycling import FoldingTarget
from helixfold.ops.device_properties import properties_of
from helixfold.planning.estimate import PredictionEstimate
from helixfold.planning.memory import FeatureRows, MemoryOptions
from helixfold.runtime.options import RepresentationName
from helixfold.runtime.screen import hides_bars
from helixfold.weights.find import ReadyModel, find_models


def representations(
    targets: AnyTarget | Sequence[AnyTarget],
    names: RepresentationName | Sequence[RepresentationName] = ("single",),
    *,
    model: str | None = None,
    weights: Path | None = None,
    options: FoldingOptions | None = None,
    device: str = "auto",
    memory: MemoryOptions | None = None,
    targets_at_once: int = 16,
) -> list[dict[RepresentationName, np.ndarray]]:
    """Return representations of each target, float32, by name; the names and shapes are those of `RepresentationName`.

    `model` and `weights` are found as `helixfold.folding.api.predict` finds them; of several models, the first is run.
    The executor of each target is planned for the memory that is free, or for `memory`. Targets whose streams fit into
    it whole are run in the same passes, at most `targets_at_once` of about the same length; results do not depend on
    it, but for rounding. Raise `InputError` for wrong input and `NotEnoughMemoryError` for a target that does not fit.
    """
    targets = [targets] if isinstance(targets, Target | ComplexInput) else targets
    options = replace(options or FoldingOptions(), representations=(names,) if isinstance(names, str) else tuple(names))
    memory, where = memory or MemoryOptions(), pick_device(device)
    ready = memory.limited(find_models(() if model is None else (model,), weights, seed=options.seed)[0])
    dtype = dtype_on(options.dtype, properties_of(where))
    cast_trunk(ready.network.to(where), dtype)
    found: dict[int, dict[RepresentationName, np.ndarray]] = {}
    order = sorted(range(len(targets)), key=lambda number: len(targets[number].sequence))
    at_once = max(1, targets_at_once)
    lots = [order[start : start + at_once] for start in range(0, len(order), at_once)]
    for lot in tqdm(lots, desc="targets", leave=False, delay=2.0, disable=hides_bars(None)):
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
    plans: list[PredictionEstimate] = []
    for features in targets:
        rows = FeatureRows.of(model_input(features, ready.preset).features)
        size = rows.size(ready.preset, dtype_on(options.dtype, properties_of(stages.device)), options.num_ensemble)
        plans.append(memory.plan(ready.preset, size, available))
        memory.check(plans[-1], features.domain_name)
    lot = [FoldingTarget(features=features) for features in targets]
    # Padding would be averaged by a model of complexes, as the place of a template is that a target has not.
    found = None
    if ready.preset.model.method != "multimer":
        found = fold_together(ready, lot, plans, options, stages=[stages] * len(lot), spill=spill)
    if found is not None:
        return found
    return [
        fold_planned(ready, target, plan, options, stages=stages, spill=spill)
        for target, plan in zip(lot, plans, strict=True)
    ]
