"""`helixfold benchmark memory` measures in processes of their own, and says what it did not measure."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helixfold.benchmark import memory
from helixfold.benchmark.memory import MemoryMeasurement, Point, measure, measure_in_process
from helixfold.cli.main import main
from helixfold.parallel.mesh import Mesh
from helixfold.planning.size import gib
from helixfold.weights.untrained import untrained_model
from tests.support.forked_ranks import fork_ranks
from tests.support.live import Live

pytestmark = pytest.mark.usefixtures("operators_on_small_tensors")

POINT = Point(
    part="prediction", preset="tiny", blocks=1, residues=96, rows=8, extra_rows=16, templates=1, ensemble=1,
    recycling_iterations=2,
    dtype="float32", executor="slabs", device="cpu",
)  # fmt: skip
MIB = 2**20
LIBRARIES = 300 * MIB


def run(*options: str) -> int:
    return main(["benchmark", "memory", "--preset", "tiny", "--dtypes", "float32", *options])


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Point]:
    """Points that would be measured; each takes a MiB for each residue, spilled ones half of it."""
    points: list[Point] = []

    def found(point: Point, _: Path, limit: int | None) -> MemoryMeasurement:
        points.append(point)
        peak = point.residues * MIB // (2 if point.executor == "spilled" else 1)
        return (
            MemoryMeasurement(peak=peak, resident=peak + MIB, seconds=1.0)
            if limit is None
            else MemoryMeasurement(failure="out of memory")
        )

    monkeypatch.setattr(memory, "measure", found)
    return points


def test_the_floor_is_two_pair_tensors_and_both_msas() -> None:
    pair, msa, extra = 96 * 96 * 32, (8 + 1) * 96 * 64, 16 * 96 * 32
    assert POINT.floor() == 4 * (2 * pair + msa + extra)
    assert replace(POINT, dtype="bfloat16").floor() == 2 * (2 * pair + msa + extra)
    assert replace(POINT, part="evoformer").floor() == 4 * (2 * pair + 8 * 96 * 64)


class CountedProcess(Live):
    """A process whose memory is what its libraries hold and the bytes of its tensors, instead of what the system reads.

    `limits` are the bytes that a measurement was held to; with less than a MiB it runs out of memory.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.limits: list[int] = []
        monkeypatch.setattr(memory, "peak_memory", lambda _: LIBRARIES + self.peak)
        monkeypatch.setattr(memory, "held_memory", lambda _: LIBRARIES + self.now)
        monkeypatch.setattr(memory, "reset_peak_memory", lambda _: setattr(self, "peak", self.now))
        monkeypatch.setattr(memory, "available_memory", lambda _: 2**40)
        monkeypatch.setattr(memory, "limit_memory", self.limit)

    @contextmanager
    def limit(self, limit: int) -> Iterator[None]:
        self.limits.append(limit)
        if limit < MIB:
            raise MemoryError
        yield


def measured_by_count(mesh: Mesh, point: Point, spill: Path, limit: int | None) -> MemoryMeasurement:
    with pytest.MonkeyPatch.context() as monkeypatch, CountedProcess(monkeypatch):
        return measure_in_process(mesh, point, spill, limit)


def test_peak_is_beyond_the_loaded_model_and_resident_is_all(tmp_path: Path) -> None:
    found = measured_by_count(Mesh.alone(), POINT, tmp_path, None)
    assert found.failure is None
    predicted = POINT.predicted()
    assert predicted is not None
    assert POINT.floor() < found.peak < predicted
    network = sum(each.nbytes for each in untrained_model(POINT.config, seed=0).parameters())
    assert network < found.resident - LIBRARIES - found.peak < 1.1 * network
    assert found.seconds > 0


def test_measurement_is_held_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point = replace(POINT, part="evoformer")
    with CountedProcess(monkeypatch) as process:
        resident = measure_in_process(Mesh.alone(), point, tmp_path, None).resident
        assert process.limits == [2**40]
        assert measure_in_process(Mesh.alone(), point, tmp_path, resident + 512 * MIB).failure is None
        assert 512 * MIB < process.limits[1] < 512 * MIB + resident - LIBRARIES
        took = measure_in_process(Mesh.alone(), point, tmp_path, resident - 1).failure
        assert took == f"took {gib(resident)} in total"
        assert measure_in_process(Mesh.alone(), point, tmp_path, LIBRARIES).failure == "out of memory"
        assert process.limits[3] == 0


@pytest.mark.long  # reads the memory of processes
def test_a_prediction_is_measured_in_a_fresh_process(tmp_path: Path) -> None:
    found = measure(POINT, tmp_path, None)
    assert found.failure is None
    # Libraries alone take more than these streams.
    assert POINT.floor() < found.peak < 200 * MIB < found.resident
    assert found.seconds > 0
    large = replace(POINT, part="evoformer", residues=1000, executor="whole")
    assert measure(large, tmp_path, found.resident + 64 * MIB).failure == "out of memory"


def test_a_step_of_a_design_has_gradients_and_its_own_forecast(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    point = replace(POINT, part="design", executor="whole", residues=24, recycling_iterations=1)
    found = measure_in_process(Mesh.alone(), point, tmp_path, None)
    assert found.failure is None
    assert found.seconds > 0
    assert (point.size.msa_rows, point.size.extra_rows, point.size.templates) == (1, 1, 0)
    once, again = (replace(point, recycling_iterations=count).predicted() for count in (1, 2))
    alone = replace(point, part="prediction").predicted()
    assert alone is not None
    assert once is not None
    assert again is not None
    # Each pass keeps what its gradients need.
    assert alone < once < again
    capsys.readouterr()
    assert run("--part", "design") == 2
    assert "computed whole by one process; pass --executors whole" in capsys.readouterr().err


def test_ranks_hold_their_parts_and_the_worst_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fork_ranks(monkeypatch, tmp_path / "printed.txt")
    monkeypatch.setattr(memory, "measure_in_process", measured_by_count)
    point = replace(POINT, part="evoformer", residues=256)
    alone, two = (measure(replace(point, ranks=ranks), tmp_path) for ranks in (1, 2))
    assert alone.failure is two.failure is None
    assert replace(point, ranks=2).floor() == point.floor() // 2
    assert replace(point, ranks=2).floor() < two.peak < alone.peak


def test_ranks_that_fail_are_a_failure_of_the_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fork_ranks(monkeypatch, tmp_path / "printed.txt")
    found = measure(replace(POINT, executor="spilled", residues=700, ranks=2), tmp_path / "missing")
    assert str(found.failure).startswith("rank ")
    assert "Traceback" in (tmp_path / "printed.txt").read_text()


def test_points_stand_beside_floor_and_prediction(
    measured: list[Point], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--residues", "64", "128", "--rows", "8", "--blocks", "1", "--json", str(tmp_path / "found.json")) == 0
    assert [(each.residues, each.executor) for each in measured] == [
        (64, "slabs"), (64, "spilled"), (128, "slabs"), (128, "spilled")
    ]  # fmt: skip
    title, header, first, *_ = capsys.readouterr().out.splitlines()
    assert title.startswith(
        "prediction with tiny, 1 block of each stack, 8 rows, 1,024 extra rows, 1 template, 2 recycling iterations"
    )
    floor, predicted = measured[0].floor(), measured[0].predicted()
    assert predicted is not None
    row = dict(zip(header.replace("/ ", "/").split(), first.split(), strict=True))
    assert float(row["floor"]) == pytest.approx(floor / MIB, abs=0.1)
    assert (row["peak"], row["total"], row["seconds"]) == ("64.0", "65.0", "1.0")
    assert float(row["/floor"]) == pytest.approx(64 * MIB / floor, abs=0.01)
    assert float(row["/peak"]) == pytest.approx(predicted / (64 * MIB), abs=0.01)
    readings = json.loads((tmp_path / "found.json").read_text())["readings"]
    assert [(each["residues"], each["peak"]) for each in readings][:2] == [(64, 64 * MIB), (64, 32 * MIB)]
    assert readings[0]["floor"] == floor


def test_ranks_are_told_apart_and_not_drawn(
    measured: list[Point], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[Any, ...]] = []
    monkeypatch.setattr("helixfold.report.memory_plot.memory_plot", lambda *given: drawn.append(given) or b"PNG")
    options = ["--residues", "64", "--rows", "8", "--executors", "slabs", "--plot", str(tmp_path / "plot.png")]
    assert run(*options, "--ranks", "4", "1") == 0
    assert [each.ranks for each in measured] == [4, 1]
    _, header, *lines = capsys.readouterr().out.splitlines()
    assert [line.split()[header.split().index("ranks")] for line in lines] == ["4", "1"]
    ((curves, _, _),) = drawn
    assert [curve.measured for curve in curves] == [{64: 64 * MIB}]


def test_what_cannot_fit_is_skipped_and_what_fails_is_the_commands_failure(
    measured: list[Point], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda _: 2**30)
    assert run("--residues", "4000", "64", "--executors", "plain", "slabs", "--rows", "8") == 0
    assert [(each.residues, each.executor) for each in measured] == [(64, "plain"), (64, "slabs")]
    assert capsys.readouterr().out.count("skipped: needs about") == 2
    assert run("--residues", "64", "--executors", "slabs", "--rows", "8", "--memory-limit", "0.5") == 1
    assert "out of memory" in capsys.readouterr().out


def test_earlier_points_of_the_same_kind_are_drawn_too(
    measured: list[Point], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[Any, ...]] = []
    monkeypatch.setattr("helixfold.report.memory_plot.memory_plot", lambda *given: drawn.append(given) or b"PNG")
    earlier, other, plot = (tmp_path / name for name in ("earlier.json", "other.json", "plot.png"))
    assert run("--residues", "32", "--rows", "8", "--executors", "slabs", "--json", str(earlier)) == 0
    assert run("--residues", "16", "--rows", "9", "--executors", "slabs", "--json", str(other)) == 0
    also = ["--include", str(earlier), str(other)]
    assert run("--residues", "64", "--rows", "8", "--executors", "plain", "slabs", "--plot", str(plot), *also) == 0
    ((curves, floors, _),) = drawn
    plain, slabs = sorted(curves, key=lambda curve: curve.executor)
    assert plot.read_bytes() == b"PNG"
    assert (plain.measured, slabs.measured) == ({64: 64 * MIB}, {32: 32 * MIB, 64: 64 * MIB})
    assert not plain.predicted
    assert {32, 64} < slabs.predicted.keys() == floors["float32"].keys()
    assert floors["float32"][64] == measured[-1].floor()


def test_files_that_are_no_earlier_points_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.json").write_text('{"readings": [{"part": "prediction"}]}')
    assert run("--include", str(tmp_path / "a.json")) == 2
    assert "is not a JSON file of `helixfold benchmark memory`" in capsys.readouterr().err
