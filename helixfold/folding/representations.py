"""Compute the network's representations of many targets in one call, for example as features of another network.

The network runs as in a prediction; structures and confidences are dropped.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from tqdm import tqdm

from data_pipeline.features.complexes.complex_input import AnyTarget, ComplexInput
from data_pipeline.features.complexes.pipeline import target_features
from data_pipeline.pipeline import Target
from helixfold.execution.device import cast_trunk, dtype_on, pick_device
from helixfold.execution.stages import Stages
from helixfold.folding.options import FoldingOptions
from helixfold.folding.planned import fold_all, plan_prediction
from helixfold.folding.recycling import FoldingTarget
from helixfold.ops.device_properties import properties_of
from helixfold.planning.memory import MemoryOptions
from helixfold.runtime.options import RepresentationName
from helixfold.runtime.screen import hides_bars
from helixfold.weights.find import find_models


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
    """Return the representations of each target as float32 arrays by name; `RepresentationName` describes their shapes.

    `model` and `weights` have the same meaning as in `helixfold.folding.api.predict`; only the first model is run. The
    executor of each target is planned for the free memory, or for `memory`. `names` replaces the representations in
    `options`. Up to `targets_at_once` targets of similar length are computed as one batch if they fit into memory
    whole, which changes results only by rounding. Raise `InputError` for wrong input and `NotEnoughMemoryError` for a
    target that does not fit.
    """
    targets = [targets] if isinstance(targets, Target | ComplexInput) else targets
    options = replace(options or FoldingOptions(), representations=(names,) if isinstance(names, str) else tuple(names))
    memory, network_device = memory or MemoryOptions(), pick_device(device)
    ready = memory.limited(find_models(() if model is None else (model,), weights, seed=options.seed)[0])
    cast_trunk(ready.network.to(network_device), dtype_on(options.dtype, properties_of(network_device)))
    spill = memory.spill_directory or Path(tempfile.gettempdir())
    results: dict[int, dict[RepresentationName, np.ndarray]] = {}
    order = sorted(range(len(targets)), key=lambda index: len(targets[index].sequence))
    # A multimer model averages over template slots, so padding would count as an empty template.
    at_once = 1 if ready.preset.model.method == "multimer" else max(1, targets_at_once)
    batches = [order[start : start + at_once] for start in range(0, len(order), at_once)]
    for batch in tqdm(batches, desc="targets", leave=False, delay=2.0, disable=hides_bars(None)):
        inputs = [FoldingTarget(features=target_features(targets[index])) for index in batch]
        available = memory.available(network_device, spill)
        plans = [
            plan_prediction(ready, each.features, options, memory, available, name=each.features.domain_name)
            for each in inputs
        ]
        stages = [Stages(network_device)] * len(batch)
        predictions = fold_all(ready, inputs, plans, options, stages=stages, spill=spill)
        for index, prediction in zip(batch, predictions, strict=True):
            results[index] = dict(prediction.representations or {})
    return [results[index] for index in range(len(targets))]
