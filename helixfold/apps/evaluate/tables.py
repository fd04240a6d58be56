"""Tables of a benchmark's results: each target, means by length and alignment depth, published means beside them."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from helixfold.analysis.benchmark_groups import BENCHMARK_MEASURES, Group
from helixfold.apps.evaluate.benchmark_data import Benchmark
from helixfold.apps.evaluate.compare import BenchmarkResults
from helixfold.apps.evaluate.results import HEADINGS, complex_table, screen_table, write_evaluation
from helixfold.report.evaluation_plot import evaluation_plot
from helixfold.report.page import counted
from helixfold.results.text_tables import aligned, tab_separated
from helixfold.results.writing import write_file

GROUPS_FILE = "groups.tsv"


def benchmark_lines(benchmark: Benchmark, found: BenchmarkResults) -> Iterator[str]:
    """Yield lines for the screen: each target, means by length and alignment depth, and published means beside them."""
    yield from screen_table(found.results, found.sizes)
    yield from complex_table(found.results)
    yield ""
    groups = found.groups
    headings = [HEADINGS[name] for name in BENCHMARK_MEASURES]
    rows = [["mean [95 % interval] of", "targets", "structures", *headings]]
    rows += [
        [
            group.label if group.by == "all" else f"{group.label} {group.by}",
            f"{group.targets:,}",
            f"{group.structures:,}",
            *(_interval(group, name) for name in BENCHMARK_MEASURES),
        ]
        for group in groups
    ]
    yield from aligned(rows, left=1)
    if benchmark.table.target_list is not None:
        yield ""
        yield from _published_lines(benchmark, groups)


def write_benchmark(directory: Path, benchmark: Benchmark, found: BenchmarkResults) -> None:
    """Write the tables of `helixfold evaluate`, and groups.tsv; scores.json also has what is in `benchmark_content`."""
    write_evaluation(directory, found.results, found.failures, (), {"benchmark": benchmark_content(benchmark, found)})
    names = [f"{name}{part}" for name in BENCHMARK_MEASURES for part in ("", "_low", "_high")]
    rows = [
        [group.by, group.label, group.targets, group.structures]
        + [number for name in BENCHMARK_MEASURES for number in _numbers(group, name)]
        for group in found.groups
    ]
    write_file(directory / GROUPS_FILE, tab_separated(["by", "group", "targets", "structures", *names], rows))
    write_file(directory / "scores.png", evaluation_plot(found.results))


def benchmark_content(benchmark: Benchmark, found: BenchmarkResults) -> dict[str, Any]:
    """Return what scores.json says of a benchmark: sizes of targets, means of groups, published means, missing data."""
    target_list = benchmark.table.target_list
    latest = {each.target.name: each.target.latest_template for each in benchmark.targets}
    return {
        "name": benchmark.table.name,
        "targets": {
            name: {**asdict(size), "latest_template": None if (day := latest[name]) is None else day.isoformat()}
            for name, size in found.sizes.items()
        },
        "groups": [
            {
                "by": group.by,
                "group": group.label,
                "targets": group.targets,
                "structures": group.structures,
                **{
                    name: dict(zip(("mean", "low", "high"), _numbers(group, name), strict=True)) for name in group.means
                },
            }
            for group in found.groups
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
    target_list = benchmark.table.target_list
    assert target_list is not None
    here = next(group for group in groups if group.by == "all")
    rows = [["mean of", "structures", HEADINGS["tm_score"], HEADINGS["lddt"], ""]]
    rows += [["this run", f"{here.structures}", *(_interval(here, name) for name in ("tm_score", "lddt")), ""]]
    rows += [
        [each.program, f"{target_list.count}", _number(each.tm_score), _number(each.lddt), each.remark]
        for each in target_list.published
    ]
    yield from aligned(rows, left=1)
    yield f"{target_list.what}: {target_list.origin}."
    if here.structures != target_list.count:
        own = counted(here.structures, "structure")
        yield f"This run has {own}, not the {target_list.count} of the published means."


def _interval(group: Group, measure: str) -> str:
    """Return a mean with its interval, which a single target does not have."""
    found = group.means[measure]
    return f"{found.value:.3f}" + (f" [{found.low:.3f}, {found.high:.3f}]" if group.targets > 1 else "")


def _numbers(group: Group, measure: str) -> list[float | None]:
    value, low, high = group.means[measure].to_dict().values()
    return [value, low, high] if group.targets > 1 else [value, None, None]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
