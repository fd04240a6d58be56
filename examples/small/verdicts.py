"""Evaluate a model: its gain by templates or alignments, the calibration of pLDDT, and violations of its structures.

    python examples/small/verdicts.py difference with_templates copies/evaluation
    python examples/small/verdicts.py calibration with_templates with_alignments single --plot calibration.png
    python examples/small/verdicts.py violations with_templates/predictions

`difference` pairs the targets of two outputs of `helixfold evaluate` and prints the mean of each measure and of the
paired difference, with 95 % intervals over families of targets, also by identity to the best template (split.tsv). A
target that the second output lacks counts as 0, because no template could be copied.
"""

import argparse
import csv
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from intervals import pearson
from jaxtyping import Float
from matplotlib.figure import Figure
from split import SplitChain, bin_of, read_split

from data_pipeline.io.errors import InputError
from data_pipeline.io.files import atomic_write
from data_pipeline.parse.structures import read_structure
from data_pipeline.structure import protein_from_chains
from helixfold.analysis.intervals import Estimate, mean
from helixfold.relax.flaws import flaws
from helixfold.relax.pieces import pieces_of
from helixfold.results.file_table import RELAXATION
from helixfold.results.find import find_predictions

MEASURES = ("lddt_ca", "tm_score")
HOMOLOGY = (25.0, 60.0)  # per cent of identity to the best template, the range in which a template should help
RELAXED, NOT_RELAXED = "yes", "no"
_UNKNOWN = "NA"  # in the tables of `helixfold evaluate`
_BANDS = (0, 30, 40, 50, 60, 70, 80, 90, 100)  # of pLDDT


def read_scores(evaluation: Path, measure: str) -> dict[str, float]:
    """Return a measure of the best prediction of each target in an output of `helixfold evaluate`."""
    with (evaluation / "scores.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    return {row["target"]: float(row[measure]) for row in rows if row["rank"] == "0"}


def difference(
    first: Mapping[str, float], second: Mapping[str, float], families: Mapping[str, str]
) -> tuple[Estimate, Estimate, Estimate]:
    """Return the means of both, and of the first minus the second, over the targets of the first (missing ones are 0).

    Targets of one family are not independent and are resampled together.
    """
    names = sorted(first)
    target_families = [families.get(name, name) for name in names]
    own, other = np.array([first[name] for name in names]), np.array([second.get(name, 0.0) for name in names])
    estimates = [mean(values.tolist(), target_families) for values in (own, other, own - other)]
    return estimates[0], estimates[1], estimates[2]


def groups(names: Sequence[str], split: Sequence[SplitChain]) -> dict[str, list[str]]:
    """Return groups of targets: all, in the range where a template should help, below it, and in each bin."""
    identities = {chain.name: 100 * chain.identity for chain in split if chain.identity is not None}
    with_template = [name for name in names if name in identities]
    low, high = HOMOLOGY
    targets_by_group = {
        "all": list(names),
        f"template {low:g}-{high:g} %": [name for name in with_template if low <= identities[name] <= high],
        f"template below {low:g} %": [name for name in with_template if identities[name] < low],
    }
    for name in with_template:
        targets_by_group.setdefault(f"bin from {bin_of(identities[name] / 100)} %", []).append(name)
    return {label: some for label, some in targets_by_group.items() if some}


def difference_lines(first: Path, second: Path, split: Sequence[SplitChain]) -> list[str]:
    """Return a table of differences by measure and group."""
    lines = ["measure\ttargets\tcount\tfirst\tsecond\tfirst_minus_second"]
    families = {chain.name: chain.family for chain in split}
    for measure in MEASURES:
        one, other = read_scores(first, measure), read_scores(second, measure)
        for label, names in groups(sorted(one), split).items():
            estimates = difference({name: one[name] for name in names}, other, families)
            lines.append("\t".join((measure, label, str(len(names)), *map(_interval_text, estimates))))
    return lines


def _interval_text(estimate: Estimate) -> str:
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def read_residues(evaluation: Path) -> list[tuple[Float[np.ndarray, "_"], Float[np.ndarray, "_"]]]:
    """Return pLDDT and 100 times lDDT-CA of the residues of each target that have both."""
    residues_by_target: dict[str, list[tuple[float, float]]] = {}
    with (evaluation / "residues.tsv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            if row["rank"] == "0" and _UNKNOWN not in (row["plddt"], row["lddt_ca"]):
                residues_by_target.setdefault(row["target"], []).append(
                    (float(row["plddt"]), 100 * float(row["lddt_ca"]))
                )
    return [(array[:, 0], array[:, 1]) for array in map(np.array, residues_by_target.values())]


def calibration_lines(evaluations: Sequence[Path], plot: Path | None) -> list[str]:
    """Return a table with correlation, mean excess of pLDDT, and lDDT-CA by band of pLDDT; write a plot to `plot`."""
    lines = ["evaluation\tresidues\tpearson\tplddt_minus_lddt_ca\tlddt_ca_by_band_of_plddt"]
    figure = Figure(figsize=(4.5, 4.5), dpi=150, layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 100], [0, 100], color="0.7", linewidth=1)
    for evaluation in evaluations:
        pairs = read_residues(evaluation)
        if not pairs:
            raise InputError.at(evaluation, "has no residues with both pLDDT and lDDT-CA")
        correlation = pearson(pairs)
        excess = mean([float((plddt - lddt).mean()) for plddt, lddt in pairs])
        plddt, lddt = (np.concatenate(side) for side in zip(*pairs, strict=True))
        band = np.digitize(plddt, _BANDS[1:-1])
        bands = [(plddt[band == index].mean(), lddt[band == index].mean()) for index in sorted(set(band.tolist()))]
        axes.plot(*zip(*bands, strict=True), marker="o", label=evaluation.name)
        band_text = "; ".join(f"{predicted:.0f}: {true:.0f}" for predicted, true in bands)
        about = "-" if correlation is None else _interval_text(correlation)
        lines.append("\t".join((evaluation.name, str(len(plddt)), about, _interval_text(excess), band_text)))
    axes.set(xlabel="pLDDT", ylabel="100 x lDDT-CA", xlim=(0, 100), ylim=(0, 100), aspect="equal")
    axes.legend(frameon=False)
    if plot is not None:
        with atomic_write(plot) as temporary:
            figure.savefig(temporary, format="png", metadata={"Software": None})
    return lines


@dataclass(frozen=True)
class Violations:
    """Counts of the residues of some targets, and of residues with violations (`wrong`)."""

    targets: int
    residues: int
    wrong: int

    @property
    def share(self) -> float:
        """The share of residues with violations, 0 to 1."""
        return self.wrong / max(1, self.residues)


def violations(predictions: Path) -> dict[str, dict[str, Violations]]:
    """Return the violations of each target's best prediction by name, for relaxed and unrelaxed predictions."""
    by_group: dict[str, dict[str, Violations]] = {RELAXED: {}, NOT_RELAXED: {}}
    for file in find_predictions(predictions):
        protein = protein_from_chains(read_structure(file.path).chains)
        wrong, _ = flaws(protein.atom_positions, pieces_of(protein))
        # A failed relaxation leaves the prediction unchanged.
        metrics = RELAXATION.path(file.path.parent)
        refused = metrics.is_file() and any("failed" in each for each in json.loads(metrics.read_text()).values())
        group = by_group[NOT_RELAXED if refused else RELAXED]
        group[file.name] = Violations(1, len(protein.aatype), wrong.residues)
    return by_group


def together(some: Mapping[str, Violations]) -> Violations:
    """Return the sum of the violations of several targets."""
    each = some.values()
    return Violations(len(each), sum(one.residues for one in each), sum(one.wrong for one in each))


def violation_lines(predictions: Path) -> list[str]:
    """Return a table with the share of residues with violations, by target and over all, relaxed or not."""
    by_group = violations(predictions)
    lines = ["target\trelaxed\tresidues\tviolations\tshare"]
    for label, some in by_group.items():
        for name, one in [*some.items(), ("all", together(some))]:
            lines.append(f"{name}\t{label}\t{one.residues}\t{one.wrong}\t{one.share:.4f}")
    return lines


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    pair = commands.add_parser("difference", help="the first evaluation minus the second, target by target")
    pair.add_argument("first", type=Path)
    pair.add_argument("second", type=Path)
    trust = commands.add_parser("calibration", help="pLDDT against lDDT-CA")
    trust.add_argument("evaluations", type=Path, nargs="+")
    trust.add_argument("--plot", type=Path)
    sound = commands.add_parser("violations", help="residues with impossible geometry")
    sound.add_argument("predictions", type=Path)
    options = parser.parse_args()
    if options.command == "difference":
        lines = difference_lines(options.first, options.second, read_split())
    elif options.command == "calibration":
        lines = calibration_lines(options.evaluations, options.plot)
    else:
        lines = violation_lines(options.predictions)
    print("\n".join(lines))


if __name__ == "__main__":
    try:
        main()
    except (InputError, OSError, KeyError) as error:
        sys.exit(f"verdicts.py: {error}")
