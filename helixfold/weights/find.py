"""Load models for prediction by name, from a file or directory of weights.

`DEFAULTS` are the models of each method that are used if neither an option nor a configuration file names others.
`UNTRAINED_PRESETS` have random parameters if no weights are passed. `SUFFIXES` are of parameter files in a directory.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from data_pipeline.io.config import ConfigError
from data_pipeline.io.errors import InputError, did_you_mean, printable
from data_pipeline.io.site_configuration import site_configuration
from data_pipeline.io.user_cache import NO_CACHE
from helixfold.model.alphafold import AlphaFold
from helixfold.model.config import Method
from helixfold.model.presets import PRESETS, Preset, preset
from helixfold.runtime.standard_streams import print_note
from helixfold.weights import demonstration
from helixfold.weights.adapters import WeightedAdapter, with_adapters
from helixfold.weights.cache import parameters_directory
from helixfold.weights.checkpoint import read_header
from helixfold.weights.conversion import shapes_of
from helixfold.weights.load import file_format, load_weights, matching_presets, read_shapes
from helixfold.weights.provenance import WeightsProvenance
from helixfold.weights.tensor_file import digest_of
from helixfold.weights.untrained import untrained_model

# Models that are used if DeepMind's parameters were downloaded and neither an option nor a configuration file names
# others.
DEFAULTS: dict[Method, str] = {"monomer": "model_1_ptm", "multimer": "model_1_multimer_v3"}
# Models with random parameters if no weights are passed.
UNTRAINED_PRESETS = ("tiny", "tiny_multimer")
SUFFIXES = (".npz", ".safetensors", ".pt")


@dataclass(frozen=True, kw_only=True)
class ReadyModel:
    """Network with its parameters, and the notes that its results must have.

    `digest` is the SHA-256 of the parameters and the preset, whatever file they are from.
    """

    preset: Preset
    network: AlphaFold
    digest: str  # SHA-256 of the parameters and the preset, independent of the file
    provenance: WeightsProvenance = "trained"

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the output files, such as that the parameters are random."""
        return self.network.notes


def find_models(
    names: Sequence[str],
    weights: Path | None,
    *,
    seed: int,
    method: Method = "monomer",
    adapters: Sequence[WeightedAdapter] = (),
    is_measured: bool = False,
) -> list[ReadyModel]:
    """Load models by name from `weights`, a parameter file or a directory of parameter files.

    Without names, the metadata or name of a file determines the model. From a directory, all models of the method are
    loaded, or all other models if it has none of these. Without `weights`, models come from the directory of `helixfold
    weights download`. If it is empty and no names are passed, the demonstration model is loaded. The models `tiny` and
    `tiny_multimer` have random parameters from `seed`, unless they have a file.

    A configuration file may name other default models. It may forbid the demonstration model and random parameters,
    except in benchmarks (`is_measured`). The changes of `adapters` are added to the parameters of every model. Raise
    `InputError` if parameters are missing, do not fit or are forbidden.
    """
    return [
        _untrained(settings, seed, adapters) if path is None else _load(settings, path, adapters)
        for settings, path in find_parameters(names, weights, method=method, is_measured=is_measured)
    ]


def find_parameters(
    names: Sequence[str], weights: Path | None, *, method: Method = "monomer", is_measured: bool = False
) -> list[tuple[Preset, Path | None]]:
    """Return the models that `find_models` loads, each with its parameter file, or None for random parameters.

    Parameters are not loaded. Only the models in `UNTRAINED_PRESETS` have random parameters, and only without `weights`
    and if the directory of `helixfold weights download` does not have them. In benchmarks (`is_measured`), a
    configuration file cannot forbid these, nor the demonstration model. Raise `InputError` as `find_models`.
    """
    for name in names:
        preset(name)
    if weights is not None and not names and (stored := trained_preset(weights)) is not None:
        return [(stored, weights)]
    if len(set(names)) < len(names):
        raise InputError(f"each model must be named once, got {', '.join(names)}")
    if weights is None and not names:
        names = _default_names(method)
    if weights is None and names and set(names) <= {*UNTRAINED_PRESETS} and not _has_files(names):
        if not is_measured:
            _require_permission(f"without --weights, the parameters of {', '.join(names)} are random")
        return [(preset(name), None) for name in names]
    if weights is None and (not names or list(names) == [demonstration.NAME]):
        if not is_measured:
            missing = f"no weights of {', '.join(default_models(method))} are configured"
            _require_permission(f"'{demonstration.NAME}' is the demonstration model" if names else missing)
        return [(preset(demonstration.NAME), demonstration.WEIGHTS)]
    return [(preset_with_file(name, path), path) for name, path in _files(names, weights, method).items()]


def _has_files(names: Sequence[str]) -> bool:
    """Return whether the directory of parameters has a file for each of the names."""
    return all(_in_directory(parameters_directory(), name) for name in names)


def default_models(method: Method) -> Sequence[str]:
    """Return the default models of a method, from a configuration file or else from `DEFAULTS`.

    Raise `InputError` if the file names a model that does not exist.
    """
    site, key = site_configuration(), f"{method}_models"
    names: Sequence[str] | None = getattr(site, key)
    if names is None:
        return (DEFAULTS[method],)
    for name in names:
        if name not in PRESETS:
            hint = did_you_mean(name, PRESETS) or f"; the models are {', '.join(PRESETS)}"
            raise site.problem(key, f"names the unknown model '{printable(name, 60)}'{hint}")
    if len(set(names)) < len(names):
        raise site.problem(key, f"must name each model once, got {', '.join(names)}")
    return names


def _default_names(method: Method) -> Sequence[str]:
    """Return the models to use if the command names none: of another method if only their parameters exist.

    Raise `InputError` if a configuration file names models without parameters.
    """
    site, key, directory = site_configuration(), f"{method}_models", parameters_directory()
    defaults = default_models(method)
    if key in site.sources:
        needed = [name for name in defaults if name not in (demonstration.NAME, *UNTRAINED_PRESETS)]
        missing = " ".join(name for name in needed if not _in_directory(directory, name))
        if missing:
            where = "no directory of parameters exists" if directory is None else f"{directory} does not have them"
            fetch = f"run 'helixfold weights download --models {missing}', or pass --models"
            raise site.problem(key, f"names {missing}, and {where}; {fetch}")
        return defaults
    alternatives = (defaults, *map(default_models, DEFAULTS))
    return next(filter(_has_files, alternatives), ())


def _require_permission(reason: str) -> None:
    """Raise `InputError` if a configuration file forbids predictions without trained weights."""
    site = site_configuration()
    if not site.allow_demonstration_model:
        raise site.problem(
            "allow_demonstration_model",
            f"is false, and {reason}; run 'helixfold weights download', pass --weights, or set weights_directory",
        )


def trained_preset(weights: Path) -> Preset | None:
    """Return the preset in the metadata of a parameter file; None if it has none, or is a directory or missing.

    Raise `InputError` if the metadata does not describe a model.
    """
    if not os.path.isfile(weights) or file_format(weights) != "safetensors":
        return None
    header = read_header(weights)
    if header.use is None:
        return None
    try:
        return Preset.from_dict({**header.use, "model": header.config})
    except ConfigError as error:
        raise InputError.at(weights, f"its settings do not describe a model: {printable(str(error))}") from error


def preset_with_file(name: str, path: Path) -> Preset:
    """Return the named preset, with the features and recycling that its parameter file records, if it does.

    A file that records the name of another preset does not change this one. Raise `InputError` as `trained_preset`.
    """
    named, stored = preset(name), trained_preset(path)
    if stored is None or (stored.name != name and stored.name in PRESETS):
        return named
    return replace(stored, name=name, model=named.model)


def _untrained(settings: Preset, seed: int, adapters: Sequence[WeightedAdapter]) -> ReadyModel:
    """Return the network with random parameters, whose note marks results as no prediction; adapters are an error."""
    if adapters:
        raise InputError.at(
            adapters[0].path,
            f"cannot be added to the random parameters of '{settings.name}'; pass its own parameters with --weights",
        )
    notes = parameter_notes(settings, None, seed=seed)
    return _ready(settings, untrained_model(settings.model, seed), notes, "untrained")


def _load(settings: Preset, path: Path, adapters: Sequence[WeightedAdapter]) -> ReadyModel:
    """Return the network with the parameters of `path` and adapters; demonstration weights have a further note."""
    with torch.device("meta"):
        network = AlphaFold(settings.model)
    state, notes = load_weights(path, settings.model, shapes_of(network.state_dict())), tuple[str, ...]()
    if adapters:
        state, notes = with_adapters(state, adapters, path)
    network.load_state_dict(state, assign=True)
    network.eval()
    warnings = parameter_notes(settings, path, seed=0, adapters=adapters)
    return _ready(settings, network, (*warnings, *notes), "demonstration" if warnings else "trained")


def parameter_notes(
    settings: Preset, path: Path | None, *, seed: int, adapters: Sequence[WeightedAdapter] = ()
) -> tuple[str, ...]:
    """Return the note that parameters are random (`path` is None, from `seed`) or of the demonstration model, if so."""
    if path is None:
        return (
            f"UNTRAINED: made by the '{settings.name}' preset with random parameters (seed {seed}) to show that the "
            "program works; this is not a prediction of the protein's structure",
        )
    if demonstration.ancestor(path) is None:
        return ()
    # The results have the note also if the file was copied elsewhere.
    return (demonstration.note(descendant=bool(adapters) or not demonstration.is_packaged(path)),)


def _ready(settings: Preset, network: AlphaFold, notes: tuple[str, ...], provenance: WeightsProvenance) -> ReadyModel:
    """Return the network with its notes, and a digest of settings and parameters."""
    network.notes = notes
    text = f"{json.dumps(settings.to_dict_of_first_version(), sort_keys=True)}\n{digest_of(network.state_dict())}"
    digest = hashlib.sha256(text.encode()).hexdigest()
    return ReadyModel(preset=settings, network=network, digest=digest, provenance=provenance)


def _files(names: Sequence[str], weights: Path | None, method: Method) -> dict[str, Path]:
    """Return the parameter file of each model, by model name."""
    if weights is not None and not os.path.exists(weights):  # `Path.exists` raises if a name is too long
        raise InputError.at(weights, "no such file or directory of weights")
    if weights is not None and not weights.is_dir():
        if len(names) > 1:
            raise InputError(f"{weights} is one file, but {len(names)} models are named; pass a directory of weights")
        return {names[0] if names else named_preset(weights) or fitting_preset(weights, "--models"): weights}
    directory = weights or parameters_directory()
    if directory is None:
        raise InputError(f"no parameters of {', '.join(names)}: {NO_CACHE}, or pass --weights")
    available = {name: path for name in PRESETS if (path := _in_directory(directory, name)) is not None}
    if not names and not available:
        raise InputError(f"{directory}: has no parameter files params_<model>.npz")
    missing = [name for name in names if name not in available]
    if missing:
        fetch = f"run 'helixfold weights download --models {' '.join(missing)}'"
        if any(preset(name).model.restraints for name in missing):
            fetch = "download AlphaLink's checkpoint (docs/how-to/restraints.md)"
        hint = f"pass --weights, or {fetch}" if weights is None else "pass another --weights"
        raise InputError(f"{directory}: has no parameters of {', '.join(missing)}; {hint}")
    # DeepMind's archive has models of both methods, which are for different targets.
    of_method = [name for name in available if preset(name).model.method == method]
    return {name: available[name] for name in names or of_method or available}


def _in_directory(directory: Path | None, name: str) -> Path | None:
    """Return the path of the preset's parameters in a directory, or None."""
    if directory is None:
        return None
    candidates = (directory / f"{stem}{suffix}" for stem in (f"params_{name}", name) for suffix in SUFFIXES)
    return next((path for path in candidates if path.is_file()), None)


def fitting_preset(path: Path, option: str) -> str:
    """Return the name of the only preset that the arrays of a file fit, and print a note with it.

    Raise `InputError` if none fits, or if several do; the message then names `option`, which selects one.
    """
    form, shapes = read_shapes(path)
    fitting = matching_presets(shapes, form)
    if not fitting:
        raise InputError.at(path, f"does not fit any model; the models are {', '.join(PRESETS)}")
    if len(fitting) > 1:
        problem = f"fits {len(fitting)} models and does not have the name of one"
        raise InputError.at(path, f"{problem}; add {option} with one of {', '.join(fitting)}")
    print_note(f"{path}: read as {fitting[0]}, the only model that it fits")
    return fitting[0]


def named_preset(path: Path) -> str | None:
    """Return the name of the preset in the name of a parameter file, such as `params_model_1_ptm.npz`, or None.

    The file is not read.
    """
    name = path.name.removesuffix(path.suffix).removeprefix("params_")
    return name if name in PRESETS else None
