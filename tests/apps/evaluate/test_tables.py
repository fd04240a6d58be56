"""Tables of a benchmark have the numbers of its groups, and published means beside them."""

import csv
import json
from datetime import date
from pathlib import Path

import pytest

from data_pipeline.pipeline import Target
from helixfold.analysis.benchmark_groups import BENCHMARK_MEASURES, TargetSize
from helixfold.apps.evaluate.benchmark_data import Benchmark, BenchmarkTarget
from helixfold.apps.evaluate.benchmark_table import BenchmarkTable, PublishedScores, TargetList
from helixfold.apps.evaluate.compare import BenchmarkResults
from helixfold.apps.evaluate.tables import benchmark_content, benchmark_lines, write_benchmark
from tests.support.evaluated import evaluated

LIST = TargetList(
    path=Path("list.tsv"),
    what="domains of a test",
    count=7,
    origin="from nowhere",
    published=(
        PublishedScores(program="one", source="a paper", tm_score=0.87, lddt=0.79),
        PublishedScores(program="two", source="a paper", lddt=0.8, remark="as high"),
    ),
)
RESULTS = BenchmarkResults(
    results=[
        evaluated("a", 0.5),
        evaluated("b", 0.3),
        evaluated("b", 0.9, rank=1),
        evaluated("b", 0.6, reference="b2"),
    ],
    sizes={"a": TargetSize(residues=90, rows=40), "b": TargetSize(residues=300, rows=40)},
    failures={"c": "no reference"},
)


def benchmark(target_list: TargetList | None) -> Benchmark:
    days = {"a": date(2020, 5, 14), "b": None}
    return Benchmark(
        table=BenchmarkTable(name="mine", path=Path("mine.tsv"), rows=(), target_list=target_list),
        targets=tuple(
            BenchmarkTarget(target=Target(name=name, sequence="MKT", latest_template=day), references=())
            for name, day in days.items()
        ),
        missing={"d": "there is no file"},
    )


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("helixfold.analysis.intervals.RESAMPLES", 500)


def test_groups_have_means_and_single_targets_no_interval(tmp_path: Path) -> None:
    write_benchmark(tmp_path, benchmark(None), RESULTS)
    with (tmp_path / "groups.tsv").open(newline="") as file:
        rows = {row["by"] + row["group"]: row for row in csv.DictReader(file, delimiter="\t")}
    assert list(rows) == ["allall", "residues1 to 100", "residues201 to 400", "alignment rows31 to 100"]
    everything, single, double = (rows[name] for name in ("allall", "residues1 to 100", "residues201 to 400"))
    assert (everything["targets"], everything["structures"]) == ("2", "3")
    assert (double["targets"], double["structures"]) == ("1", "2")
    # The first-ranked prediction for each known structure counts: 0.5, 0.3 and 0.6.
    for name, more in zip(BENCHMARK_MEASURES, (0.02, 0.01, 0, 0.03, 0.04), strict=True):
        assert float(everything[name]) == pytest.approx(1.4 / 3 + more, abs=1e-4)
        assert float(single[name]) == pytest.approx(0.5 + more)
        assert float(everything[f"{name}_low"]) < float(everything[name]) < float(everything[f"{name}_high"])
        assert (single[f"{name}_low"], single[f"{name}_high"]) == ("NA", "NA")
    content = json.loads((tmp_path / "scores.json").read_text())
    assert content["failures"] == {"c": "no reference"}
    assert content["benchmark"]["targets"] == {
        "a": {"residues": 90, "rows": 40, "chains": 1, "latest_template": "2020-05-14"},
        "b": {"residues": 300, "rows": 40, "chains": 1, "latest_template": None},
    }
    (first, second, *_) = content["benchmark"]["groups"]
    assert (first["by"], first["group"], first["targets"], first["structures"]) == ("all", "all", 2, 3)
    assert [str(first["means" if "means" in first else "tm_score"][end]) for end in ("mean", "low", "high")] == [
        everything[f"tm_score{end}"] for end in ("", "_low", "_high")
    ]
    assert second["lddt"] == {"mean": 0.51, "low": None, "high": None}
    assert (content["benchmark"]["list"], content["benchmark"]["missing"]) == (None, {"d": "there is no file"})
    assert (tmp_path / "scores.png").read_bytes().startswith(b"\x89PNG")
    assert not any("mean of " in line and "this run" in line for line in benchmark_lines(benchmark(None), RESULTS))


def test_published_means_stand_beside_those_of_the_run() -> None:
    lines = list(benchmark_lines(benchmark(LIST), RESULTS))
    start = next(place for place, line in enumerate(lines) if line.startswith("mean [95 % interval] of"))
    everything, single = (line.split() for line in lines[start + 1 : start + 3])
    low, high = (RESULTS.groups[0].means["tm_score"].low, RESULTS.groups[0].means["tm_score"].high)
    assert everything[:6] == ["all", "2", "3", f"{1.4 / 3 + 0.02:.3f}", f"[{low:.3f},", f"{high:.3f}]"]
    assert single[:7] == ["1", "to", "100", "residues", "1", "1", "0.520"]
    here, one, two, source, size = lines[-5:]
    assert here.split()[:3] == ["this", "run", "3"]
    assert here.split()[3] == f"{1.4 / 3 + 0.02:.3f}"
    assert one.split() == ["one", "7", "0.8700", "0.7900"]
    assert two.split() == ["two", "7", "-", "0.8000", "as", "high"]
    assert source == "domains of a test: from nowhere."
    assert size == "This run has 3 structures, not the 7 of the published list."
    content = benchmark_content(benchmark(LIST), RESULTS)["list"]
    assert {name: content[name] for name in ("what", "structures", "origin")} == {
        **{"what": "domains of a test", "structures": 7, "origin": "from nowhere"}
    }
    assert [each["tm_score"] for each in content["published"]] == [0.87, None]
