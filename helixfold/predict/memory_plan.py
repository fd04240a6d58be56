"""Tell how much memory targets take before they are folded: the table of a dry run, and remarks."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from helixfold.ops.card import Card
from helixfold.planning.executors import AvailableMemory, Plan, longest, plan
from helixfold.planning.memory import FeatureRows
from helixfold.planning.prediction import EXECUTORS
from helixfold.planning.size import dtype_name, gib
from helixfold.predict.screen import format_estimate
from helixfold.presets import Preset


@dataclass(frozen=True, kw_only=True)
class TargetForecast:
    """The plan by which one model folds one target, for the table of a dry run, and the seconds of its predictions."""

    target: str
    model: str
    rows: FeatureRows
    plan: Plan
    seconds: float


def remark(chosen: Plan, model: str, directory: Path) -> str | None:
    """Describe a plan that spills, or does not fit and is tried; None for an ordinary one."""
    peak, available = gib(chosen.estimate.peak), gib(chosen.available.memory)
    if not chosen.fits:
        return (
            f"{model} is predicted to take {peak}, and there are {available}; tried, for --executor {chosen.executor}"
        )
    if chosen.executor != "spilled":
        return None
    place = str(directory) if chosen.card.kind == "cpu" else "the host's memory"
    return (
        f"{model} spills {gib(chosen.estimate.spilled)} to {place} and takes {peak} of the {available} that there are"
    )


def table(forecasts: Sequence[TargetForecast]) -> Iterator[str]:
    """Yield the lines of a dry run's table, and under them why targets do not fit and what would."""
    if not forecasts:
        return
    if (ranks := forecasts[0].plan.size.ranks) > 1:
        yield f"of each of the {ranks} processes that fold a target together:"
    width = max([6, *(len(forecast.target) for forecast in forecasts)])
    models = max([5, *(len(forecast.model) for forecast in forecasts)])
    yield (
        f"{'target':{width}}  {'model':{models}} {'residues':>8} {'MSA rows':>9} {'extra rows':>10} {'templates':>9}  "
        f"{'executor':8} {'peak GiB':>8} {'room GiB':>8} {'spilled GiB':>11} {'time':>12}"
    )
    for forecast in forecasts:
        size, chosen = forecast.plan.size, forecast.plan
        bound = "<= " if forecast.rows.is_bound else ""
        counts = f"{bound + format(size.msa_rows, ','):>9} {bound + format(size.extra_rows, ','):>10}"
        templates = f"{bound}{size.templates}" if size.templates else "0"
        spilled = _number(chosen.estimate.spilled) if chosen.executor == "spilled" else "-"
        yield (
            f"{forecast.target:{width}}  {forecast.model:{models}} {size.residues:8,} {counts} {templates:>9}  "
            f"{chosen.executor if chosen.fits else 'none':8} {_number(chosen.estimate.peak):>8} "
            f"{_number(chosen.available.memory):>8} {spilled:>11} "
            f"{format_estimate(forecast.seconds):>12}"
        )
    for forecast in forecasts:
        if not forecast.plan.fits:
            yield f"{forecast.target}: {forecast.model}: {forecast.plan.problem}"


def machine_facts(presets: Iterable[Preset], residues: int, card: Card, available: AvailableMemory) -> dict[str, Any]:
    """Return, for `helixfold doctor`, every executor's peak in bytes of each model, and the longest chain that slabs
    and spilled streams have room for.
    """
    models = []
    for preset in presets:
        for dtype in (torch.float32, torch.bfloat16):
            size = FeatureRows.at_most(residues, preset.sampling).size(preset, dtype)
            found = plan(preset.model, size, available, card)
            models.append(
                {
                    "model": preset.name,
                    "dtype": dtype_name(dtype),
                    "executor": found.executor if found.fits else None,
                    "peak": {name: found.forecast(name).peak for name in EXECUTORS},
                    # Whole streams are for short chains.
                    "longest": {
                        name: longest(preset.model, size, available, card, name)
                        for name in EXECUTORS
                        if name != "whole"
                    },
                }
            )
    return {"device": card.name, "free": available.memory, "residues": residues, "models": models}


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
