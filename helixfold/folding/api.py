"""The Python API: fold one target with models that are found or were loaded, in memory that is planned for."""

import os
import re
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int

from data_pipeline.features.complexes.chain_sequences import CHAIN_SEPARATOR
from data_pipeline.features.complexes.complex_input import AnyTarget, ComplexInput
from data_pipeline.features.complexes.feature_set import TargetFeatures, alignment_of
from data_pipeline.features.complexes.pipeline import prepare_any
from data_pipeline.features.complexes.target_files import read_targets, typed_target
from data_pipeline.io.errors import InputError
from data_pipeline.pipeline import Target
from helixfold._deprecated import moved_names
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
from helixfold.model.config import Method
from helixfold.model.presets import Preset
from helixfold.ops.device_properties import properties_of
from helixfold.planning.memory import FeatureRows, MemoryOptions
from helixfold.planning.size import dtype_name
from helixfold.runtime.options import CudaGraphs
from helixfold.weights.adapters import WeightedAdapter
from helixfold.weights.find import ReadyModel, find_models


def load_model(
    name: str | None = None,
    weights: str | Path | None = None,
    *,
    seed: int = 0,
    device: str = "auto",
    adapters: Sequence[WeightedAdapter] = (),
) -> ReadyModel:
    """Load one model onto a device; `predict` can fold any number of targets with it.

    Models and weights are found as `helixfold predict` finds them; of several, this is the first. The model `tiny` has
    random parameters, made from `seed`. The changes of `adapters` are added to the parameters. Raise `InputError` for
    parameters that are missing or do not fit.
    """
    names, path = () if name is None else (name,), None if weights is None else Path(weights)
    model, *_ = find_models(names, path, seed=seed, adapters=adapters)
    model.network.to(pick_device(device))
    return model


def predict(
    target: AnyTarget | str | Path,
    models: Sequence[str | ReadyModel] | str | ReadyModel = (),
    weights: str | Path | None = None,
    options: FoldingOptions | None = None,
    *,
    device: str | None = None,
    memory: MemoryOptions | None = None,
    cuda_graphs: CudaGraphs = "auto",
    initial_guess: str | Path | None = None,
    offsets: Int[np.ndarray, "r r"] | None = None,
    adapters: Sequence[WeightedAdapter] = (),
) -> list[Prediction]:
    """Fold one target as `helixfold predict` does, without searches and files; return its predictions, best first.

    The target may be given as its sequence, with colons between the chains of a complex, or as a FASTA or a3m file that
    holds just one. Models may be the names of models, or models that `load_model` has loaded, which stay on their
    device. Models and weights are found as by the command: without both, the demonstration model may stand in, and
    `notes` of its predictions say so. Notes also name templates that are not used, and so do Python warnings.

    Each model's executor is planned for the free memory of the device, or for `memory.memory`. `adapters` are added to
    the parameters. Recycling starts from the atoms of `initial_guess`, a structure file. `offsets` (r, r) are whole
    numbers that replace the distances i - j of residues along the chain, in the order of the predictions' residues.
    With `cuda_graphs` "auto", an NVIDIA GPU captures CUDA graphs of short targets; with "off", it launches every
    kernel. Raise `InputError` for wrong input and `NotEnoughMemoryError` if a model does not fit.
    """
    options, memory = options or FoldingOptions(), memory or MemoryOptions()
    target = _target(target)
    prepared = prepare_any(target)
    features = prepared.features
    models = [models] if isinstance(models, str | ReadyModel) else models
    loaded = [model for model in models if isinstance(model, ReadyModel)]
    if loaded and (len(loaded) < len(models) or weights is not None or device is not None or adapters):
        raise InputError("models that are loaded have their weights, adapters and device; give only such models")
    if not loaded:
        names = [name for name in models if isinstance(name, str)]
        method: Method = "multimer" if CHAIN_SEPARATOR in target.sequence else "monomer"
        path = None if weights is None else Path(weights)
        loaded = find_models(names, path, seed=options.seed, method=method, adapters=adapters)
        for model in loaded:
            model.network.to(pick_device(device or "auto"))
    ready = [memory.limited(model) for model in loaded]
    where = next(ready[0].network.parameters()).device
    stages, dtype = Stages(where), dtype_on(options.dtype, properties_of(where))
    for model in ready:
        _cast(model, dtype)
    spill = memory.spill_directory or Path(tempfile.gettempdir())
    available = memory.available(where, spill)
    plans = []
    for model in ready:
        rows = FeatureRows.of(model_input(features, model.preset).features)
        size = rows.size(model.preset, dtype, options.num_ensemble)
        plans.append(memory.plan(model.preset, size, available))
        memory.check(plans[-1], model.preset.name)
    predictions: list[Prediction] = []
    passes = passes_on(where, cuda_graphs)
    guess = None if initial_guess is None else guessed_positions(Path(initial_guess), features)
    given = FoldingTarget(features=features, initial_guess=guess, offsets=offsets)
    for model, plan in zip(ready, plans, strict=True):
        made = fold_planned(model, given, plan, options, stages=stages, spill=spill, passes=passes)
        notes = (*made.notes, *prepared.notes, *_unread(target, features, model.preset))
        predictions.append(replace(made, notes=notes))
        if options.stop_at_score is not None and predictions[-1].plddt.mean() >= options.stop_at_score:
            break
    return sorted(predictions, key=lambda prediction: -prediction.ranking_confidence)


def _target(given: AnyTarget | str | Path) -> AnyTarget:
    """Return a target that is given as itself, as a sequence, or as a file of one."""
    if isinstance(given, Target | ComplexInput):
        return given
    if isinstance(given, str) and re.fullmatch(r"[A-Za-z0-9:*]+", given) and not os.path.exists(given):
        return typed_target(given)
    targets = read_targets([Path(given)])
    if len(targets) > 1:
        raise InputError.at(given, f"holds {len(targets)} targets, and one call folds one of them")
    return targets[0]


def _cast(model: ReadyModel, dtype: torch.dtype) -> None:
    """Cast the trunk of a model; raise `InputError` if an earlier call has rounded it to less."""
    before = next(model.network.evoformer.parameters()).dtype
    if before not in (torch.float32, dtype):
        raise InputError(f"this model was used in {dtype_name(before)}, which has rounded it; load it again")
    cast_trunk(model.network, dtype)


def _unread(target: AnyTarget, features: TargetFeatures, preset: Preset) -> tuple[str, ...]:
    """Return a note, and issue it as a warning, if a target has templates that the model of a preset does not read."""
    if not target.templates or templates_read(features, preset) or not templates_in(alignment_of(features)):
        return ()
    note = f"'{preset.name}' reads no templates, so the templates of '{target.name}' are not used"
    warnings.warn(note, stacklevel=3)
    return (note,)


__getattr__ = moved_names(__name__)
