"""Mean scores of a benchmark over all targets, by number of chains, target length and MSA depth.

`BENCHMARK_MEASURES` are the names of scores of a chain that are averaged, and `COMPLEX_MEASURES` of a complex. A
`Grouping` is the property by which targets are divided into classes.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from helixfold.analysis.evaluation import Evaluated, first_ranks
from helixfold.analysis.intervals import Estimate, mean

BENCHMARK_MEASURES = ("tm_score", "lddt", "lddt_ca", "gdt_ts", "gdt_ha")
# Measures of complexes: interfaces, and all chains superposed together.
COMPLEX_MEASURES = ("dockq", "interface_lddt", "tm_score")
# Upper limits of the classes of chains, residues and MSA rows; the last class has no limit.
_CHAIN_LIMITS, _LENGTH_LIMITS, _DEPTH_LIMITS = (1, 2, 3), (100, 200, 400), (1, 30, 100, 1000)

Grouping = Literal["all", "chains", "residues", "alignment rows"]


@dataclass(frozen=True, kw_only=True)
class TargetSize:
    """Size of a predicted target: its residues, the rows of its MSA including the target, and its chains."""

    residues: int
    rows: int
    chains: int = 1


@dataclass(frozen=True, kw_only=True)
class Group:
    """Mean scores of the targets of one class, with intervals.

    `by` is the property and `label` the class, such as "101 to 200". `targets` is the number of targets, and
    `structures` of references, which are more if a target has several domains. `means` by measure are over the most
    similar chains of prediction and reference, `complex_means` over complexes, if there are any.
    """

    by: Grouping
    label: str
    targets: int
    structures: int  # references; a target may have several domains
    means: Mapping[str, Estimate]  # by measure
    complex_means: Mapping[str, Estimate]


def grouped(results: Sequence[Evaluated], sizes: Mapping[str, TargetSize]) -> list[Group]:
    """Return the means over all targets, then by number of chains if any target is a complex, by length and MSA depth.

    Classes without targets are omitted. `sizes` has the size of each target by name. Only the best-ranked prediction of
    each target counts, against each of its references.
    """
    best = first_ranks(results)
    groups = [_group("all", "all", best)] if best else []
    if any(size.chains > 1 for size in sizes.values()):
        groups += _classes("chains", best, {name: size.chains for name, size in sizes.items()}, _CHAIN_LIMITS)
    groups += _classes("residues", best, {name: size.residues for name, size in sizes.items()}, _LENGTH_LIMITS)
    groups += _classes("alignment rows", best, {name: size.rows for name, size in sizes.items()}, _DEPTH_LIMITS)
    return groups


def _classes(
    by: Grouping, results: Sequence[Evaluated], sizes: Mapping[str, int], limits: Sequence[int]
) -> Iterator[Group]:
    """Yield the groups of results by a size of the target; each of `limits` is the largest size of a group.

    Empty groups are left out; the last group has no upper limit.
    """
    for index, first in enumerate((1, *(limit + 1 for limit in limits))):
        members = [each for each in results if bisect_left(limits, sizes[each.target]) == index]
        if not members:
            continue
        last = limits[index] if index < len(limits) else None
        label = f"over {first - 1:,}" if last is None else f"{first:,}" if last == first else f"{first:,} to {last:,}"
        yield _group(by, label, members)


def _group(by: Grouping, label: str, results: Sequence[Evaluated]) -> Group:
    """Return the means of a group with their intervals."""
    targets = [each.target for each in results]
    complexes = {
        name: [
            (each.target, value)
            for each in results
            if each.complex is not None and (value := getattr(each.complex, name)) is not None
        ]
        for name in COMPLEX_MEASURES
    }
    return Group(
        by=by,
        label=label,
        targets=len(set(targets)),
        structures=len(results),
        means={name: mean([getattr(each.scores, name) for each in results], targets) for name in BENCHMARK_MEASURES},
        complex_means={
            name: mean([value for _, value in scored], [target for target, _ in scored])
            for name, scored in complexes.items()
            if scored
        },
    )
