"""Write the small model's card, and the few numbers of it that the program itself says.

    python examples/small/card.py small.safetensors trial training_set collection small_sources.tsv runs/stage_*

Everything in it is read off: the trial (README.md has its commands), the training set, where its files came from
(sources.py) and the directories of the stages, in order. Writes `small.md` and `small.json` into the package,
beside the parameters, and pictures of the curves and of what pLDDT is worth beside the documentation.
"""

import argparse
import json
import math
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
from alignment_gain import AlignmentGain, read_gains
from curves import plot_stages
from intervals import RESAMPLES, Estimate, mean, pearson
from manifest import rows
from sources import counts, trained_chains
from split import ALIGNMENT, SET_ASIDE, SINGLE, TEMPLATE, SplitChain, read_split
from stages import Stage, read_stages
from verdicts import (
    NOT_RELAXED,
    RELAXED,
    calibration_lines,
    difference,
    groups,
    read_residues,
    read_scores,
    together,
    violations,
)

from data_pipeline.io.errors import InputError
from data_pipeline.io.files import atomic_write
from data_pipeline.training_sets.store import FeatureStore
from helixfold.model.config import ModelConfig
from helixfold.weights.checkpoint import read_header
from helixfold.weights.load import read_shapes

ROOT = Path(__file__).parents[2]
PACKAGED = ROOT / "helixfold" / "weights" / "packaged"
CURVES, CALIBRATION = "docs/images/small_training.png", "docs/images/small_calibration.png"
_FROM_PACKAGED = "../../../"
_NAMES_WIDTH = 118
_FOLD = 0.5  # TM-score above which two structures have the same fold (Xu & Zhang 2010)
_LENGTHS = ((1, 63), (64, 127), (128, 255), (256, None))  # residues
HOMOLOGY = "template 25-60 %"  # of `verdicts.groups`


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A score of some targets made in two ways, and the paired difference."""

    targets: int
    first: Estimate
    second: Estimate
    gain: Estimate


@dataclass(frozen=True)
class Trial:
    """The outputs of `helixfold evaluate` that README.md's commands leave in one directory."""

    directory: Path
    split: Sequence[SplitChain]

    TEMPLATES, NO_TEMPLATES, COPIES = "templates", "no_templates", "copies/evaluation"
    ALIGNMENTS, NO_ALIGNMENTS, SHUFFLED, SINGLES = "alignments", "no_alignments", "shuffled/evaluation", "single"
    GAINS = ("gains.tsv", "gains_by_alignments.tsv")

    def scores(self, name: str, measure: str = "lddt_ca") -> dict[str, float]:
        """Return a measure of each target of one output."""
        return read_scores(self.directory / name, measure)

    def compared(self, first: str, second: str, measure: str = "lddt_ca") -> dict[str, Comparison]:
        """Return the comparison of two outputs over all targets of the first and over groups of them by identity."""
        families = {chain.name: chain.family for chain in self.split}
        one, other = self.scores(first, measure), self.scores(second, measure)
        found = {}
        for label, names in groups(sorted(one), self.split).items():
            pair = difference({name: one[name] for name in names}, other, families)
            found[label] = Comparison(targets=len(names), first=pair[0], second=pair[1], gain=pair[2])
        return found

    def single(self) -> dict[str, tuple[int, Estimate, Estimate, int]]:
        """Return number, CA-lDDT, TM-score and folds of single sequences, in all and by length."""
        lengths = {chain.name: chain.length for chain in self.split}
        lddt, tm = self.scores(self.SINGLES), self.scores(self.SINGLES, "tm_score")
        found = {}
        for low, high in ((1, None), *_LENGTHS):
            names = [name for name in sorted(lddt) if low <= lengths[name] and (high is None or lengths[name] <= high)]
            label = "all" if (low, high) == (1, None) else f"{low} or more" if high is None else f"{low} to {high}"
            if names:
                scores = [mean([values[name] for name in names]) for values in (lddt, tm)]
                found[label] = (len(names), scores[0], scores[1], sum(tm[name] > _FOLD for name in names))
        return found

    def learning(self) -> list[AlignmentGain]:
        """Return what alignments were worth in the course of the training, and by how many chains had one."""
        tables = [self.directory / name for name in self.GAINS]
        return [gain for table in tables if table.is_file() for gain in read_gains(table)]

    def evaluations(self) -> list[Path]:
        """Return the outputs in which pLDDT is judged."""
        return [self.directory / name for name in (self.TEMPLATES, self.ALIGNMENTS, self.SINGLES)]

    def correlation(self) -> Estimate | None:
        """Return how pLDDT goes with CA-lDDT over the residues of all targets."""
        return pearson([pair for evaluation in self.evaluations() for pair in read_residues(evaluation)])

    def require_whole(self) -> None:
        """Raise `InputError` unless every target that was set aside has a score."""
        for kind, name in ((TEMPLATE, self.TEMPLATES), (ALIGNMENT, self.ALIGNMENTS), (SINGLE, self.SINGLES)):
            wanted = {chain.name for chain in self.split if chain.set == SET_ASIDE and chain.target == kind}
            if missing := sorted(wanted - self.scores(name).keys()):
                gaps = f"{len(missing)} of {len(wanted)} targets have no score, such as {missing[0]}"
                raise InputError.at(self.directory / name, gaps)


@dataclass(frozen=True, kw_only=True)
class Training:
    """What was learnt from, and how."""

    training_set: Path
    held_out: Path  # file of names
    sources: Path  # the list that sources.py wrote
    stages: Sequence[Stage]

    @cached_property
    def trained(self) -> list[str]:
        """Return the names of the chains that were learnt from."""
        return trained_chains(self.training_set, self.held_out)


def facts(weights: Path, trial: Trial, trained: Sequence[str]) -> dict[str, Any]:
    """Return what the program says of its model, for machines."""
    template = trial.compared(trial.TEMPLATES, trial.COPIES)[HOMOLOGY]
    alone = trial.compared(trial.TEMPLATES, trial.NO_TEMPLATES)[HOMOLOGY]
    alignment = trial.compared(trial.ALIGNMENTS, trial.NO_ALIGNMENTS)["all"]
    count, score, *_ = trial.single()["all"]
    correlation = trial.correlation()
    return {
        "parameters": sum(math.prod(shape) for shape in read_shapes(weights)[1].values()),
        "sha256": read_header(weights).sha256,
        "training_chains": len(trained),
        "held_out_chains": count,
        "held_out_lddt_ca": score.to_dict(),
        "template": {
            "targets": template.targets,
            "lddt_ca": template.first.to_dict(),
            "copied": template.second.to_dict(),
            "gain": template.gain.to_dict(),
            "without": alone.second.to_dict(),
        },
        "alignment": {
            "targets": alignment.targets,
            "lddt_ca": alignment.first.to_dict(),
            "without": alignment.second.to_dict(),
            "gain": alignment.gain.to_dict(),
        },
        "plddt_pearson": None if correlation is None else correlation.to_dict("pearson"),
    }


def card(known: Mapping[str, Any], weights: Path, trial: Trial, training: Training) -> str:
    """Return the card's text."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    entries = {entry.name: entry for entry in FeatureStore.open(training.training_set).entries}
    trained, stages = training.trained, training.stages
    set_aside = {
        kind: sorted(chain.name for chain in trial.split if chain.target == kind)
        for kind in (TEMPLATE, ALIGNMENT, SINGLE)
    }
    calibration = [line.split("\t") for line in calibration_lines(trial.evaluations(), None)[1:]]
    found = violations(trial.directory / trial.TEMPLATES / "predictions")
    text = environment.get_template("card.md.jinja").render(
        known=known,
        resamples=RESAMPLES,
        copied=trial.compared(trial.TEMPLATES, trial.COPIES),
        without=trial.compared(trial.TEMPLATES, trial.NO_TEMPLATES),
        folds={name: fold_count(trial.scores(name, "tm_score")) for name in (trial.TEMPLATES, trial.COPIES)},
        alone=trial.compared(trial.ALIGNMENTS, trial.NO_ALIGNMENTS)["all"],
        shuffled=trial.compared(trial.ALIGNMENTS, trial.SHUFFLED)["all"],
        learning=trial.learning(),
        single=trial.single(),
        calibration=calibration,
        relaxed=together(found[RELAXED]),
        refused=together(found[NOT_RELAXED]),
        everywhere=together({**found[RELAXED], **found[NOT_RELAXED]}),
        homology=HOMOLOGY,
        architecture=ModelConfig.from_dict(read_header(weights).config),
        sampling=stages[-1].config.example.sampling,
        chains={"trained": trained, **set_aside},
        clusters=len({entries[name].cluster for name in trained}),
        examples=sum(stage.examples for stage in stages),
        longest=max(entries[name].length for name in trained),
        largest_crop=max(stage.config.example.crop_size for stage in stages),
        sources=counts(list(rows(training.sources))),
        curves=_FROM_PACKAGED + CURVES,
        calibration_image=_FROM_PACKAGED + CALIBRATION,
        stages=stages,
        hours=sum(stage.seconds for stage in stages) / 3600,
        interval=interval,
        last_score=last_score,
        names=lambda some: textwrap.fill(" ".join(some), _NAMES_WIDTH, break_on_hyphens=False, break_long_words=False),
    )
    return "\n".join(line.rstrip() for line in text.split("\n"))


def fold_count(scores: Mapping[str, float]) -> int:
    """Return how many targets have the right fold."""
    return sum(score > _FOLD for score in scores.values())


def interval(found: Estimate | Mapping[str, float] | None, of: str = "mean") -> str:
    """Return a number and its interval, as tables have them."""
    if found is None:
        return "-"
    numbers = found.to_dict(of) if isinstance(found, Estimate) else found
    return f"{numbers[of]:.3f} [{numbers['low']:.3f}, {numbers['high']:.3f}]"


def last_score(stage: Stage) -> str:
    """Return the CA-lDDT of the last evaluation of a stage, if it had one."""
    found = [each.summary["lddt_ca"] for each in stage.history.evaluations if "lddt_ca" in each.summary]
    return f"{found[-1]:.3f}" if found else "-"


def write(weights: Path, trial: Trial, training: Training, *, packaged: Path = PACKAGED, root: Path = ROOT) -> None:
    """Write card, facts and pictures; all from the same numbers."""
    trial.require_whole()
    known = facts(weights, trial, training.trained)
    text = card(known, weights, trial, training)
    for directory in (packaged, (root / CURVES).parent):
        directory.mkdir(parents=True, exist_ok=True)
    plot_stages(training.stages, root / CURVES)
    calibration_lines(trial.evaluations(), root / CALIBRATION)
    for name, content in (("small.json", json.dumps(known, indent=1) + "\n"), ("small.md", text)):
        with atomic_write(packaged / name) as temporary:
            temporary.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("weights", type=Path, help="the parameters that were tried")
    parser.add_argument("trial", type=Path, help="directory of the trial's evaluations")
    parser.add_argument("training_set", type=Path)
    parser.add_argument("collection", type=Path)
    parser.add_argument("sources", type=Path, help="the list that sources.py wrote")
    parser.add_argument("stages", type=Path, nargs="+", help="directories of the stages, in their order")
    options = parser.parse_args()
    try:
        training = Training(
            training_set=options.training_set,
            held_out=options.collection / "held_out.txt",
            sources=options.sources,
            stages=read_stages(options.stages),
        )
        write(options.weights, Trial(options.trial, read_split()), training)
    except (InputError, OSError, KeyError, ValueError) as error:
        sys.exit(f"card.py: {error}")
    print(f"-> {PACKAGED}/small.md, {PACKAGED}/small.json, {ROOT / CURVES}, {ROOT / CALIBRATION}")
