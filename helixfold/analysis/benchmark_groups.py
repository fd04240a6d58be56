"""Means of a benchmark's scores over all targets, and by the targets' length and the depth of their alignments."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from helixfold.analysis.evaluation import Evaluated, first_ranks
from helixfold.analysis.intervals import Estimate, mean

BENCHMARK_MEASURES = ("tm_score", "lddt", "lddt_ca", "gdt_ts", "gdt_ha")
# The last number of residues, or of rows of an alignment, of each class but the last.
_LENGTHS, _DEPTHS = (100, 200, 400), (1, 30, 100, 1000)

Grouping = Literal["all", "residues", "alignment rows"]


@dataclass(frozen=True, kw_only=True)
class TargetSize:
    """Size of a predicted target: its residues, and the rows of its alignment with the target itself."""

    residues: int
    rows: int


@dataclass(frozen=True, kw_only=True)
class Group:
    """Mean scores of the targets of one class, with their intervals."""

    by: Grouping
    label: str
    targets: int
    structures: int  # that predictions were compared with; a target may have several domains
    means: Mapping[str, Estimate]  # by measure


def grouped(results: Sequence[Evaluated], sizes: Mapping[str, TargetSize]) -> list[Group]:
    """Return the means over all targets, then by length and by alignment depth; classes without targets are left out.

    `sizes` are by target. Only the best-ranked prediction of each target counts.
    """
    best = first_ranks(results)
    groups = [_group("all", "all", best)] if best else []
    groups += _classes("residues", best, {name: size.residues for name, size in sizes.items()}, _LENGTHS)
    groups += _classes("alignment rows", best, {name: size.rows for name, size in sizes.items()}, _DEPTHS)
    return groups


def _classes(
    by: Grouping, results: Sequence[Evaluated], numbers: Mapping[str, int], limits: Sequence[int]
) -> Iterator[Group]:
    for index, first in enumerate((1, *(limit + 1 for limit in limits))):
        chosen = [each for each in results if bisect_left(limits, numbers[each.target]) == index]
        if not chosen:
            continue
        last = limits[index] if index < len(limits) else None
        label = f"over {first - 1:,}" if last is None else f"{first:,}" if last == first else f"{first:,} to {last:,}"
        yield _group(by, label, chosen)


def _group(by: Grouping, label: str, results: Sequence[Evaluated]) -> Group:
    targets = [each.target for each in results]
    return Group(
        by=by,
        label=label,
        targets=len(set(targets)),
        structures=len(results),
        means={name: mean([getattr(each.scores, name) for each in results], targets) for name in BENCHMARK_MEASURES},
    )
