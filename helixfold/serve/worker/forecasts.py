"""Offer of a worker: its models, each with curves of time and memory by the number of residues on its device."""

from pathlib import Path
from typing import Any

import torch

from data_pipeline.extras import are_installed
from data_pipeline.search.colabfold_search import ColabfoldSearch
from helixfold.execution.device import limit_threads, pick_device
from helixfold.execution.dtypes import AUTO, DTYPES, settled_dtype
from helixfold.folding import FoldingOptions
from helixfold.ops.card import Card, card_of
from helixfold.planning.duration import prediction_seconds
from helixfold.planning.executors import AvailableMemory, longest, plan, read_available_memory
from helixfold.planning.memory import FeatureRows
from helixfold.predict.search_plan import plan_of
from helixfold.presets import Preset
from helixfold.serve.worker.options import WorkerOptions
from helixfold.weights import demonstration
from helixfold.weights.find import WeightsProvenance, find_parameters

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
