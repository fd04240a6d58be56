"""The executor follows from what there is."""

from dataclasses import replace
from pathlib import Path

import pytest

from helixfold.execution.slabs import Slabs
from helixfold.execution.spilled import Spilled
from helixfold.execution.whole import Whole
from helixfold.model.config import ModelConfig
from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.planning import estimate as subject
from helixfold.planning.estimate import Device, Prediction, max_residues
from helixfold.planning.executors import EXECUTORS, executor
from helixfold.planning.size import Memory, PassSize
from tests.support.plans import DISK, GIB, SIZE, planned, simple_estimate


@pytest.fixture(autouse=True)
def simple_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "prediction_memory", simple_estimate)


@pytest.mark.parametrize(
    ("gibibytes", "chosen", "fits"),
    [
        (100, "slabs", True),
        (4.5, "slabs", True),
        (4.3, "spilled", True),
        (2.3, "spilled", True),
        (2.1, "spilled", False),
    ],
)
def test_the_first_executor_is_taken_that_fits_with_a_tenth_to_spare(gibibytes: float, chosen: str, fits: bool) -> None:
    found = planned(gibibytes)
    assert (found.executor, found.fits) == (chosen, fits)


def test_short_chains_are_carried_out_whole_where_memory_is_plenty() -> None:
    assert planned(4.0, residues=200).executor == "whole"
    assert planned(3.0, residues=200).executor == "slabs"
    assert planned(100, residues=400).executor == "slabs"


@pytest.mark.parametrize(
    ("gibibytes", "chosen", "slabs"),
    [
        (8.9, "whole", None),
        # Half of what is free, down to a power of 2: 8.7 - 4.4 leave 4.3.
        (8.7, "slabs", 2.0),
        (5.5, "slabs", 0.5),
        (4.3, "spilled", 1.0),
        (2.25, "spilled", 1 / 64),
        (2.1, "spilled", None),
    ],
)
def test_a_gpu_computes_whole_streams_where_they_fit_and_else_slabs_of_what_is_free(
    gibibytes: float, chosen: str, slabs: float | None
) -> None:
    found = planned(gibibytes, device_model="h200")
    assert (found.executor, found.slab_budget) == (chosen, slabs and int(slabs * GIB))
    assert found.fits == (gibibytes > 2.1)
    assert planned(gibibytes, forced=chosen, device_model="h200").slab_budget == found.slab_budget


def test_short_chains_share_forecasts(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, int, int]] = []
    forecast = subject.prediction_memory

    def noted(config: ModelConfig, size: PassSize, *rest: object) -> Memory:
        sizes.append((size.residues, size.msa_rows, size.extra_rows))
        return forecast(config, size, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(subject, "prediction_memory", noted)
    for residues, msa_rows, extra_rows in ((50, 1, 1), (64, 16, 16), (257, 130, 5000), (513, 130, 5000)):
        planned(100, device_model="h200", residues=residues, msa_rows=msa_rows, extra_rows=extra_rows)
    assert [*dict.fromkeys(sizes)] == [(64, 16, 16), (320, 160, 5120), (513, 130, 5000)]
    sizes.clear()
    for residues, msa_rows, extra_rows in ((50, 1, 1), (128, 130, 1000), (129, 130, 5000)):
        planned(100, residues=residues, msa_rows=msa_rows, extra_rows=extra_rows)
    assert [*dict.fromkeys(sizes)] == [(64, 16, 16), (128, 160, 1024), (129, 130, 5000)]


def test_slabs_on_a_gpu_take_some_gibibytes_at_most() -> None:
    assert planned(1000, forced="slabs", device_model="h200").slab_budget == 8 * GIB
    assert planned(1000, forced="slabs").slab_budget is None


def test_a_forced_executor_is_taken_whether_it_fits_or_not() -> None:
    assert (planned(100, forced="spilled").executor, planned(100, forced="spilled").fits) == ("spilled", True)
    assert (planned(5, forced="whole").executor, planned(5, forced="whole").fits) == ("whole", False)


def test_the_disk_must_hold_what_is_spilled() -> None:
    found = planned(3, disk=5 * GIB)
    assert not found.fits
    assert "need 2.2 GiB of memory (a tenth of reserve included) and 6.0 GiB to spill to" in found.problem
    assert "there are 3.0 GiB and 5.0 GiB" in found.problem
    assert found.problem.endswith("or 4.4 GiB of memory, or 6.0 GiB to spill to")


def test_what_would_fit_does_and_a_little_more_does_not() -> None:
    found = planned(1.5)
    assert "needs 2.2 GiB" in found.problem.replace("residues need ", "needs ")
    assert "--dtype bfloat16" in found.problem
    assert found.problem.endswith("or 2.2 GiB of memory")
    rows = int(found.problem.split("--max-extra-rows ")[1].split(",")[0])
    residues = int(found.problem.split("at most ")[1].split(" residues")[0])
    # Rows are halved until they fit.
    for name, value, more in (("extra_rows", rows, 2 * rows), ("residues", residues, residues + 2)):
        assert planned(1.5, **{name: value - 1}).fits
        assert not planned(1.5, **{name: more}).fits


def test_remedies_are_joined_where_one_is_not_enough() -> None:
    problem = planned(0.8).problem
    assert "--dtype bfloat16 --max-extra-rows" in problem
    assert ": --dtype bfloat16," not in problem


def test_the_longest_chain_fits_and_a_longer_one_does_not() -> None:
    device = Device(properties=DEVICE_MODELS["cpu"], memory=3 * GIB, spill=DISK)
    for name in EXECUTORS:
        most = max_residues(Prediction(model=ModelConfig(), size=SIZE), device, [name])
        assert planned(3, forced=name, residues=most - 1).fits
        assert not planned(3, forced=name, residues=most + 2).fits


@pytest.mark.parametrize(("later", "expected"), [(900, 6_549), (100, 19_647), (10, 62_130)])
def test_the_longest_chain_is_found_where_long_chains_take_otherwise(
    later: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The three lengths nearest to the one at hand say 11,343 residues in all cases."""

    def forecast(config: ModelConfig, size: PassSize, *_: object) -> Memory:
        factor = 300 if size.residues < 2_000 else later
        return Memory(stages={"Evoformer": factor * size.residues**2})

    monkeypatch.setattr(subject, "prediction_memory", forecast)
    device = Device(properties=DEVICE_MODELS["cpu"], memory=int(1.1 * 900 * 6_549.5**2), spill=0)
    work = Prediction(model=ModelConfig(), size=replace(SIZE, residues=256))
    assert max_residues(work, device, ["slabs"]) == pytest.approx(expected, rel=0.01)


def test_each_name_gives_its_executor(tmp_path: Path) -> None:
    assert [type(executor(name, tmp_path)) for name in EXECUTORS] == [Whole, Slabs, Spilled]
    assert {executor(name, tmp_path, slab_budget=5).budget for name in ("slabs", "spilled")} == {5}  # type: ignore[union-attr]
