"""`helixfold evaluate`: how near predictions are to known structures."""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

from tqdm import tqdm

from data_pipeline.errors import InputError, printable
from data_pipeline.extras import require
from data_pipeline.parse.structures import read_structure
from data_pipeline.structure import Structure
from helixfold.analysis.evaluation import MEASURES, Evaluated, summary_of
from helixfold.analysis.matching import Match, by_name, by_sequence
from helixfold.analysis.residues import ComparisonError, best_pairing
from helixfold.analysis.scores import compared
from helixfold.analysis.structure_files import StructureFile, find_predictions, find_references
from helixfold.report.evaluation_plot import evaluation_plot
from helixfold.write.evaluation import write_evaluation
from helixfold.write.results import write_file

SOME_FAILED = 1
_HEADINGS = {"lddt": "lDDT", "lddt_ca": "lDDT-CA", "tm_score": "TM", "gdt_ts": "GDT-TS", "gdt_ha": "GDT-HA"}
_HEADINGS |= {"rmsd": "RMSD", "plddt": "pLDDT"}
_WIDEST = 32  # letters of a name on the screen


def evaluate(predictions: Path, references: Path, *, output: Path, all_ranks: bool = False) -> int:
    """Compare each prediction with its reference, write tables and a plot into `output`; 0, or 1 if a pair failed.

    `InputError` where there is nothing to compare at all; what is wrong with one file is told at the end and in
    scores.json, and stops no other.
    """
    require("evaluate", "biotite", action="helixfold evaluate")
    if output.exists() and not output.is_dir():
        raise InputError.at(output, "is a file; give --output a directory")
    work = _Work(references=find_references(references))
    files = find_predictions(predictions, all_ranks=all_ranks)
    for file in tqdm(files, desc="comparing", unit="prediction", leave=False, disable=None):
        work.add(file)
    unused = [each.name for each in work.references if each.name not in work.used]
    _print_table(work.results)
    for name, why in work.failures.items():
        print(f"{name}: not compared: {why}", file=sys.stderr)
    if unused and work.results:
        names = ", ".join(printable(name, 40) for name in unused[:10])
        more = f" and {len(unused) - 10} more" if len(unused) > 10 else ""
        print(f"helixfold: no prediction for {names}{more}", file=sys.stderr)
    if work.results:
        write_evaluation(output, work.results, work.failures, unused)
        write_file(output / "scores.png", evaluation_plot(work.results))
        print(f"-> {output}")
    if work.failures:
        print(f"helixfold: {len(work.failures)} of {len(files)} predictions could not be compared", file=sys.stderr)
    return SOME_FAILED if work.failures else 0


@dataclass(kw_only=True)
class _Work:
    """Comparisons made so far, and what went wrong with the others."""

    references: Sequence[StructureFile]
    results: list[Evaluated] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    read: Callable[[Path], Structure] = field(default_factory=lambda: cache(read_structure))

    def add(self, file: StructureFile) -> None:
        """Compare one prediction with all references that it has."""
        try:
            predicted = read_structure(file.path)
            matches = by_name(file.name, self.references)
            if not matches:
                matches = by_sequence(predicted, self._readable)
        except (InputError, ComparisonError) as error:
            rank = f", rank {file.rank}" if file.rank else ""
            self.failures[printable(f"{file.name}{rank}")] = str(error)
            return
        for match in matches:
            self.used.add(match.reference.name)
            try:
                self.results.append(self._compared(file, predicted, match))
            except (InputError, ComparisonError) as error:
                self.failures[printable(f"{file.path} and {match.reference.path}", 500)] = str(error)

    def _compared(self, file: StructureFile, predicted: Structure, match: Match) -> Evaluated:
        reference = self.read(match.reference.path)
        scores, residues = compared(best_pairing(predicted.chains, reference.chains, match.chain))
        return Evaluated(
            target=file.name,
            rank=file.rank,
            reference=match.reference.name,
            by_sequence=match.by_sequence,
            scores=scores,
            residues=residues,
        )

    @cached_property
    def _readable(self) -> list[tuple[StructureFile, Structure]]:
        found = []
        for file in self.references:
            try:
                found.append((file, self.read(file.path)))
            except InputError as error:
                self.failures[printable(file.path.name)] = str(error)
        return found


def _print_table(results: Sequence[Evaluated]) -> None:
    """Print every pair on a line, and the means of first ranks under them."""
    if not results:
        return
    lines = [["target", "reference", "residues", *(_HEADINGS[name] for name in MEASURES)]]
    for each in results:
        scores = each.scores
        chain = "" if scores.reference_chain == "_" else f" {scores.reference_chain}"
        reference = f"{each.reference}{chain}{' (by sequence)' if each.by_sequence else ''}"
        residues = str(scores.residues)
        if scores.compared < scores.residues:
            residues = f"{scores.compared}/{scores.residues}"
        target = each.target if each.rank == 0 else f"{each.target}, rank {each.rank}"
        names = [printable(name, _WIDEST) for name in (target, reference)]
        lines.append([*names, residues, *(_shown(name, getattr(scores, name)) for name in MEASURES)])
    summary = summary_of(results)
    if summary.count > 1:
        lines.append(
            [f"mean of {summary.count}", "", "", *(_shown(name, summary.means.get(name)) for name in MEASURES)]
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        left = [cell.ljust(width) for cell, width in zip(line[:2], widths[:2], strict=True)]
        right = [cell.rjust(width) for cell, width in zip(line[2:], widths[2:], strict=True)]
        print("  ".join([*left, *right]).rstrip())
    for what, value in (("targets", summary.pearson_targets), ("residues", summary.pearson_residues)):
        if value is not None:
            print(f"Pearson's correlation of pLDDT with lDDT-CA over {what}: {value:.2f}")


def _shown(measure: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if measure == "plddt" else f"{value:.2f}" if measure == "rmsd" else f"{value:.3f}"


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Describe `helixfold evaluate` to the command line."""
    parser = commands.add_parser(
        "evaluate",
        help="compare predictions with known structures: lDDT, TM-score, GDT, RMSD",
        description="Compare predictions with known structures. They are matched by name (T1031 with T1031-D1 and "
        "T1031-D2, 1abc_A with chain A of 1abc), else by sequence; residues are matched by sequence, whatever they are "
        "numbered by.",
    )
    parser.add_argument(
        "predictions",
        type=Path,
        metavar="PREDICTIONS",
        help="what `helixfold predict` wrote, or structure files of any program: a directory, or one file",
    )
    parser.add_argument(
        "references",
        type=Path,
        metavar="REFERENCES",
        help="known structures, PDB or mmCIF (.gz too): a directory, or one",
    )
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("evaluation"), metavar="DIR", help="where to write (%(default)s)"
    )
    parser.add_argument(
        "--all-ranks", action="store_true", help="not the best prediction of each target alone, but all"
    )
    parser.set_defaults(
        run=lambda options: evaluate(
            options.predictions, options.references, output=options.output, all_ranks=options.all_ranks
        )
    )
