"""Tasks of the predicting process of a worker: predict a job, search for other programs, estimate its offer."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from data_pipeline.errors import InputError
from data_pipeline.extras import are_installed
from data_pipeline.json_files import read_json
from data_pipeline.search.colabfold_search import ColabfoldSearch
from helixfold.execution.device import limit_threads, pick_device
from helixfold.execution.dtypes import AUTO, DTYPES, settled_dtype
from helixfold.folding import FoldingOptions
from helixfold.ops.card import Card, card_of
from helixfold.planning.duration import prediction_seconds
from helixfold.planning.executors import AvailableMemory, longest, plan, read_available_memory
from helixfold.planning.memory import FeatureRows
from helixfold.predict.run import run
from helixfold.predict.search_plan import plan_of
from helixfold.presets import Preset
from helixfold.report.files import read_order, read_prediction
from helixfold.report.tables import mark_of
from helixfold.serve.upload_check import fasta_of
from helixfold.serve.worker.alignments import search
from helixfold.serve.worker.options import WorkerOptions, predict_options
from helixfold.weights import demonstration
from helixfold.weights.find import WeightsProvenance, find_parameters
from helixfold.write.json_object import AGAIN
from helixfold.write.results import RANKING_FILE

# Lengths at which time and memory are counted, of those that fit; the server draws curves through them.
_LENGTHS = (64, 256, 1024, 2048, 4096)


def offers(options: WorkerOptions) -> dict[str, Any]:
    """Return what a worker with these options offers. Raise `InputError` if weights or databases are missing."""
    limit_threads()
    device = pick_device(options.device)
    card = card_of(device)
    available = read_available_memory(device, Path(), options.memory)
    found = _parameters(options)
    presets = [preset for preset, _ in found]
    searches = plan_of(options.search_options(), announce=False)
    return {
        "device": f"{card.name}",
        "models": [preset.name for preset in presets],
        "provenance": {preset.name: _provenance(path) for preset, path in found},
        "databases": bool(searches.alignments),
        "templates": searches.templates is not None or searches.complex_templates is not None,
        "alignments": any(isinstance(step.tool, ColabfoldSearch) for step in searches.alignments),
        "relaxes": are_installed("openmm", "pdbfixer"),
        "forecasts": {preset.name: _curve(preset, device, card, available) for preset in presets},
    }


def _parameters(options: WorkerOptions) -> list[tuple[Preset, Path | None]]:
    """Return the models that are named, or else those that `helixfold predict` would take for chains and complexes.

    Each comes with its parameter file; None: random parameters.
    """
    if options.models:
        return find_parameters(options.models, options.weights)
    found: dict[str, tuple[Preset, Path | None]] = {}
    for method in ("monomer", "multimer"):
        for preset, path in find_parameters((), options.weights, method=method):
            found.setdefault(preset.name, (preset, path))
    return list(found.values())


def _provenance(path: Path | None) -> WeightsProvenance:
    if path is None:
        return "untrained"
    return "trained" if demonstration.ancestor(path) is None else "demonstration"


def _curve(preset: Preset, device: torch.device, card: Card, available: AvailableMemory) -> dict[str, Any]:
    """Return seconds of a pass and bytes at the peak at some lengths, and the longest chain that there is room for."""
    dtype = DTYPES[settled_dtype(AUTO, card)]
    # Memory grows faster with long chains than with short ones, which have large temporaries for their size.
    size = FeatureRows.at_most(1024, preset.sampling).size(preset, dtype)
    most = max(longest(preset.model, size, available, card, name) for name in ("slabs", "spilled"))
    points = []
    for residues in [each for each in _LENGTHS if each <= most] or _LENGTHS[:1]:
        size = FeatureRows.at_most(residues, preset.sampling).size(preset, dtype)
        chosen = plan(preset.model, size, available, card)
        seconds = prediction_seconds(preset.model, size, device, passes=1)
        points.append([residues, seconds, chosen.estimate.peak])
    return {
        "points": points,
        "available": available.memory,
        "longest": most,
        "recycles": FoldingOptions().recycles(preset),
    }


# The search results that they are made of are there, and features are large.
_LEFT_OUT = ("features.npz",)


def do(kind: str, content: Mapping[str, Any], directory: Path, options: WorkerOptions) -> Any:
    """Do one task in a directory, and return what the worker sends: the offers, or the result's folder and summary.

    Raise `InputError` or `SearchError` for what cannot be done.
    """
    if kind == "offers":
        return offers(options)
    if kind == "alignment":
        return {"folder": search(content, directory, options), "summary": {}}
    return predict(content, directory, options)


def predict(request: Mapping[str, Any], directory: Path, options: WorkerOptions) -> dict[str, Any]:
    """Predict a job as `helixfold predict` does; return the folder of its files and its scores.

    Raise `InputError` with the reason if the target fails.
    """
    (directory / "target.fasta").write_text(fasta_of(request))
    output, failures = directory / "predictions", directory / "failures.json"
    shutil.rmtree(output, ignore_errors=True)
    here = os.getcwd()
    os.chdir(directory)
    try:
        run(predict_options(request, directory, options, output, failures))
    finally:
        os.chdir(here)
    found = read_json(failures, AGAIN) if failures.is_file() else {}
    for reason in dict(found).values():
        raise InputError(str(reason))
    (target,) = (path for path in output.iterdir() if (path / RANKING_FILE).is_file())
    best = read_prediction(target, read_order(target)[0])
    for name in _LEFT_OUT:
        (target / name).unlink(missing_ok=True)
    summary = {
        "plddt": round(best.mean_plddt, 2),
        "ptm": best.ptm,
        "iptm": best.iptm,
        "model": best.name[:100],
        "provenance": (mark_of(best.notes) or "trained").lower(),
    }
    return {"folder": target, "summary": summary}
