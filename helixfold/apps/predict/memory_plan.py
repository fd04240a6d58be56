"""Text about memory: notes on the plan of a target, and the memory table of `helixfold doctor`."""

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


def remark(plan: PredictionEstimate, model: str, directory: Path) -> str | None:
    """Return a note about a plan that spills streams, or that does not fit and is tried; None for other plans.

    `model` is the name at the beginning of the note, and `directory` the place of streams that a CPU spills.
    """
    peak, available = gib(plan.memory.peak), gib(plan.device.memory)
    if not plan.fits:
        reason = f"tried because of --executor {plan.executor}"
        return f"{model} needs an estimated {peak} of the available {available}; {reason}"
    if plan.executor != "spilled":
        return None
    spill_place = str(directory) if plan.device.properties.kind == "cpu" else "the host's memory"
    return f"{model} spills {gib(plan.memory.spilled)} to {spill_place} and needs {peak} of the available {available}"


def machine_facts(presets: Iterable[Preset], residues: int, device: Device) -> dict[str, Any]:
    """Return the memory facts of `helixfold doctor` for each model, in float32 and in bfloat16.

    They are the peak in bytes of each executor for a target of `residues`, and the length of the longest chain that
    fits with slabs and with spilled streams.
    """
    models = []
    for preset, dtype in itertools.product(presets, (torch.float32, torch.bfloat16)):
        workload = Prediction(
            model=preset.model, size=FeatureRows.at_most(residues, preset.sampling).size(preset, dtype)
        )
        plan = estimate(workload, device)
        models.append(
            {
                "model": preset.name,
                "dtype": dtype_name(dtype),
                "executor": plan.executor if plan.fits else None,
                "peak": {name: plan.of(name).memory.peak for name in EXECUTORS},
                # Not for "whole", which is used for short chains only.
                "longest": {name: max_residues(workload, device, [name]) for name in EXECUTORS[1:]},
            }
        )
    return {
        "device": device.properties.name,
        "free": device.memory,
        "spill": device.spill,
        "residues": residues,
        "models": models,
    }


def machine_table(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a table of `machine_facts`, or one line with the key "problem" if `facts` has it."""
    if "problem" in facts:
        yield f"memory: {facts['problem']}"
        return
    yield (
        f"memory of {facts['device']}, {gib(facts['free'])} free and {gib(facts['spill'])} here to spill to, for "
        f"{facts['residues']:,} residues and all rows that a model reads: GiB at the peak (residues of the longest "
        "chain)"
    )
    yield f"  {'':24}{''.join(f'{name:>18}' for name in EXECUTORS)}   chosen"
    for model in facts["models"]:
        cells = ""
        for name, peak in model["peak"].items():
            longest = f" ({model['longest'][name]:,})" if name in model["longest"] else ""
            cells += f"{_number(peak) + longest:>18}"
        yield f"  {model['model']:13}{model['dtype']:11}{cells}   {model['executor'] or 'none'}"


def _number(size: int) -> str:
    """Return bytes as GiB with one decimal."""
    return f"{size / 2**30:,.1f}"
