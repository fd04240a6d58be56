"""Results of a fine-tuning: the scores of each held-out target before and after, as JSON and as a page."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from data_pipeline.io.errors import InputError
from data_pipeline.io.json_files import read_json
from helixfold.analysis import intervals
from helixfold.analysis.intervals import Estimate
from helixfold.report.finetuning import PageTable, write_finetuning_page
from helixfold.report.page import counted
from helixfold.results.writing import to_json, write_file

# Files in the output directory of a fine-tuning.
BEFORE_FILE, RESULT_FILE, PAGE_FILE, CURVES_FILE = "before.json", "finetuning.json", "finetuning.html", "curves.png"
# Names of the scores on the page.
_SCORE_NAMES = {"lddt_ca": "CA-lDDT", "tm_score": "TM-score", "plddt": "pLDDT"}


@dataclass(frozen=True, kw_only=True)
class TargetScores:
    """Scores of a held-out target before and after fine-tuning: CA-lDDT and TM-score up to 1, pLDDT up to 100.

    `SCORES` has the names of the scores, which are the keys of `before` and `after`. `residues` is the number of
    residues.
    """

    SCORES: ClassVar = ("lddt_ca", "tm_score", "plddt")

    name: str
    residues: int
    before: Mapping[str, float]
    after: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class FinetuningResult:
    """Result of a finished fine-tuning. `best_step` is the step whose parameters were kept; None means the last.

    `name` is the name of the fine-tuning and `adapter` what was trained. `base` is the file of the base model's
    parameters, with the digest `base_sha256`. `steps` is the number of steps. `skipped` of them had a loss or gradient
    that was not finite. `targets` are the held-out targets.
    """

    name: str
    adapter: str
    base: str
    base_sha256: str
    steps: int
    best_step: int | None
    skipped: int
    targets: tuple[TargetScores, ...]

    def change(self, score: str) -> Estimate | None:
        """Return the mean change of a score over the held-out targets, or None if there are none.

        The change is the score after fine-tuning minus the score before, with a 95 % interval.
        """
        if not self.targets:
            return None
        return intervals.mean([target.after[score] - target.before[score] for target in self.targets])

    def means(self) -> dict[str, Any]:
        """Return each score's means before and after, and its change with an interval; empty without targets."""
        scores: dict[str, Any] = {}
        for score in TargetScores.SCORES if self.targets else ():
            change = self.change(score)
            assert change is not None
            scores[score] = {
                "before": round(intervals.mean([target.before[score] for target in self.targets]).value, 4),
                "after": round(intervals.mean([target.after[score] for target in self.targets]).value, 4),
                "change": change.to_dict(),
            }
        return {"targets": len(self.targets), **scores} if scores else {}


def read_result(directory: Path) -> FinetuningResult | None:
    """Read the result of the fine-tuning in a directory; return None if it has not ended or its file is damaged."""
    try:
        content = read_json(directory / RESULT_FILE, "")["result"]
        targets = tuple(TargetScores(**target) for target in content["targets"])
        return FinetuningResult(**{**content, "targets": targets})
    except (InputError, ValueError, KeyError, TypeError):
        return None


def write_result(directory: Path, result: FinetuningResult, output: Path, facts: Mapping[str, Any]) -> None:
    """Write the page of a fine-tuning and then its result file, which marks it as finished.

    Both are in `directory`. `output` is the parameter file of the fine-tuning, and `facts` are the facts that
    `config.json` records.
    """
    targets = sorted(result.targets, key=lambda each: each.before["lddt_ca"] - each.after["lddt_ca"])
    change = result.change("lddt_ca")
    curves = directory / CURVES_FILE
    write_finetuning_page(
        directory / PAGE_FILE,
        kind="Fine-tuning",
        title=result.name,
        figures={
            "steps": f"{result.steps:,}",
            **({} if change is None else {"CA-lDDT of held-out targets, 95 % interval": signed(change)}),
            "bytes of the file": f"{output.stat().st_size:,}",
        },
        tables=[
            PageTable(
                title="Held-out targets, before and after",
                columns=[
                    "Target",
                    "Residues",
                    *(
                        f"{_SCORE_NAMES[name]} {when}"
                        for name in TargetScores.SCORES
                        for when in ("before", "after", "change")
                    ),
                ],
                rows=[_row(target) for target in targets],
                note=""
                if change is None
                else f"Mean change of CA-lDDT: {signed(change)} (95 % interval over targets).",
            )
        ],
        facts={
            "Parameters": output.name,
            "Trained": result.adapter,
            "Began with": f"{result.base} (SHA-256 {result.base_sha256})",
            "Training set": f"{facts['training_set']['name']}, {counted(facts['training_set']['chains'], 'chain')}",
            "Kept": "the last step"
            if result.best_step is None
            else f"step {result.best_step:,}, the best on held-out targets",
            "Steps skipped": f"{result.skipped:,}",
        },
        picture=curves.read_bytes() if curves.is_file() else None,
    )
    write_file(directory / RESULT_FILE, to_json({"result": asdict(result), "means": result.means()}, indent=1))


def signed(change: Estimate) -> str:
    """Return a change with its sign and its 95 % interval."""
    return f"{change.value:+.3f} ({change.low:+.3f} to {change.high:+.3f})"


def _row(target: TargetScores) -> list[str]:
    """Return the cells of a target in the table of the page."""
    cells = [target.name, f"{target.residues:,}"]
    for score in TargetScores.SCORES:
        digits = 1 if score == "plddt" else 3
        before, after = target.before[score], target.after[score]
        cells += [f"{before:.{digits}f}", f"{after:.{digits}f}", f"{after - before:+.{digits}f}"]
    return cells
