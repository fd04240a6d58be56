"""Offer of a worker: its models, each with curves of time and memory by the number of residues on its device."""

from collections.abc import Iterator
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
from helixfold.weights.find import find_parameters

# Lengths at which time and memory are counted; the server draws curves through them.
_LENGTHS = (64, 256, 1024)


def offers(options: WorkerOptions) -> dict[str, Any]:
    """Return what a worker with these options offers. Raise `InputError` if weights or databases are missing."""
    limit_threads()
    device = pick_device(options.device)
    card = card_of(device)
    available = read_available_memory(device, Path(), options.memory)
    presets = list(_presets(options))
    searches = plan_of(options.search_options(), announce=False)
    return {
        "device": f"{card.name}",
        "models": [preset.name for preset in presets],
        "databases": bool(searches.alignments),
        "templates": searches.templates is not None or searches.complex_templates is not None,
        "alignments": any(isinstance(step.tool, ColabfoldSearch) for step in searches.alignments),
        "relaxes": are_installed("openmm", "pdbfixer"),
        "forecasts": {preset.name: _curve(preset, device, card, available) for preset in presets},
    }


def _presets(options: WorkerOptions) -> Iterator[Preset]:
    """Yield the models that are named, or else those that `helixfold predict` would take for chains and complexes."""
    if options.models:
        yield from (preset for preset, _ in find_parameters(options.models, options.weights))
        return
    seen = set()
    for method in ("monomer", "multimer"):
        for preset, _ in find_parameters((), options.weights, method=method):
            if preset.name not in seen:
                seen.add(preset.name)
                yield preset


def _curve(preset: Preset, device: torch.device, card: Card, available: AvailableMemory) -> dict[str, Any]:
    """Return seconds of a pass and bytes at the peak at some lengths, and the longest chain that there is room for."""
    dtype = DTYPES[settled_dtype(AUTO, card)]
    points = []
    for residues in _LENGTHS:
        size = FeatureRows.at_most(residues, preset.sampling).size(preset, dtype)
        chosen = plan(preset.model, size, available, card)
        seconds = prediction_seconds(preset.model, size, device, passes=1)
        points.append([residues, seconds, chosen.estimate.peak])
    size = FeatureRows.at_most(_LENGTHS[0], preset.sampling).size(preset, dtype)
    return {
        "points": points,
        "available": available.memory,
        "longest": max(longest(preset.model, size, available, card, name) for name in ("slabs", "spilled")),
        "recycles": FoldingOptions().recycles(preset),
    }
