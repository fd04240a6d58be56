"""Write the table and the page of scored structures: scores.tsv, scores.json and scores.html, the best first."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from helixfold import __version__
from helixfold.analysis.correlation import spearman
from helixfold.analysis.intervals import Estimate, mean
from helixfold.report.page import page
from helixfold.report.tables import headed
from helixfold.write.results import to_json, write_file
from helixfold.write.text_tables import aligned, rounded, tab_separated

TABLE_FILE, JSON_FILE, PAGE_FILE = "scores.tsv", "scores.json", "scores.html"
# What structures are ranked by, with whether a larger value is better; the first that any structure has is taken.
_RANKED_BY = (("pae_interaction", False), ("composite", True))
# The columns of tables, in their order, with headings and layouts for people; those that no structure has are left out.
COLUMNS: dict[str, tuple[str, str]] = {
    "pae_interaction": ("PAE between binder and target, Å", "%.2f"),
    "composite": ("Composite", "%.3f"),
    "plddt": ("pLDDT", "%.1f"),
    "ptm": ("pTM", "%.3f"),
    "tm_to_structure": ("TM-score to the structure", "%.3f"),
    "iptm": ("ipTM", "%.3f"),
    "ipsae": ("ipSAE", "%.3f"),
    "interface_pae": ("PAE of contacts, Å", "%.2f"),
    "pdockq": ("pDockQ", "%.3f"),
    "pdockq2": ("pDockQ2", "%.3f"),
    "interface_plddt": ("pLDDT of the interface", "%.1f"),
    "binder_plddt": ("pLDDT of the binder", "%.1f"),
    "target_plddt": ("pLDDT of the target", "%.1f"),
    "pae_binder": ("PAE in the binder, Å", "%.2f"),
    "pae_target": ("PAE in the target, Å", "%.2f"),
    "target_aligned_rmsd": ("RMSD of the binder, target superposed, Å", "%.2f"),
    "binder_aligned_rmsd": ("RMSD of the binder alone, Å", "%.2f"),
    "pae": ("Mean PAE, Å", "%.2f"),
    "rmsd_to_structure": ("RMSD to the structure, Å", "%.2f"),
    "own_plddt": ("Its own pLDDT", "%.1f"),
    "tm_to_native": ("TM-score to the native", "%.3f"),
    "lddt_to_native": ("lDDT to the native", "%.3f"),
    "dockq": ("DockQ", "%.3f"),
    "output_tm_to_native": ("TM-score of the output to the native", "%.3f"),
    "output_lddt_to_native": ("lDDT of the output to the native", "%.3f"),
    "output_dockq": ("DockQ of the output", "%.3f"),
    "residues": ("Residues", "%d"),
    "chains": ("Chains", "%d"),
}
# Words in further columns of the table for programs.
_WORDS = ("interface", "binder", "protocol", "model")
_ON_SCREEN = (
    *("pae_interaction", "composite", "plddt", "ptm", "tm_to_structure", "iptm", "ipsae", "own_plddt"),
    "tm_to_native",
)
_MOST_ON_SCREEN, _MOST_ON_PAGE = 20, 2000
_CORRELATED = ("composite", "plddt", "ptm", "tm_to_structure", "own_plddt", "pae_interaction", "iptm", "ipsae")
_TRUTHS = ("tm_to_native", "lddt_to_native", "dockq")


@dataclass(frozen=True, kw_only=True)
class ScoredLine:
    """A structure with its scores, or the reason why it has none."""

    target: str
    name: str
    rank: int | None  # that among ranked models of a program, from 0
    problem: str | None
    scores: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RankCorrelation:
    """Spearman's correlation of a score with the closeness to the native, over the structures of each target."""

    score: str
    truth: str
    targets: int
    structures: int
    value: Estimate  # of one target, else the mean over targets


def ranking_of(lines: Sequence[ScoredLine]) -> tuple[str, bool]:
    """Return the score by which lines are ranked, and whether a larger one is better."""
    return next((each for each in _RANKED_BY if _has(lines, each[0])), _RANKED_BY[-1])


def ranked(lines: Sequence[ScoredLine]) -> list[ScoredLine]:
    """Return lines with the best first, and those without scores last."""
    name, larger = ranking_of(lines)

    def order(line: ScoredLine) -> float:
        value = line.scores.get(name)
        if value is None:
            return math.inf
        return -value if larger else value

    return sorted(lines, key=lambda line: (order(line), line.target, line.name))


def correlations(lines: Sequence[ScoredLine]) -> list[RankCorrelation]:
    """Return how scores rank the structures of each target, if their natives are known; the best structure has rank 1.

    Predicted errors count with their sign changed, so that a larger correlation is better for each score.
    """
    found = []
    # In one order, so that intervals are the same wherever they are shown.
    lines = sorted(lines, key=lambda line: (line.target, line.name))
    for truth in _TRUTHS:
        for score in _CORRELATED:
            sign = -1 if score.startswith("pae") else 1
            by_target: dict[str, list[tuple[float, float]]] = {}
            for line in lines:
                pair = line.scores.get(score), line.scores.get(truth)
                if pair[0] is not None and pair[1] is not None:
                    by_target.setdefault(line.target, []).append((sign * pair[0], pair[1]))
            each = {target: spearman(*zip(*pairs, strict=True)) for target, pairs in by_target.items()}
            known = {target: value for target, value in each.items() if value is not None}
            if known:
                value = next(iter(known.values()))
                if len(known) > 1:
                    value = mean([estimate.value for estimate in known.values()])
                count = sum(len(by_target[target]) for target in known)
                found.append(
                    RankCorrelation(score=score, truth=truth, targets=len(known), structures=count, value=value)
                )
    return found


def screen_lines(lines: Sequence[ScoredLine]) -> Iterator[str]:
    """Yield the best structures as a table for the screen, and the correlations with the natives."""
    scored = [line for line in ranked(lines) if line.scores]
    names = [name for name in _ON_SCREEN if _has(lines, name)]
    if scored:
        rows = [["", "target", "structure", "protocol", *names]]
        for place, line in enumerate(scored[:_MOST_ON_SCREEN], start=1):
            values = [(COLUMNS[name][1], line.scores.get(name)) for name in names]
            cells = ["-" if value is None else layout % value for layout, value in values]
            rows.append([str(place), line.target, line.name, line.scores.get("protocol", "-"), *cells])
        yield from aligned(rows, left=4)
        if len(scored) > _MOST_ON_SCREEN:
            yield f"and {len(scored) - _MOST_ON_SCREEN:,} more in {TABLE_FILE}"
    for each in correlations(lines):
        yield f"Spearman of {each.score} with {each.truth}: {_interval(each.value)} ({_sizes(each)})"


def write_scores(output: Path, lines: Sequence[ScoredLine], settings: Mapping[str, Any], notes: Sequence[str]) -> None:
    """Write the table for programs as .tsv and .json, and the page."""
    ordered, found = ranked(lines), correlations(lines)
    names = [name for name in COLUMNS if _has(lines, name)]
    words = [name for name in _WORDS if _has(lines, name)]
    rows = [
        [
            *(place if line.scores else None, line.target, line.name, line.rank),
            *(rounded(line.scores.get(name)) for name in (*names, *words)),
            line.problem,
        ]
        for place, line in enumerate(ordered, start=1)
    ]
    header = ("rank", "target", "structure", "own_rank", *names, *words, "problem")
    write_file(output / TABLE_FILE, tab_separated(header, rows))
    content = {
        "settings": dict(settings),
        "notes": list(notes),
        "ranked_by": ranking_of(lines)[0],
        "correlations": [
            {
                "score": each.score,
                "truth": each.truth,
                "targets": each.targets,
                "structures": each.structures,
                **each.value.to_dict("spearman"),
            }
            for each in found
        ],
        "structures": [
            {
                "target": line.target,
                "structure": line.name,
                "own_rank": line.rank,
                "problem": line.problem,
                **{name: rounded(value) for name, value in line.scores.items()},
            }
            for line in ordered
        ],
    }
    write_file(output / JSON_FILE, to_json(content, indent=1) + "\n")
    write_file(output / PAGE_FILE, _page(output.resolve().name, ordered, settings=settings, notes=notes))


def _page(title: str, lines: Sequence[ScoredLine], *, settings: Mapping[str, Any], notes: Sequence[str]) -> str:
    score, larger = ranking_of(lines)
    failed = sum(line.problem is not None for line in lines)
    return page(
        "scores.html",
        styles=("page.css", "index.css", "scores.css"),
        scripts=("banner.js", "index.js"),
        version=__version__,
        title=title,
        lines=lines[:_MOST_ON_PAGE],
        count=len(lines),
        columns=[(name, *COLUMNS[name]) for name in COLUMNS if _has(lines, name)],
        scored=sum(bool(line.scores) for line in lines),
        failed=failed,
        has_ranks=any(line.rank is not None for line in lines),
        banners=[headed(note) for note in notes],
        ranked_by=COLUMNS[score][0],
        larger=larger,
        settings=settings,
        correlations=[
            (COLUMNS[each.score][0], COLUMNS[each.truth][0], _interval(each.value), _sizes(each))
            for each in correlations(lines)
        ],
        plot=_plot(lines, score),
    )


@dataclass(frozen=True, kw_only=True)
class ScorePlot:
    """The scores of structures over their closeness to the natives, as places in a square of 100 by 100."""

    horizontal: str
    vertical: str
    points: tuple[tuple[float, float, str], ...]
    horizontal_ends: tuple[str, str]
    vertical_ends: tuple[str, str]


def _plot(lines: Sequence[ScoredLine], score: str) -> ScorePlot | None:
    """Return the plot of the score that ranks over the TM-score to the native, or else to the structure itself."""
    truth = "tm_to_native" if _has(lines, "tm_to_native") else "tm_to_structure"
    pairs = [
        (line.scores[truth], line.scores[score], f"{line.target} {line.name}")
        for line in lines
        if line.scores.get(truth) is not None and line.scores.get(score) is not None
    ]
    if len(pairs) < 2:
        return None
    ends = []
    for values in ([pair[0] for pair in pairs], [pair[1] for pair in pairs]):
        low, high = float(np.min(values)), float(np.max(values))
        room = 0.05 * (high - low) or 0.05
        ends.append((low - room, high + room))
    points = tuple(
        (
            round(100 * (across - ends[0][0]) / (ends[0][1] - ends[0][0]), 2),
            round(100 - 100 * (up - ends[1][0]) / (ends[1][1] - ends[1][0]), 2),
            f"{name}: {across:.3f}, {up:.3f}",
        )
        for across, up, name in pairs
    )
    return ScorePlot(
        horizontal=COLUMNS[truth][0],
        vertical=COLUMNS[score][0],
        points=points,
        horizontal_ends=(f"{ends[0][0]:.3g}", f"{ends[0][1]:.3g}"),
        vertical_ends=(f"{ends[1][0]:.3g}", f"{ends[1][1]:.3g}"),
    )


def _has(lines: Sequence[ScoredLine], name: str) -> bool:
    return any(line.scores.get(name) is not None for line in lines)


def _interval(value: Estimate) -> str:
    return f"{value.value:.2f} [{value.low:.2f}, {value.high:.2f}]"


def _sizes(each: RankCorrelation) -> str:
    targets = f"mean over {each.targets} targets, " if each.targets > 1 else ""
    return f"{targets}{each.structures:,} structures"
