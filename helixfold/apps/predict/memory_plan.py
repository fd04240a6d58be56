"""Describe the memory of targets that are about to be folded, and of this machine for `helixfold doctor`."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from helixfold.model.presets import Preset
from helixfold.planning.estimate import Device, Prediction, PredictionEstimate, estimate, max_residues
from helixfold.planning.executors import EXECUTORS
from helixfold.planning.memory import FeatureRows
from helixfold.planning.size import dtype_name, gib


def remark(chosen: PredictionEstimate, model: str, directory: Path) -> str | None:
    """Describe a plan that spills, or does not fit and is tried; None for an ordinary one."""
    peak, available = gib(chosen.memory.peak), gib(chosen.device.memory)
    if not chosen.fits:
        return (
            f"{model} is predicted to take {peak}, and there are {available}; tried, for --executor {chosen.executor}"
        )
    if chosen.executor != "spilled":
        return None
    place = str(directory) if chosen.device.properties.kind == "cpu" else "the host's memory"
    return f"{model} spills {gib(chosen.memory.spilled)} to {place} and takes {peak} of the {available} that there are"


def machine_facts(presets: Iterable[Preset], residues: int, device: Device) -> dict[str, Any]:
    """Return, for `helixfold doctor`, every executor's peak in bytes of each model, and the longest chain that slabs
    and spilled streams have room for.
    """
    models = []
    for preset, dtype in itertools.product(presets, (torch.float32, torch.bfloat16)):
        work = Prediction(model=preset.model, size=FeatureRows.at_most(residues, preset.sampling).size(preset, dtype))
        found = estimate(work, device)
        models.append(
            {
                "model": preset.name,
                "dtype": dtype_name(dtype),
                "executor": found.executor if found.fits else None,
                "peak": {name: found.of(name).memory.peak for name in EXECUTORS},
                # Whole streams are for short chains.
                "longest": {name: max_residues(work, device, [name]) for name in EXECUTORS[1:]},
            }
        )
    return {"device": device.properties.name, "free": device.memory, "residues": residues, "models": models}


def machine_table(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of `machine_facts` for people."""
    if "problem" in facts:
        yield f"memory: {facts['problem']}"
        return
    yield (
        f"memory of {facts['device']}, {gib(facts['free'])} free, for {facts['residues']:,} residues and all rows that "
        "a model reads: GiB at the peak (residues of the longest chain)"
    )
    yield f"  {'':24}{''.join(f'{name:>18}' for name in EXECUTORS)}   chosen"
    for model in facts["models"]:
        cells = ""
        for name, peak in model["peak"].items():
            most = f" ({model['longest'][name]:,})" if name in model["longest"] else ""
            cells += f"{_number(peak) + most:>18}"
        yield f"  {model['model']:13}{model['dtype']:11}{cells}   {model['executor'] or 'none'}"


def _number(size: int) -> str:
    return f"{size / 2**30:,.1f}"
