"""What an assessment came to: a table of all scores, and means, differences and correlations with their intervals."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from baselines import NEAREST_CHAIN, SECONDARY_STRUCTURE
from chains import HELD_OUT
from intervals import RESAMPLES, mean, pearson
from scoring import Score

from data_pipeline.datasets.index import IndexEntry

MODEL, UNTRAINED, SHUFFLED = "model", "untrained", "shuffled"
MEASURES = ("lddt_ca", "tm")
LENGTHS = ((1, 63), (64, 127), (128, 255), (256, None))  # residues
DEPTHS = ((1, 1), (2, 15), (16, None))  # MSA rows
RELATED = 1e-3  # E-value of the nearest training chain, below which a chain has a relative there
FOLD = 0.5  # TM-score above which two structures have the same fold (Xu & Zhang 2010)
_LEAST_CHAINS = 2  # of which an interval can be told


@dataclass(frozen=True, kw_only=True)
class Row:
    """One chain by one method."""

    set: str
    entry: IndexEntry
    method: str
    score: Score
    about: dict[str, Any]  # what the method remembers


def scores_table(rows: Iterable[Row]) -> str:
    """One line for each chain and method."""
    lines = ["set\tchain\tcluster\tlength\tmsa_rows\tmethod\tlddt_ca\ttm\tplddt"]
    for row in rows:
        entry, score = row.entry, row.score
        plddt = "" if score.plddt is None else f"{score.plddt:.2f}"
        place = f"{row.set}\t{entry.name}\t{entry.cluster}\t{entry.length}\t{entry.msa_rows}\t{row.method}"
        lines.append(f"{place}\t{score.lddt_ca:.4f}\t{score.tm:.4f}\t{plddt}")
    return "".join(f"{line}\n" for line in lines)


def summarised(rows: Sequence[Row]) -> dict[str, Any]:
    """Every set, and the held-out chains by length and by whether they have relatives, and all by depth."""
    held_out = [row for row in rows if row.set == HELD_OUT]
    related = {
        row.entry.name for row in rows if row.method == NEAREST_CHAIN and row.about.get("e_value", 1.0) < RELATED
    }
    return {
        "resamples": RESAMPLES,
        "sets": {name: _group(rows, lambda row, name=name: row.set == name) for name in _unique(r.set for r in rows)},
        "held_out_by_length": _ranges(held_out, LENGTHS, lambda row: row.entry.length),
        "held_out_by_depth": _ranges(held_out, DEPTHS, lambda row: row.entry.msa_rows),
        "trained_by_depth": _ranges(
            [row for row in rows if row.set != HELD_OUT], DEPTHS, lambda row: row.entry.msa_rows
        ),
        "held_out_by_relative": {
            "a relative among the training chains": _group(held_out, lambda row: row.entry.name in related),
            "none": _group(held_out, lambda row: row.entry.name not in related),
        },
        "secondary_structure_q3": {
            name: _q3([row for row in rows if row.set == name]) for name in _unique(row.set for row in rows)
        },
    }


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _ranges(
    rows: Sequence[Row], ranges: Sequence[tuple[int, int | None]], of: Callable[[Row], int]
) -> dict[str, dict[str, Any]]:
    """Groups by a number, those that have chains."""
    found = {}
    for low, high in ranges:
        name = f"{low} or more" if high is None else str(low) if low == high else f"{low} to {high}"
        group = _group(rows, lambda row, low=low, high=high: low <= of(row) and (high is None or of(row) <= high))
        if group["chains"]:
            found[name] = group
    return found


def _group(rows: Sequence[Row], belongs: Callable[[Row], bool]) -> dict[str, Any]:
    """Each method's scores, how much better the model's are, and what its pLDDT is worth."""
    by_method: dict[str, list[Row]] = {}
    for row in rows:
        if belongs(row):
            by_method.setdefault(row.method, []).append(row)
    own = by_method.get(MODEL, [])
    found: dict[str, Any] = {"chains": len(own), "methods": {}, "model_minus": {}, "same_fold": {}, "plddt_pearson": {}}
    for method, some in by_method.items():
        found["methods"][method] = {measure: _values(_of(some, measure)) for measure in MEASURES}
        found["same_fold"][method] = int((_of(some, "tm") > FOLD).sum())
        if method != MODEL:
            differences = {measure: _of(own, measure) - _of(some, measure) for measure in MEASURES}
            found["model_minus"][method] = {measure: _values(each) for measure, each in differences.items()}
    if len(own) >= _LEAST_CHAINS:
        residues = [(np.array(r.score.residue_plddt), np.array(r.score.residue_lddt_ca)) for r in own]
        whole = [(np.array([row.score.plddt]), np.array([row.score.lddt_ca])) for row in own]
        for name, pairs in (("residues", residues), ("chains", whole)):
            estimate = pearson(pairs)
            found["plddt_pearson"][name] = None if estimate is None else estimate.to_dict("pearson")
    return found


def _of(rows: Sequence[Row], measure: str) -> np.ndarray:
    return np.array([getattr(row.score, measure) for row in rows])


def _values(values: np.ndarray) -> dict[str, float]:
    """Mean with interval, and the median."""
    found = mean(values.tolist()).to_dict() if len(values) >= _LEAST_CHAINS else {"mean": round(float(values[0]), 4)}
    return {**found, "median": round(float(np.median(values)), 4)}


def _q3(rows: Sequence[Row]) -> float | None:
    """The share of residues whose state the baseline's predictor has right."""
    told = [row.about for row in rows if row.method == SECONDARY_STRUCTURE]
    total = sum(each["states"] for each in told)
    return round(sum(each["right"] for each in told) / total, 4) if total else None
