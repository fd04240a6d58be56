"""The Python API: fold one target with models that are found or were loaded, in memory that is planned for."""

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
from helixfold.folding.model_input import depends_on_seed, model_input
from helixfold.folding.options import FoldingOptions
from helixfold.folding.planned import fold_planned
from helixfold.folding.prediction import Prediction
from helixfold.folding.recycling import FoldingTarget
from helixfold.folding.templates import templates_in, templates_read
from helixfold.model.config import Method
from helixfold.model.presets import PRESETS, Preset
from helixfold.ops.device_properties import properties_of
from helixfold.planning.memory import FeatureRows, MemoryOptions
from helixfold.planning.size import dtype_name
from helixfold.runtime.options import CudaGraphs, RepresentationName
from helixfold.runtime.screen import hides_bars
from helixfold.weights.adapters import WeightedAdapter
from helixfold.weights.find import ReadyModel, find_models

Paths = str | Path | Sequence[str | Path]  # one, or several
AnyModel = str | Path | ReadyModel


def load_model(
    name: str | Path | None = None,
    weights: str | Path | None = None,
    *,
    seed: int = 0,
    device: str = "auto",
    adapters: WeightedAdapter | Sequence[WeightedAdapter] = (),
) -> ReadyModel:
    """Load one model onto a device; `predict` can fold any number of targets with it.

    `name` is a model's, or the path of a parameter file. Models and weights are found as `helixfold predict` finds
    them; of several, this is the first. The model `tiny` has random parameters, made from `seed`. The changes of
    `adapters` are added to the parameters. Raise `InputError` for parameters that are missing or do not fit.
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
    adapters: WeightedAdapter | Sequence[WeightedAdapter] = (),
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
    """Fold one target as `helixfold predict` does, without searches and files; return its predictions, best first.

    Parameters
    ----------
    target
        The sequence, with colons between the chains of a complex; a FASTA or a3m file with one target, or the text of
        one; features, or their file (.npz); a `Target` or a `ComplexInput`.
    models
        Names of models, parameter files, or models that `load_model` has loaded, which stay on their device. Without
        models and weights, they are found as by the command, and the demonstration model may stand in.
    weights
        Parameter file, or directory of parameter files.
    options
        The options that follow `progress`, as one `FoldingOptions`, which describes them.
    msa, templates
        Alignments (files, or the text of an a3m) and template structures (mmCIF or PDB files, or directories of them).
    as_protein
        Read every letter as a residue, even if the sequence looks like DNA, RNA or three-letter codes.
    seeds
        Seeds of the predictions of each model, in place of `seed`.
    device
        "cpu", "cuda", "cuda:1" or "mps"; by default the best one.
    memory
        How much memory to plan for, and which executor to use; by default what is free.
    cuda_graphs
        "auto": an NVIDIA GPU captures CUDA graphs of short targets; "off": it launches every kernel.
    initial_guess
        Structure file from whose atoms recycling starts.
    offsets
        Whole numbers (r, r) that replace the distances i - j of residues along the chain, in the order of the
        predictions' residues.
    restraints
        File of distance restraints for AlphaLink's networks, in the formats of `--restraints`.
    adapters
        Adapters of `helixfold finetune` that are added to the parameters.
    progress
        Show a bar of recycling iterations after two seconds: True always, False never, None on a terminal and in
        notebooks.

    `notes` of the predictions name what every reader must know, such as the demonstration model, templates that are not
    used, and seeds that make no difference. Each note is also a Python warning. Raise `InputError` for wrong input and
    `NotEnoughMemoryError` if a model does not fit.
    """
    single = FoldingOptions(
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
    if options is not None and single != FoldingOptions():
        raise InputError("pass options, or its fields as arguments, not both")
    options, memory = options or single, memory or MemoryOptions()
    of_seeds = [replace(options, seed=each) for each in (_several(seeds) or [options.seed])]
    if len({each.seed for each in of_seeds}) < len(of_seeds):
        raise InputError(f"each seed can be given once, got {seeds}")
    features, notes = _features(target, _several(msa), _several(templates), as_protein=as_protein)
    loaded = [model for model in _several(models) if isinstance(model, ReadyModel)]
    if loaded and (len(loaded) < len(_several(models)) or weights is not None or device is not None or adapters):
        raise InputError("models that are loaded have their weights, adapters and device; give only such models")
    if not loaded:
        names = [name for name in _several(models) if not isinstance(name, ReadyModel)]
        method: Method = "multimer" if CHAIN_SEPARATOR in features.sequence else "monomer"
        loaded = _loaded(
            names, weights, seed=of_seeds[0].seed, method=method, device=device or "auto", adapters=adapters
        )
    ready = [memory.limited(model) for model in loaded]
    where = next(ready[0].network.parameters()).device
    stages, dtype_of_trunk = Stages(where), dtype_on(options.dtype, properties_of(where))
    for model in ready:
        _cast(model, dtype_of_trunk)
    spill = memory.spill_directory or Path(tempfile.gettempdir())
    available = memory.available(where, spill)
    plans = []
    for model in ready:
        rows = FeatureRows.of(model_input(features, model.preset).features)
        size = rows.size(model.preset, dtype_of_trunk, options.num_ensemble)
        plans.append(memory.plan(model.preset, size, available))
        memory.check(plans[-1], model.preset.name)
    predictions: list[Prediction] = []
    runner = runner_for(where, cuda_graphs)
    guess = None if initial_guess is None else guessed_positions(Path(initial_guess), features)
    restrained = None if restraints is None else read_restraints(Path(restraints), features.sequence)
    given = FoldingTarget(features=features, initial_guess=guess, offsets=offsets, restraints=restrained)
    for each in of_seeds:
        for model, plan in zip(ready, plans, strict=True):
            same = next((made for made in predictions if made.identity.weights == model.digest), None)
            if same is not None and not depends_on_seed(features, model.preset, dropout=each.dropout):
                note = f"'{model.preset.name}' gives the same prediction with every seed, because nothing is drawn"
                made = replace(same, notes=tuple(dict.fromkeys((*same.notes, note))))
            else:
                made = fold_planned(
                    model, given, plan, each, stages=stages, spill=spill, runner=runner, hides_bar=hides_bars(progress)
                )
                made = replace(made, notes=(*made.notes, *notes, *_unread(features, model.preset)), features=features)
            name = f"{model.preset.name}_seed_{each.seed}" if len(of_seeds) > 1 else made.name
            predictions.append(replace(made, name=name, identity=replace(made.identity, seed=each.seed)))
            if options.stop_at_score is not None and made.plddt.mean() >= options.stop_at_score:
                return _ranked(predictions, notes)
    return _ranked(predictions, notes)


def _ranked(predictions: list[Prediction], known: Sequence[str]) -> list[Prediction]:
    """Return predictions, best first, and issue their notes as warnings, without those that are `known`."""
    for note in dict.fromkeys(note for prediction in predictions for note in prediction.notes if note not in known):
        warnings.warn(note, stacklevel=3)
    return sorted(predictions, key=lambda prediction: -prediction.ranking_confidence)


def _several(given: Any) -> list[Any]:
    """Return the items of a list; what is not a list, such as a string, is one item."""
    return list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]


def _loaded(
    names: Sequence[str | Path],
    weights: str | Path | None,
    *,
    seed: int,
    method: Method,
    device: str,
    adapters: WeightedAdapter | Sequence[WeightedAdapter],
) -> list[ReadyModel]:
    """Return models, given by their names or as files of parameters, on a device."""
    files = [Path(name) for name in names if isinstance(name, Path) or (name not in PRESETS and os.path.exists(name))]
    if files and (weights is not None or len(files) < len(names)):
        raise InputError("pass names of models with weights, or parameter files as models, not both")
    places: Sequence[Path | None] = files or [None if weights is None else Path(weights)]
    found = [
        model
        for path in places
        for model in find_models(
            [] if files else [*map(str, names)], path, seed=seed, method=method, adapters=_several(adapters)
        )
    ]
    for model in found:
        model.network.to(pick_device(device))
    return found


def _features(
    given: AnyTarget | TargetFeatures | str | Path,
    msa: Sequence[str | Path],
    templates: Sequence[str | Path],
    *,
    as_protein: bool,
) -> tuple[TargetFeatures, tuple[str, ...]]:
    """Return the features of whatever `predict` takes as its target, and notes about templates that are not used."""
    if isinstance(given, str | Path) and str(given).endswith(".npz"):
        given = load_features(given)
    if isinstance(given, Features | ComplexFeatureSet):
        if msa or templates:
            raise InputError("features have their MSA and templates; pass the sequence together with msa and templates")
        return given, ()
    # Text of alignments is read as the files that it could stand in.
    with tempfile.TemporaryDirectory() as directory:
        files = [_file(each, Path(directory, str(index)).with_suffix(".a3m")) for index, each in enumerate(msa)]
        target = _target(given, Path(directory), as_protein=as_protein)
        (target,) = with_search_files([target], files, list(map(Path, templates)))
        prepared = prepare_any(target)
    return prepared.features, prepared.notes


def _target(given: AnyTarget | str | Path, directory: Path, *, as_protein: bool) -> AnyTarget:
    """Return a target that is given as itself, as a sequence, as the text of a file, or as a file of one."""
    if not isinstance(given, str | Path):
        return given
    letters = "".join(str(given).split())
    if isinstance(given, str) and re.fullmatch(r"[A-Za-z0-9:*]+", letters) and not os.path.exists(given):
        return replace(typed_target(letters.upper(), as_protein=as_protein), as_protein=as_protein)
    header = re.search(r"^>\s*(\S+)", str(given), re.MULTILINE)
    # A record alone is not an alignment, in which lower case stands for insertions.
    suffix = "a3m" if str(given).count(">") > 1 else "fasta"
    path = _file(given, directory / f"{directory_name(header[1]) if header else 'target'}.{suffix}")
    targets = read_targets([path], as_protein=as_protein)
    if len(targets) > 1:
        raise InputError.at(path, f"holds {len(targets)} targets, and one call folds one of them")
    return targets[0]


def _file(given: str | Path, path: Path) -> Path:
    """Return a file that is given by its name, or `path` with the text that is given."""
    if isinstance(given, str) and given.lstrip().startswith((">", "#")):
        path.write_text(f"{given.strip()}\n")
        return path
    return Path(given)


def _cast(model: ReadyModel, dtype: torch.dtype) -> None:
    """Cast the trunk of a model; raise `InputError` if an earlier call has rounded it to less."""
    before = next(model.network.evoformer.parameters()).dtype
    if before not in (torch.float32, dtype):
        raise InputError(f"this model was used in {dtype_name(before)}, which has rounded it; load it again")
    cast_trunk(model.network, dtype)


def _unread(features: TargetFeatures, preset: Preset) -> tuple[str, ...]:
    """Return a note if a target has templates that the model of a preset does not read."""
    if templates_read(features, preset) or not templates_in(alignment_of(features)):
        return ()
    return (f"'{preset.name}' reads no templates, so the templates of '{features.domain_name}' are not used",)


__getattr__ = moved_names(__name__)
