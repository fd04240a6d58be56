"""Write the results of an evaluation as tables and as JSON, which also has the failures."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.errors import printable
from helixfold import __version__
from helixfold.analysis.benchmark_groups import TargetSize
from helixfold.analysis.evaluation import MEASURES, Evaluated, summary_of
from helixfold.analysis.scores import Scores
from helixfold.write.complex_evaluation import complex_content, write_complexes
from helixfold.write.results import to_json, write_file
from helixfold.write.text_tables import aligned, rounded, tab_separated

HEADINGS = {"lddt": "lDDT", "lddt_ca": "lDDT-CA", "tm_score": "TM", "gdt_ts": "GDT-TS", "gdt_ha": "GDT-HA"}
HEADINGS |= {"rmsd": "RMSD", "plddt": "pLDDT"}
_WIDEST = 32  # letters of a name on the screen


def write_evaluation(
    directory: Path,
    results: Sequence[Evaluated],
    failures: Mapping[str, str],
    unused: Sequence[str],
    more: Mapping[str, Any] | None = None,
) -> None:
    """Write scores.tsv, residues.tsv and scores.json of at least one result; of complexes, see `write_complexes`.

    `unused` are references without a prediction, and `more` are further entries of scores.json.
    """
    rows = [score_row(result) for result in results]
    write_file(directory / "scores.tsv", tab_separated(list(rows[0]), [list(row.values()) for row in rows]))
    write_file(directory / "residues.tsv", _residues_table(results))
    write_complexes(directory, results)
    content = {
        "helixfold": __version__,
        "summary": asdict(summary_of(results)),
        "scores": rows,
        "complexes": complex_content(results),
        "failures": dict(failures),
        "references_without_prediction": list(unused),
        **(more or {}),
    }
    write_file(directory / "scores.json", to_json(content, indent=2))


def score_row(result: Evaluated) -> dict[str, Any]:
    """Return one row of the table by column name; unknown values are None."""
    scores = {field.name: rounded(getattr(result.scores, field.name)) for field in fields(Scores)}
    return {
        "target": result.target,
        "rank": result.rank,
        "reference": result.reference,
        "matched_by": "sequence" if result.by_sequence else "name",
        **scores,
    }


def screen_table(results: Sequence[Evaluated], sizes: Mapping[str, TargetSize] | None = None) -> Iterator[str]:
    """Yield lines for the screen: every pair, under them the means of first ranks, and correlations with pLDDT.

    With `sizes`, by target, each line also has the target's length and the rows of its alignment.
    """
    further = ["length", "rows"] if sizes is not None else []
    lines = [["target", "reference", *further, "residues", *(HEADINGS[name] for name in MEASURES)]]
    for each in results:
        scores = each.scores
        chain = "" if scores.reference_chain == "_" else f" {scores.reference_chain}"
        reference = f"{each.reference}{chain}{' (by sequence)' if each.by_sequence else ''}"
        residues = str(scores.residues)
        if scores.compared < scores.residues:
            residues = f"{scores.compared}/{scores.residues}"
        target = each.target if each.rank == 0 else f"{each.target}, rank {each.rank}"
        names = [printable(name, _WIDEST) for name in (target, reference)]
        size = [str(sizes[each.target].residues), f"{sizes[each.target].rows:,}"] if sizes is not None else []
        lines.append([*names, *size, residues, *(_shown(name, getattr(scores, name)) for name in MEASURES)])
    summary = summary_of(results)
    if summary.count > 1:
        empty = [""] * (len(further) + 2)
        lines.append(
            [f"mean of {summary.count}", *empty, *(_shown(name, summary.means.get(name)) for name in MEASURES)]
        )
    yield from aligned(lines, left=2)
    for what, value in (("targets", summary.pearson_targets), ("residues", summary.pearson_residues)):
        if value is not None:
            yield f"Pearson's correlation of pLDDT with lDDT-CA over {what}: {value:.2f}"


def _shown(measure: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if measure == "plddt" else f"{value:.2f}" if measure == "rmsd" else f"{value:.3f}"


def _residues_table(results: Sequence[Evaluated]) -> str:
    names = ["target", "rank", "reference", "chain", "residue", "type", "predicted_residue", "lddt", "lddt_ca", "plddt"]
    lines = []
    for result in results:
        residues = result.residues
        plddt = residues.plddt if residues.plddt is not None else np.full(len(residues.number), np.nan)
        columns = zip(
            residues.number.tolist(),
            residues.letters,
            np.where(residues.present, residues.predicted_number, np.array(None)).tolist(),
            *(map(rounded, scores.tolist()) for scores in (residues.lddt, residues.lddt_ca, plddt)),
            strict=True,
        )
        chain = [result.target, result.rank, result.reference, result.scores.reference_chain]
        lines += [[*chain, *residue] for residue in columns]
    return tab_separated(names, lines)
