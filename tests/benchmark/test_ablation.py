"""The ablation measures each technique, and finds each one whose results are wrong by a hundredth."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from helixfold.benchmark import ablation
from helixfold.benchmark.ablation import (
    ALL_OPERATORS,
    KINDS,
    Comparison,
    PredictionSetup,
    Problem,
    Reading,
    Setup,
    Technique,
    TrainingRun,
    TrainingSetup,
    comparisons,
    errors,
    judge,
    prediction_techniques,
    training_techniques,
)
from helixfold.cli.main import main
from helixfold.execution import recompute, spilled
from helixfold.execution.slabs import Slabs
from helixfold.losses.config import initial_training
from helixfold.model.presets import tiny
from helixfold.ops.dispatch import Backend, Op
from tests.support.forked_ranks import fork_ranks

pytestmark = pytest.mark.usefixtures("operators_on_small_tensors")
FACTOR = 1.01
FLOAT32 = torch.float32


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a reading be one step, however short."""
    monkeypatch.setattr(ablation, "_MIN_SECONDS", 0)


def problem() -> Problem:
    model = tiny().model
    return Problem(
        model=replace(
            model,
            evoformer=replace(model.evoformer, blocks=1),
            template=None,
            structure=replace(model.structure, layers=1),
        ),
        losses=initial_training(),
        residues=8,
        rows=3,
        extra_rows=2,
        templates=0,
        recycles=0,
    )


def read(*setups: Setup) -> list[Reading]:
    return judge(problem(), setups, torch.device("cpu"))


def wrong(found: Any) -> Any:
    """Return an operator's result, a tensor or several, times 1.01."""
    return FACTOR * found if isinstance(found, torch.Tensor) else tuple(FACTOR * each for each in found)


@pytest.fixture
def break_operators(monkeypatch: pytest.MonkeyPatch) -> Callable[[frozenset[str]], None]:
    """Function after which the fused backends of these operators return results times 1.01."""
    choice = Op.choice

    def break_them(names: frozenset[str]) -> None:
        def chosen(self: Op[..., Any], *args: Any, **kwargs: Any) -> Backend:
            found = choice(self, *args, **kwargs)
            if self.name not in names or found.name == "reference":
                return found
            return Backend(name=found.name, run=lambda *a, **k: wrong(found.function(*a, **k)))

        monkeypatch.setattr(Op, "choice", chosen)

    return break_them


def test_all_techniques_have_right_results() -> None:
    every = [*training_techniques(torch.bfloat16), *prediction_techniques(FLOAT32)]
    setups = dict.fromkeys(setup for each in every for setup in (each.on, each.off))
    assert [(reading.setup, reading.faults) for reading in read(*setups) if reading.faults] == []
    assert {name for each in every[1:8] for name in each.off.plain} == ALL_OPERATORS
    assert all(each.on != each.off for each in every)


# On a CPU the residual addition has no fused backend.
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind in ("attention", "triangle multiplication") else pytest.mark.long)
        for kind in KINDS
        if kind != "residual addition"
    ],
)
def test_a_wrong_operator_is_found(kind: str, break_operators: Callable[[frozenset[str]], None]) -> None:
    on, off = (TrainingSetup(dtype=FLOAT32, plain=plain) for plain in (frozenset[str](), KINDS[kind]))
    break_operators(KINDS[kind])
    broken, right = read(on, off)
    assert broken.faults
    assert "allowed" in broken.faults[0]
    assert right.faults == []


def test_a_wrong_recomputation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    call = recompute.Recomputed.__call__

    def wrong_again(self: recompute.Recomputed, *arguments: Any) -> Any:
        method = self.method
        parameters = [*method.__self__.parameters()]  # type: ignore[attr-defined]

        def run(*given: Any) -> Any:
            if not recompute.is_recomputing():
                return method(*given)
            for each in parameters:
                each.data.mul_(FACTOR)
            try:
                return method(*given)
            finally:
                for each in parameters:
                    each.data.div_(FACTOR)

        return call(recompute.Recomputed(run), *arguments)

    monkeypatch.setattr(recompute.Recomputed, "__call__", wrong_again)
    on = TrainingSetup(dtype=FLOAT32)
    recomputed, kept = read(on, replace(on, recompute=recompute.RecomputeConfig.everywhere("none")))
    assert [fault.split()[0] for fault in recomputed.faults][:1] == ["gradient"]
    assert kept.faults == []


def test_a_wrong_lower_precision_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    total_loss = ablation.total_loss

    def loss(outputs: Any, *others: Any) -> Any:
        found = total_loss(outputs, *others)
        is_low = outputs.representations.pair.dtype == torch.bfloat16
        # Plain PyTorch in bfloat16 is what it is compared with, and right.
        return replace(found, total=FACTOR * found.total) if is_low and not broken_off else found

    broken_off: list[int] = []
    operators = ablation._operators

    def noted(plain: frozenset[str]) -> Any:
        broken_off[:] = [1] * (plain == ALL_OPERATORS)
        return operators(plain)

    monkeypatch.setattr(ablation, "total_loss", loss)
    monkeypatch.setattr(ablation, "_operators", noted)
    low, exact = read(TrainingSetup(dtype=torch.bfloat16), TrainingSetup(dtype=FLOAT32))
    assert any(fault.startswith("loss") and "in bfloat16" in fault for fault in low.faults)
    assert exact.faults == []


def test_wrong_slabs_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    call = Slabs.__call__
    monkeypatch.setattr(Slabs, "__call__", lambda self, *given, **named: call(self, *given, **named).mul_(FACTOR))
    on = PredictionSetup(dtype=FLOAT32)
    slabs, apart, whole = read(on, replace(on, way="slabs, not in place"), replace(on, way="whole"))
    assert slabs.faults
    assert apart.faults
    assert whole.faults == []


def test_a_wrong_update_out_of_place_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = ablation.NotInPlace.apply
    monkeypatch.setattr(
        ablation.NotInPlace, "apply", lambda self, *given, **named: apply(self, *given, **named).mul_(FACTOR)
    )
    on = PredictionSetup(dtype=FLOAT32)
    assert [bool(each.faults) for each in read(on, replace(on, way="slabs, not in place"))] == [False, True]


def test_a_wrong_spilled_stream_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    fetch = spilled.Lane.fetch

    def wrong_fetch(self: spilled.Lane, slot: int, part: slice) -> None:
        fetch(self, slot, part)
        if self._fetches:
            self._near[slot].mul_(FACTOR)

    monkeypatch.setattr(spilled, "MIN_BYTES", 0)
    on = PredictionSetup(dtype=FLOAT32, way="spilled")
    assert read(on)[0].faults == []
    monkeypatch.setattr(spilled.Lane, "fetch", wrong_fetch)
    assert read(on)[0].faults


def test_a_missing_result_is_a_fault() -> None:
    error = errors({"loss": torch.tensor([torch.nan, 2.0])}, {"loss": torch.tensor([1.0, 2.0])})
    fault = "loss is off by nan in float32; at most 1.0e+00 is allowed"
    assert [*ablation._faults(error, {"loss": 1.0}, "float32")] == [fault]


def test_a_jump_in_one_draw_of_inputs_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    results = TrainingRun.results

    def jumping(self: TrainingRun) -> Any:
        found = dict(results(self))
        if self._setup.flat_optimizer and self._problem.draw in jumps:
            found["gradient"] = wrong(found["gradient"])
        return found

    monkeypatch.setattr(TrainingRun, "results", jumping)
    for jumps in ([0], [0, 1]):
        (reading,) = read(TrainingSetup(dtype=FLOAT32))
        assert bool(reading.faults) == (jumps == [0, 1])


def test_a_line_compares_both_setups() -> None:
    on, off = TrainingSetup(dtype=FLOAT32), TrainingSetup(dtype=FLOAT32, flat_optimizer=False)
    comparison = Comparison(
        technique=Technique(name="it", on=on, off=off),
        on=Reading(setup=on, seconds=[1.0, 1.0], memory=2**20),
        off=Reading(setup=off, seconds=[1.3, 0.9], memory=3 * 2**19, faults=["loss is off"]),
    )
    line, *wrong = comparison.lines()
    assert line.split() == ["it", "1,000.0", "1,100.0", "1.10x", "(0.90-1.30)", "1.0", "1.5", "1.50x"]
    assert wrong == ["    WRONG, without: loss is off"]


def test_a_table_and_a_file_are_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fork_ranks(monkeypatch, tmp_path / "output")
    sizes = [
        "--crop",
        "6",
        "--rows",
        "2",
        "--extra-rows",
        "2",
        "--blocks",
        "1",
        "--num-recycles",
        "0",
        "--repeats",
        "1",
    ]
    file = ["--json", str(tmp_path / "a.json")]
    command = ["benchmark", "ablation", *sizes, "--dtype", "float32", "--threads", "1"]
    assert main([*command, "--only", "flat", *file]) == 0
    printed = capsys.readouterr().out
    assert "tiny with 1 + 1 blocks, 6 residues, 2 + 4 rows, 2 extra rows, 0 recycles" in printed
    assert "flat buffers of the optimizer" in printed
    (row,) = json.loads((tmp_path / "a.json").read_text())["techniques"]
    assert row["technique"] == "flat buffers of the optimizer"
    assert row["with"]["seconds"][0] > 0
    assert row["without"]["setup"]["flat_optimizer"] == "False"
    assert main([*command, "--only", "nothing like it"]) == 2
    assert "no technique has this in its name" in capsys.readouterr().err


def test_a_wrong_result_is_said_and_ends_with_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(ranks: int, function: Any, problem: Any, setups: list[Setup], *_: Any, **__: Any) -> list[Reading]:
        return [Reading(setup=each, seconds=[1.0], faults=["gradient is off by 0.01"]) for each in setups]

    monkeypatch.setattr(ablation, "on_ranks", measured)
    sizes = ["--crop", "6", "--rows", "2", "--extra-rows", "2", "--blocks", "1", "--num-recycles", "0"]
    assert main(["benchmark", "ablation", "--repeats", "1", *sizes]) == 1
    assert "WRONG, with: gradient is off by 0.01" in capsys.readouterr().out


def test_comparisons_measure_each_setup_once(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Setup] = []

    def measured(ranks: int, function: Any, problem: Any, setups: list[Setup], *_: Any, **__: Any) -> list[Reading]:
        given.extend(setups)
        return [Reading(setup=each, seconds=[1.0]) for each in setups]

    monkeypatch.setattr(ablation, "on_ranks", measured)
    every = training_techniques(torch.bfloat16)
    found = comparisons(every, problem(), 1, "cpu")
    assert len(given) == len(set(given)) == len(every) + 1
    assert all(each.on.setup == each.technique.on and each.off.setup == each.technique.off for each in found)
