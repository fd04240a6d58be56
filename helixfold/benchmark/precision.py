"""Measure what a short precision of the trunk costs predictions: `helixfold benchmark precision`.

Each target is folded in float32 by whole updates, and again in other precisions, by other executors and by plain
PyTorch's operators. What is printed is how far the others are from the first; nothing is timed.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch

from data_pipeline.errors import InputError
from data_pipeline.features.schema import Features
from data_pipeline.pipeline import prepare
from data_pipeline.residues import ATOM_ORDER
from helixfold.analysis.metrics import rmsd
from helixfold.annotations import Group, Parameter
from helixfold.benchmark.options import Device
from helixfold.execution.device import pick_device
from helixfold.execution.slabs import Slabs
from helixfold.execution.stages import Stages
from helixfold.execution.whole import Whole
from helixfold.folding import FoldingOptions, fold
from helixfold.ops.dispatch import forced
from helixfold.options import File, Positive
from helixfold.predict.options import EXAMPLE
from helixfold.predict.targets import read_targets, single_chains
from helixfold.prediction import Prediction
from helixfold.weights.find import ReadyModel, find_models

# Precision, executor and whether operators are plain PyTorch; the first is what the others are compared with.
WAYS = (
    ("float32", "whole", False),
    ("float32", "slabs", False),
    ("bfloat16", "whole", False),
    ("bfloat16", "slabs", False),
    ("bfloat16", "whole", True),
)
EXECUTORS = {"whole": Whole, "slabs": Slabs}


@Parameter(name="*", group=Group("What to measure", sort_key=0))
@dataclass(frozen=True, kw_only=True)
class PrecisionOptions:
    """Options of `helixfold benchmark precision`."""

    targets: Annotated[tuple[Path, ...], Parameter(metavar="FASTA|A3M...", show_default="the packaged example")] = (
        EXAMPLE,
    )
    """Sequences or alignments to fold."""
    weights: Annotated[Path | None, Parameter(show_default="the demonstration model")] = None
    """Parameter file of the model."""
    models: Annotated[tuple[str, ...], Parameter(metavar="MODEL")] = ("small",)
    """The model, as for predict."""
    num_recycles: Annotated[Positive | None, Parameter(show_default="the model's")] = None
    """Number of passes after the first."""
    max_residues: Positive = 2048
    """Leave out longer targets."""
    device: Device = "cpu"
    """auto, cpu, cuda or cuda:N."""
    json: File | None = None
    """Also write the numbers of every target to this file."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Differences of one prediction from that in float32: lengths in Angstrom, pLDDT from 0 to 100."""

    target: str
    way: str
    rmsd: float  # of C-alpha atoms, superposed
    plddt: float  # mean over residues of the absolute change
    mean_plddt: float  # of this prediction: what ranks it
    pae: float  # mean over pairs of the absolute change


_USUAL = PrecisionOptions()


def run(options: PrecisionOptions = _USUAL) -> None:
    """Fold all targets in every way and print what each way costs."""
    device = pick_device(options.device)
    models = find_models(options.models, options.weights, seed=0)
    if len(models) != 1:
        raise InputError(f"one model is measured at a time, {len(models)} are named")
    models[0].network.to(device)
    costs = list(measured(models[0], options, device))
    for line in table(costs):
        print(line)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(cost) for cost in costs], indent=1) + "\n")


def measured(model: ReadyModel, options: PrecisionOptions, device: torch.device) -> Iterator[Cost]:
    """Yield the cost of every way for every target that is short enough."""
    for target in single_chains(read_targets(options.targets)):
        if len(target.sequence) > options.max_residues:
            continue
        features, first = prepare(target).features, None
        for dtype, executor, plain in WAYS:
            found = prediction(model, features, options, device, (dtype, executor, plain))
            first = first or found
            yield cost_of(target.name, way_name(dtype, executor, plain), found, first)


def prediction(
    model: ReadyModel,
    features: Features,
    options: PrecisionOptions,
    device: torch.device,
    way: tuple[str, str, bool],
) -> Prediction:
    """Return the prediction of a target in one way."""
    dtype, executor, plain = way
    folding = FoldingOptions(num_recycles=options.num_recycles, dtype=dtype)
    with forced("reference") if plain else nullcontext():
        return fold(
            model.network, EXECUTORS[executor](), features, model.preset, folding, stages=Stages(device), notes=()
        )


def cost_of(target: str, way: str, found: Prediction, first: Prediction) -> Cost:
    """Return how far a prediction is from the first of its target."""
    alpha = ATOM_ORDER["CA"]
    pae = np.nan if found.pae is None or first.pae is None else float(np.abs(found.pae - first.pae).mean())
    return Cost(
        target=target,
        way=way,
        rmsd=rmsd(found.protein.atom_positions[:, alpha], first.protein.atom_positions[:, alpha]),
        plddt=float(np.abs(found.plddt - first.plddt).mean()),
        mean_plddt=found.ranking_confidence,
        pae=pae,
    )


def table(costs: Sequence[Cost]) -> list[str]:
    """Return a line for each way: median, 90th percentile and largest RMSD, changes of pLDDT and PAE, and of ranks.

    The last column counts the pairs of targets whose order by mean pLDDT is another one than in float32.
    """
    ways = list(dict.fromkeys(cost.way for cost in costs))
    ranked = {way: np.array([cost.mean_plddt for cost in costs if cost.way == way]) for way in ways}
    lines = [
        f"{'':32} {'targets':>8} {'RMSD, median':>13} {'90 %':>8} {'largest':>8} {'pLDDT':>8} {'PAE':>8} "
        f"{'pairs reordered':>16}"
    ]
    for way in ways:
        chosen = [cost for cost in costs if cost.way == way]
        distances = np.array([cost.rmsd for cost in chosen])
        before, after = (np.sign(each[:, None] - each[None]) for each in (ranked[ways[0]], ranked[way]))
        pairs = max(1, len(chosen) * (len(chosen) - 1) // 2)
        lines.append(
            f"{way:32} {len(chosen):8} {np.median(distances):13.4f} {np.quantile(distances, 0.9):8.4f} "
            f"{distances.max():8.4f} {np.mean([cost.plddt for cost in chosen]):8.4f} "
            f"{np.mean([cost.pae for cost in chosen]):8.4f} {np.sum(before * after < 0) // 2 / pairs:16.2%}"
        )
    return lines


def way_name(dtype: str, executor: str, plain: bool) -> str:
    """Return a way in words, such as "bfloat16, slabs"."""
    return f"{dtype}, {executor}{', plain PyTorch' if plain else ''}"
