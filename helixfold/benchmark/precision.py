"""Measure what a short precision costs predictions: `helixfold benchmark precision`.

Each target is folded in float32 by whole updates, and again in other precisions, by other executors, by plain PyTorch's
operators, and with one part of the network at a time in a short precision. What is printed is how far the others are
from the first; nothing is timed.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

import numpy as np
import torch

from data_pipeline.errors import InputError
from data_pipeline.features.schema import Features
from data_pipeline.pipeline import Target, prepare
from data_pipeline.residues import ATOM_ORDER
from helixfold.analysis.metrics import rmsd
from helixfold.annotations import Group, Parameter
from helixfold.benchmark.options import Device
from helixfold.benchmark.rounding import PARTS, RoundedPart, rounded
from helixfold.execution.device import pick_device
from helixfold.execution.dtypes import DTYPES
from helixfold.execution.slabs import Slabs
from helixfold.execution.spilled import Spilled
from helixfold.execution.stages import Stages
from helixfold.execution.whole import Whole
from helixfold.folding import FoldingOptions, fold
from helixfold.model.alphafold import AlphaFold
from helixfold.model.update import Executor
from helixfold.ops.dispatch import forced
from helixfold.options import File, Positive
from helixfold.predict.options import EXAMPLE
from helixfold.predict.targets import read_targets, single_chains
from helixfold.prediction import Prediction
from helixfold.presets import Preset
from helixfold.weights.find import find_models

EXECUTORS = ("whole", "slabs", "spilled")
ShortDtype = Literal["bfloat16", "float16"]


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way to fold: the trunk's precision, an executor, and whether operators are plain PyTorch.

    With a `part`, that part of the network alone is in this precision, and the rest in float32.
    """

    dtype: str = "float32"
    executor: str = "whole"
    plain: bool = False
    part: RoundedPart | None = None

    def __str__(self) -> str:
        if self.part is not None:
            return f"{self.dtype} in {self.part.name} alone"
        return f"{self.dtype}, {self.executor}{', plain PyTorch' if self.plain else ''}"


def ways(dtypes: Sequence[str], *, by_part: bool) -> list[Way]:
    """Return the ways to fold each target; the others are compared with the first, which is float32 by `Whole`."""
    found = [Way(executor=executor) for executor in EXECUTORS]
    for dtype in dtypes:
        found += [Way(dtype=dtype, executor=executor) for executor in EXECUTORS]
        found.append(Way(dtype=dtype, plain=True))
        found += [Way(dtype=dtype, part=part) for part in PARTS if by_part]
    return found


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
    dtypes: tuple[ShortDtype, ...] = ("bfloat16",)
    """Precisions to compare with float32."""
    by_part: bool = False
    """Also compute one part of the network at a time in these precisions, and the rest in float32."""
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
    if len(options.models) != 1:
        raise InputError(f"one model is measured at a time, {len(options.models)} are named")
    targets = [each for each in single_chains(read_targets(options.targets)) if _is_short(each, options)]
    if not targets:
        raise InputError(f"no single chain has at most {options.max_residues:,} residues; raise --max-residues")
    model = _found(options)
    model.network.to(device)
    costs = [cost for target in targets for cost in measured(model, target, options, device)]
    for line in table(costs):
        print(line)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(cost) for cost in costs], indent=1) + "\n")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The network that is measured, and how it is used."""

    preset: Preset
    network: AlphaFold


def _found(options: PrecisionOptions) -> Measured:
    (model,) = find_models(options.models, options.weights, seed=0)
    return Measured(preset=model.preset, network=model.network)


def _is_short(target: Target, options: PrecisionOptions) -> bool:
    return len(target.sequence) <= options.max_residues


def measured(model: Measured, target: Target, options: PrecisionOptions, device: torch.device) -> Iterator[Cost]:
    """Yield the cost of every way for a target."""
    features, first = prepare(target).features, None
    for way in ways(options.dtypes, by_part=options.by_part):
        found = prediction(model, features, options, device, way)
        first = first or found
        yield cost_of(target.name, str(way), found, first)


def prediction(
    model: Measured, features: Features, options: PrecisionOptions, device: torch.device, way: Way
) -> Prediction:
    """Return the prediction of a target in one way."""
    trunk = "float32" if way.part is not None else way.dtype
    folding = FoldingOptions(num_recycles=options.num_recycles, dtype=trunk)
    with ExitStack() as stack:
        if way.plain:
            stack.enter_context(forced("reference"))
        if way.part is not None:
            stack.enter_context(rounded(model.network, way.part, DTYPES[way.dtype]))
        spill = stack.enter_context(TemporaryDirectory()) if way.executor == "spilled" else ""
        executors: dict[str, Callable[[], Executor]] = {
            "whole": Whole,
            "slabs": Slabs,
            "spilled": lambda: Spilled(spill, device=device),
        }
        return fold(model.network, executors[way.executor](), features, model.preset, folding, stages=Stages(device))


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
        f"{'':44} {'targets':>8} {'RMSD, median':>13} {'90 %':>8} {'largest':>8} {'pLDDT':>8} {'PAE':>8} "
        f"{'pairs reordered':>16}"
    ]
    for way in ways:
        chosen = [cost for cost in costs if cost.way == way]
        distances = np.array([cost.rmsd for cost in chosen])
        before, after = (np.sign(each[:, None] - each[None]) for each in (ranked[ways[0]], ranked[way]))
        pairs = max(1, len(chosen) * (len(chosen) - 1) // 2)
        lines.append(
            f"{way:44} {len(chosen):8} {np.median(distances):13.4f} {np.quantile(distances, 0.9):8.4f} "
            f"{distances.max():8.4f} {np.mean([cost.plddt for cost in chosen]):8.4f} "
            f"{np.mean([cost.pae for cost in chosen]):8.4f} {np.sum(before * after < 0) // 2 / pairs:16.2%}"
        )
    return lines
