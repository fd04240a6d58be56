"""What an evaluation came to: tables for spreadsheets and scripts, and the same with everything that went wrong."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from helixfold import __version__
from helixfold.comparison.scores import ResidueScores, Scores
from helixfold.write.results import to_json, write_file

MEASURES = ("lddt", "lddt_ca", "tm_score", "gdt_ts", "gdt_ha", "rmsd", "plddt")
_DIGITS = 4
# Fewer say nothing about how two things go together.
_LEAST_CORRELATED = 3


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """One prediction compared with one reference."""

    target: str
    rank: int
    reference: str
    by_sequence: bool  # the reference was found by its sequence
    scores: Scores
    residues: ResidueScores


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A batch in a few numbers: of each target's first prediction."""

    count: int
    means: dict[str, float]
    medians: dict[str, float]
    pearson_targets: float | None  # of mean pLDDT with lDDT-CA, target by target
    pearson_residues: float | None  # of pLDDT with lDDT-CA, residue by residue


def summary_of(results: Sequence[Evaluated]) -> Summary:
    """Means and medians over pairs, and how well pLDDT foretells lDDT-CA."""
    best = first_ranks(results)
    values = {
        name: np.array([value for each in best if (value := getattr(each.scores, name)) is not None])
        for name in MEASURES
    }
    confident = [each for each in best if each.scores.plddt is not None]
    per_residue = [
        (each.residues.plddt, each.residues.lddt_ca) for each in confident if each.residues.plddt is not None
    ]
    return Summary(
        count=len(best),
        means={name: round(float(some.mean()), _DIGITS) for name, some in values.items() if len(some)},
        medians={name: round(float(np.median(some)), _DIGITS) for name, some in values.items() if len(some)},
        pearson_targets=_pearson(
            np.array([each.scores.plddt for each in confident], np.float64),
            np.array([each.scores.lddt_ca for each in confident], np.float64),
        ),
        pearson_residues=_pearson(*map(np.concatenate, zip(*per_residue, strict=True))) if per_residue else None,
    )


def first_ranks(results: Sequence[Evaluated]) -> list[Evaluated]:
    """The best ranked of each target's predictions, against each of its references."""
    least: dict[tuple[str, str], Evaluated] = {}
    for each in results:
        key = each.target, each.reference
        if key not in least or each.rank < least[key].rank:
            least[key] = each
    return list(least.values())


def write_evaluation(
    directory: Path, results: Sequence[Evaluated], failures: Mapping[str, str], unused: Sequence[str]
) -> None:
    """scores.tsv, residues.tsv and scores.json; `unused` are references without a prediction."""
    write_file(directory / "scores.tsv", _scores_table(results))
    write_file(directory / "residues.tsv", _residues_table(results))
    content = {
        "helixfold": __version__,
        "summary": asdict(summary_of(results)),
        "scores": [row(each) for each in results],
        "failures": dict(failures),
        "references_without_prediction": list(unused),
    }
    write_file(directory / "scores.json", to_json(content, indent=2))


def row(each: Evaluated) -> dict[str, Any]:
    """One line of the table; None is for what is not known."""
    scores = {field.name: _rounded(getattr(each.scores, field.name)) for field in fields(Scores)}
    return {
        "target": each.target,
        "rank": each.rank,
        "reference": each.reference,
        "matched_by": "sequence" if each.by_sequence else "name",
        **scores,
    }


def _scores_table(results: Sequence[Evaluated]) -> str:
    rows = [row(each) for each in results]
    names = list(rows[0]) if rows else ["target", "rank", "reference"]
    return _table(names, (list(each.values()) for each in rows))


def _residues_table(results: Sequence[Evaluated]) -> str:
    names = ["target", "rank", "reference", "chain", "residue", "type", "predicted_residue", "lddt", "lddt_ca", "plddt"]
    lines = []
    for each in results:
        found = each.residues
        plddt = found.plddt if found.plddt is not None else np.full(len(found.number), np.nan)
        columns = zip(
            found.number.tolist(),
            found.letters,
            np.where(found.present, found.predicted_number, np.array(None)).tolist(),
            *(map(_rounded, scores.tolist()) for scores in (found.lddt, found.lddt_ca, plddt)),
            strict=True,
        )
        chain = [each.target, each.rank, each.reference, each.scores.reference_chain]
        lines += [[*chain, *residue] for residue in columns]
    return _table(names, lines)


def _table(names: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    return "".join("\t".join(map(_cell, line)) + "\n" for line in (names, *lines))


def _cell(value: object) -> str:
    """Names have no tabs or line ends in a table, and what is not known stands as NA."""
    return "NA" if value is None else " ".join(str(value).split())


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, _DIGITS) if math.isfinite(value) else None
    return value


def _pearson(one: np.ndarray, other: np.ndarray) -> float | None:
    both = np.isfinite(one) & np.isfinite(other)
    one, other = one[both], other[both]
    if len(one) < _LEAST_CORRELATED or one.std() == 0 or other.std() == 0:
        return None
    return round(float(np.corrcoef(one, other)[0, 1]), _DIGITS)
