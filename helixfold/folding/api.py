"""The Python API: load models and fold one target with them, within planned memory."""

import itertools
import os
import re
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int

from data_pipeline.features.complexes.chain_sequences import CHAIN_SEPARATOR
from data_pipeline.features.complexes.complex_input import AnyTarget
from data_pipeline.features.complexes.feature_file import load_features
from data_pipeline.features.complexes.feature_set import ComplexFeatureSet, TargetFeatures, alignment_of
from data_pipeline.features.complexes.pipeline import prepare_any
from data_pipeline.features.complexes.target_files import read_targets, typed_target, with_search_files
from data_pipeline.features.schema import Features
from data_pipeline.io.errors import InputError
from data_pipeline.parse.fasta import directory_name
from data_pipeline.parse.restraints import read_restraints
from helixfold._deprecated import moved_names
from helixfold.execution.device import AUTO, cast_trunk, dtype_on, pick_device
from helixfold.execution.iteration_runner import runner_for
from helixfold.execution.stages import Stages
from helixfold.folding.initial_guess import guessed_positions
from helixfold.folding.model_input import depends_on_seed
from helixfold.folding.options import FoldingOptions
from helixfold.folding.planned import fold_planned, plan_prediction
from helixfold.folding.prediction import Prediction
from helixfold.folding.recycling import FoldingTarget
from helixfold.folding.templates import templates_in, templates_read
from helixfold.model.config import Method
from helixfold.model.presets import PRESETS, Preset
from helixfold.ops.device_properties import properties_of
from helixfold.planning.memory import MemoryOptions
from helixfold.planning.size import dtype_name
from helixfold.runtime.options import CudaGraphs, RepresentationName
from helixfold.runtime.screen import hides_bars
from helixfold.weights.adapters import WeightedAdapter, parse_adapters
from helixfold.weights.find import ReadyModel, find_models

Paths = str | Path | Sequence[str | Path]  # one path or several
AnyModel = str | Path | ReadyModel  # the name of a model, a parameter file, or a loaded model
AnyAdapter = str | Path | WeightedAdapter  # a file, also as "FILE=WEIGHT"


def load_model(
    name: str | Path | None = None,
    weights: str | Path | None = None,
    *,
    seed: int = 0,
    device: str = "auto",
    adapters: AnyAdapter | Sequence[AnyAdapter] = (),
) -> ReadyModel:
    """Load one model onto a device, for any number of calls of `predict`.

    `name` is the name of a model, or the path of a parameter file, which cannot be combined with `weights`. Without it,
    the first model that `helixfold predict` would use for a single chain is loaded. `weights` is a parameter file or a
    directory of them. The model `tiny` has random parameters, drawn with `seed`. `device` is "cpu", "cuda", "cuda:1",
    "mps", or "auto" for the best one. `adapters` are files from `helixfold finetune` to apply to the
    parameters, with a weight as "FILE=WEIGHT". Raise `InputError` for parameters that are missing or do not fit.
    """
    names = [] if name is None else [name]
    return _loaded(names, weights, seed=seed, method="monomer", device=device, adapters=adapters)[0]


def predict(
    target: AnyTarget | TargetFeatures | str | Path,
    models: AnyModel | Sequence[AnyModel] = (),
    weights: str | Path | None = None,
    options: FoldingOptions | None = None,
    *,
    msa: Paths = (),
    templates: Paths = (),
    as_protein: bool = False,
    seeds: int | Sequence[int] = (),
    device: str | None = None,
    memory: MemoryOptions | None = None,
    cuda_graphs: CudaGraphs = "auto",
    initial_guess: str | Path | None = None,
    offsets: Int[np.ndarray, "r r"] | None = None,
    restraints: str | Path | None = None,
    adapters: AnyAdapter | Sequence[AnyAdapter] = (),
    progress: bool | None = None,
    num_recycles: int | None = None,
    recycle_tolerance: float | None = None,
    num_ensemble: int = 1,
    seed: int = 0,
    dtype: str = AUTO,
    logits: bool = False,
    dropout: bool = False,
    save_passes: bool = False,
    representations: RepresentationName | tuple[RepresentationName, ...] = (),
    stop_at_score: float | None = None,
    cyclic: str | tuple[str, ...] | None = None,
) -> list[Prediction]:
    """Fold one target, like `helixfold predict` without searches and files; return its predictions, best first.

    Parameters
    ----------
    target
        The sequence, with colons between the chains of a complex; a FASTA or a3m file with one target, or its text;
        features, or a feature file (.npz); a `Target` or a `ComplexInput`.
    models
        Names of models, parameter files, or models from `load_model`, which stay on their device. Without models and
        weights, the defaults of `helixfold predict` are used, which may be the demonstration model.
    weights
        Parameter file, or directory of parameter files.
    options
        The arguments after `progress` as one object; see `FoldingOptions` for their meaning.
    msa, templates
        Alignments (files, or the text of an a3m) and template structures (mmCIF or PDB files, or directories of them).
    as_protein
        Read every letter as a residue, even if the sequence looks like DNA, RNA or three-letter codes.
    seeds
        Seeds of several predictions by each model, instead of `seed`.
    device
        "cpu", "cuda", "cuda:1" or "mps"; by default the best one.
    memory
        The memory to plan for and the executor to use; by default all free memory.
    cuda_graphs
        "auto": an NVIDIA GPU captures CUDA graphs for short targets; "off": it launches every kernel.
    initial_guess
        Structure file from whose atom positions recycling starts.
    offsets
        Integers (r, r) that replace the sequence offsets i - j of residue pairs, in the order of the predictions'
        residues.
    restraints
        File of distance restraints for AlphaLink's networks, in the formats of `--restraints`.
    adapters
        Adapters from `helixfold finetune` to apply to the parameters: files, with a weight as "FILE=WEIGHT".
    progress
        Show a bar of recycling iterations after two seconds: True always, False never, None on a terminal and in
        notebooks.

    With several seeds, all models predict with the first seed before the next one is used. With `stop_at_score`, the
    first prediction whose mean pLDDT reaches it is the last: further models and seeds are left out.

    The `notes` of predictions have what every reader must know, such as the demonstration model, templates that are not
    used, and seeds that make no difference. Each note is also issued as a Python warning. Raise `InputError` for wrong
    input and `NotEnoughMemoryError` if a model does not fit.
    """
    from_arguments = FoldingOptions(
        num_recycles=num_recycles,
        recycle_tolerance=recycle_tolerance,
        num_ensemble=num_ensemble,
        seed=seed,
        dtype=dtype,
        logits=logits,
        dropout=dropout,
        save_passes=save_passes,
        representations=representations,  # type: ignore[arg-type]
        stop_at_score=stop_at_score,
        cyclic=cyclic,  # type: ignore[arg-type]
    )
    if options is not None and from_arguments != FoldingOptions():
        raise InputError("pass options, or its fields as arguments, not both")
    options, memory = options or from_arguments, memory or MemoryOptions()
    options_by_seed = [replace(options, seed=each) for each in (_several(seeds) or [options.seed])]
    if len({each.seed for each in options_by_seed}) < len(options_by_seed):
        raise InputError(f"seeds must be different, got {seeds}")
    features, notes = _features(target, _several(msa), _several(templates), as_protein=as_protein)
    loaded = [model for model in _several(models) if isinstance(model, ReadyModel)]
    if loaded and (len(loaded) < len(_several(models)) or weights is not None or device is not None or adapters):
        raise InputError(
            "loaded models cannot be combined with model names, weights, device or adapters; pass only loaded models"
        )
    if not loaded:
        names = [name for name in _several(models) if not isinstance(name, ReadyModel)]
        method: Method = "multimer" if CHAIN_SEPARATOR in features.sequence else "monomer"
        loaded = _loaded(
            names, weights, seed=options_by_seed[0].seed, method=method, device=device or "auto", adapters=adapters
        )
    ready = [memory.limited(model) for model in loaded]
    model_device = next(ready[0].network.parameters()).device
    stages = Stages(model_device)
    for model in ready:
        _cast(model, dtype_on(options.dtype, properties_of(model_device)))
    spill = memory.spill_directory or Path(tempfile.gettempdir())
    available = memory.available(model_device, spill)
    plans = [plan_prediction(model, features, options, memory, available, name=model.preset.name) for model in ready]
    predictions: list[Prediction] = []
    runner = runner_for(model_device, cuda_graphs)
    guess = None if initial_guess is None else guessed_positions(Path(initial_guess), features)
    distance_restraints = None if restraints is None else read_restraints(Path(restraints), features.sequence)
    folding_target = FoldingTarget(
        features=features, initial_guess=guess, offsets=offsets, restraints=distance_restraints
    )
    for each, (model, plan) in itertools.product(options_by_seed, zip(ready, plans, strict=True)):
        equal_prediction = next((other for other in predictions if other.identity.weights == model.digest), None)
        if equal_prediction is not None and not depends_on_seed(features, model.preset, dropout=each.dropout):
            note = f"'{model.preset.name}' gives the same prediction with every seed, because nothing is drawn"
            prediction = replace(equal_prediction, notes=tuple(dict.fromkeys((*equal_prediction.notes, note))))
        else:
            prediction = fold_planned(
                model,
                folding_target,
                plan,
                each,
                stages=stages,
                spill=spill,
                runner=runner,
                hides_bar=hides_bars(progress),
            )
            all_notes = (*prediction.notes, *notes, *_unused_template_notes(features, model.preset))
            prediction = replace(prediction, notes=all_notes, features=features)
        name = f"{model.preset.name}_seed_{each.seed}" if len(options_by_seed) > 1 else prediction.name
        predictions.append(replace(prediction, name=name, identity=replace(prediction.identity, seed=each.seed)))
        if options.stops_at(prediction.plddt.mean()):
            break
    # Notes about the features have been issued before.
    for note in dict.fromkeys(note for prediction in predictions for note in prediction.notes if note not in notes):
        warnings.warn(note, stacklevel=2)
    return sorted(predictions, key=lambda prediction: -prediction.ranking_confidence)


def _several(value: Any) -> list[Any]:
    """Return the items of an iterable as a list; a string, and anything else that is not iterable, is one item."""
    return list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [value]


def _adapters(value: AnyAdapter | Sequence[AnyAdapter]) -> list[WeightedAdapter]:
    """Return adapters, each with its weight."""
    adapters: list[WeightedAdapter] = []
    for each in _several(value):
        if isinstance(each, str):
            adapters += parse_adapters([each])
        else:
            adapters.append(WeightedAdapter(path=each) if isinstance(each, Path) else each)
    return adapters


def _loaded(
    names: Sequence[str | Path],
    weights: str | Path | None,
    *,
    seed: int,
    method: Method,
    device: str,
    adapters: AnyAdapter | Sequence[AnyAdapter],
) -> list[ReadyModel]:
    """Load models onto a device; `names` are names of models or paths of parameter files.

    Without names, the default models of the method are loaded.
    """
    files = [Path(name) for name in names if isinstance(name, Path) or (name not in PRESETS and os.path.exists(name))]
    if files and (weights is not None or len(files) < len(names)):
        raise InputError("pass names of models with weights, or parameter files as models, not both")
    paths: Sequence[Path | None] = files or [None if weights is None else Path(weights)]
    models = [
        model
        for path in paths
        for model in find_models(
            [] if files else [*map(str, names)], path, seed=seed, method=method, adapters=_adapters(adapters)
        )
    ]
    for model in models:
        model.network.to(pick_device(device))
    return models


def _features(
    source: AnyTarget | TargetFeatures | str | Path,
    msa: Sequence[str | Path],
    templates: Sequence[str | Path],
    *,
    as_protein: bool,
) -> tuple[TargetFeatures, tuple[str, ...]]:
    """Return the features of a target in any form that `predict` accepts, and notes about unused templates."""
    if isinstance(source, str | Path) and str(source).endswith(".npz"):
        source = load_features(source)
    if isinstance(source, Features | ComplexFeatureSet):
        if msa or templates:
            raise InputError("features have their MSA and templates; pass the sequence together with msa and templates")
        return source, ()
    # The text of an alignment is written to a file, because readers take files.
    with tempfile.TemporaryDirectory() as directory:
        files = [_file(each, Path(directory, str(index)).with_suffix(".a3m")) for index, each in enumerate(msa)]
        target = _target(source, Path(directory), as_protein=as_protein)
        (target,) = with_search_files([target], files, list(map(Path, templates)))
        prepared = prepare_any(target)
    return prepared.features, prepared.notes


def _target(source: AnyTarget | str | Path, directory: Path, *, as_protein: bool) -> AnyTarget:
    """Return the target from a target, a sequence, a FASTA or a3m file, or the text of such a file.

    A text is written to a file in `directory`, because readers take files.
    """
    if not isinstance(source, str | Path):
        return source
    letters = "".join(str(source).split())
    if isinstance(source, str) and re.fullmatch(r"[A-Za-z0-9:*]+", letters) and not os.path.exists(source):
        return replace(typed_target(letters.upper(), as_protein=as_protein), as_protein=as_protein)
    header = re.search(r"^>\s*(\S+)", str(source), re.MULTILINE)
    # A single record is read as FASTA, because in an a3m lower case means insertions.
    suffix = "a3m" if str(source).count(">") > 1 else "fasta"
    path = _file(source, directory / f"{directory_name(header[1]) if header else 'target'}.{suffix}")
    targets = read_targets([path], as_protein=as_protein)
    if len(targets) > 1:
        raise InputError.at(path, f"the file has {len(targets)} targets; expected one, call predict once for each")
    return targets[0]


def _file(source: str | Path, path: Path) -> Path:
    """Return the path `source`, or `path` after writing `source` to it if that is the text of a file."""
    if isinstance(source, str) and source.lstrip().startswith((">", "#")):
        path.write_text(f"{source.strip()}\n")
        return path
    return Path(source)


def _cast(model: ReadyModel, dtype: torch.dtype) -> None:
    """Cast the trunk of a model; raise `InputError` if an earlier call has rounded it to a lower precision."""
    before = next(model.network.evoformer.parameters()).dtype
    if before not in (torch.float32, dtype):
        raise InputError(f"an earlier call has rounded the parameters to {dtype_name(before)}; load the model again")
    cast_trunk(model.network, dtype)


def _unused_template_notes(features: TargetFeatures, preset: Preset) -> tuple[str, ...]:
    """Return a note if a target has templates but the model of a preset reads none."""
    if templates_read(features, preset) or not templates_in(alignment_of(features)):
        return ()
    return (f"'{preset.name}' reads no templates, so the templates of '{features.domain_name}' are not used",)


__getattr__ = moved_names(__name__)
