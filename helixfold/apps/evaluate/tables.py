"""Tables of a benchmark's results: scores of each target, means by length and MSA depth, and published means."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from helixfold.analysis.benchmark_groups import BENCHMARK_MEASURES, COMPLEX_MEASURES, Group
from helixfold.analysis.intervals import Estimate
from helixfold.apps.evaluate.benchmark_data import Benchmark
from helixfold.apps.evaluate.compare import BenchmarkResults
from helixfold.apps.evaluate.results import HEADINGS, complex_table, screen_table, write_evaluation
from helixfold.report.evaluation_plot import evaluation_plot
from helixfold.report.page import counted
from helixfold.results.writing import aligned, tab_separated, write_file

GROUPS_FILE = "groups.tsv"
_COMPLEX_HEADINGS = {"dockq": "DockQ", "interface_lddt": "interface lDDT", "tm_score": "TM of all chains"}


def benchmark_lines(benchmark: Benchmark, results: BenchmarkResults) -> Iterator[str]:
    """Yield lines for the screen: scores of each target, means by length and MSA depth, and published means."""
    yield from screen_table(results.results, results.sizes)
    yield from complex_table(results.results)
    yield ""
    groups = results.groups
    headings = [HEADINGS[name] for name in BENCHMARK_MEASURES]
    rows = [["mean [95 % interval] of", "targets", "structures", *headings]]
    rows += [
        [
            _label(group),
            f"{group.targets:,}",
            f"{group.structures:,}",
            *(_interval(group, group.means[name]) for name in BENCHMARK_MEASURES),
        ]
        for group in groups
    ]
    yield from aligned(rows, left=1)
    complexes = [group for group in groups if group.complex_means]
    if complexes:
        yield ""
        rows = [["complexes", *(_COMPLEX_HEADINGS[name] for name in COMPLEX_MEASURES)]]
        rows += [
            [_label(group), *(_interval(group, group.complex_means.get(name)) for name in COMPLEX_MEASURES)]
            for group in complexes
        ]
        yield from aligned(rows, left=1)
    if benchmark.table.target_list is not None:
        yield ""
        yield from _published_lines(benchmark, groups)


def write_benchmark(directory: Path, benchmark: Benchmark, results: BenchmarkResults) -> None:
    """Write the tables of `helixfold evaluate`, groups.tsv and a plot; scores.json also has `benchmark_content`."""
    write_evaluation(
        directory, results.results, results.failures, (), {"benchmark": benchmark_content(benchmark, results)}
    )
    measures = [*BENCHMARK_MEASURES, *(f"complex_{name}" for name in COMPLEX_MEASURES)]
    names = [f"{name}{name_suffix}" for name in measures for name_suffix in ("", "_low", "_high")]
    rows = [
        [group.by, group.label, group.targets, group.structures]
        + [value for name in BENCHMARK_MEASURES for value in _numbers(group, group.means.get(name))]
        + [value for name in COMPLEX_MEASURES for value in _numbers(group, group.complex_means.get(name))]
        for group in results.groups
    ]
    write_file(directory / GROUPS_FILE, tab_separated(["by", "group", "targets", "structures", *names], rows))
    write_file(directory / "scores.png", evaluation_plot(results.results))


def benchmark_content(benchmark: Benchmark, results: BenchmarkResults) -> dict[str, Any]:
    """Return the entry for scores.json: sizes of targets, means of groups, published means, and missing data."""
    target_list = benchmark.table.target_list
    latest_templates = {each.target.name: each.target.latest_template for each in benchmark.targets}
    return {
        "name": benchmark.table.name,
        "targets": {
            name: {
                **asdict(size),
                "latest_template": None if (day := latest_templates[name]) is None else day.isoformat(),
            }
            for name, size in results.sizes.items()
        },
        "groups": [
            {
                "by": group.by,
                "group": group.label,
                "targets": group.targets,
                "structures": group.structures,
                **{
                    name: dict(zip(("mean", "low", "high"), _numbers(group, estimate), strict=True))
                    for name, estimate in _all_means(group).items()
                },
            }
            for group in results.groups
        ],
        "missing": benchmark.missing,
        "list": None
        if target_list is None
        else {
            "what": target_list.what,
            "structures": target_list.count,
            "origin": target_list.origin,
            "published": [asdict(each) for each in target_list.published],
        },
    }


def _published_lines(benchmark: Benchmark, groups: Sequence[Group]) -> Iterator[str]:
    """Yield a table of this run's means and the published ones, and the origin of the list."""
    target_list = benchmark.table.target_list
    assert target_list is not None
    this_run = next(group for group in groups if group.by == "all")
    rows = [["mean of", "structures", HEADINGS["tm_score"], HEADINGS["lddt"], ""]]
    rows += [
        [
            "this run",
            f"{this_run.structures}",
            *(_interval(this_run, this_run.means[name]) for name in ("tm_score", "lddt")),
            "",
        ]
    ]
    rows += [
        [each.program, f"{target_list.count}", _number(each.tm_score), _number(each.lddt), each.remark]
        for each in target_list.published
    ]
    if target_list.published:
        yield from aligned(rows, left=1)
    yield f"{target_list.what}: {target_list.origin}."
    if this_run.structures != target_list.count:
        own_count = counted(this_run.structures, "structure")
        yield f"This run has {own_count}, not the {target_list.count:,} of the published list."


def _label(group: Group) -> str:
    """Return the name of a group for the screen."""
    if group.by == "chains" and group.label == "1":
        return "1 chain"
    return group.label if group.by == "all" else f"{group.label} {group.by}"


def _all_means(group: Group) -> dict[str, Estimate]:
    """Return the means of all scores of a group by name, also the scores of complexes."""
    return {**group.means, **{f"complex_{name}": each for name, each in group.complex_means.items()}}


def _interval(group: Group, estimate: Estimate | None) -> str:
    """Return a mean as text, with its interval if there are several targets."""
    if estimate is None:
        return "-"
    return f"{estimate.value:.3f}" + (f" [{estimate.low:.3f}, {estimate.high:.3f}]" if group.targets > 1 else "")


def _numbers(group: Group, estimate: Estimate | None) -> list[float | None]:
    """Return the mean and the ends of its interval; None for unknown numbers."""
    if estimate is None:
        return [None, None, None]
    value, low, high = estimate.to_dict().values()
    return [value, low, high] if group.targets > 1 else [value, None, None]


def _number(value: float | None) -> str:
    """Return a published mean as text."""
    return "-" if value is None else f"{value:.4f}"
