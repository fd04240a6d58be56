"""The ablation measures each technique, and finds each one whose results are wrong by a hundredth."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from data_pipeline.errors import InputError
from helixfold.benchmark import ablation
from helixfold.benchmark.ablation import Comparison, comparisons
from helixfold.benchmark.techniques import measure as measurement
from helixfold.benchmark.techniques import prediction, training
from helixfold.benchmark.techniques.exactness import deviations, faults, faults_of_lower_precision
from helixfold.benchmark.techniques.measure import Reading, judge, measure
from helixfold.benchmark.techniques.setups import (
    ALL_OPERATORS,
    KINDS,
    PredictionSetup,
    Setup,
    Technique,
    TrainingSetup,
    prediction_techniques,
    training_techniques,
)
from helixfold.benchmark.techniques.training import Problem, TrainingRun
from helixfold.cli.main import main
from helixfold.execution import recompute, recorded_passes, spilled
from helixfold.execution.nested import with_tensors_changed
from helixfold.execution.recorded_passes import nothing_recycled
from helixfold.execution.slabs import Slabs
from helixfold.losses.config import initial_training
from helixfold.model.outputs import Recycled
from helixfold.ops.adam import AdamStep
from helixfold.ops.card import CARDS
from helixfold.ops.dispatch import Backend, Op
from helixfold.parallel.collectives import Channel
from helixfold.parallel.gradients import Bucket, BucketReduction
from helixfold.parallel.launch import on_ranks
from helixfold.parallel.layout import Layout
from helixfold.parallel.mesh import Mesh
from helixfold.presets import tiny, with_parallel_blocks
from helixfold.training import recorded_gradients
from tests.support.forked_ranks import fork_ranks
from tests.support.operator_graphs import OperatorRecorder

FACTOR = 1.01
FLOAT32 = torch.float32


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a reading be one step, however short."""
    monkeypatch.setattr(measurement, "_LEAST_SECONDS", 0)


def problem() -> Problem:
    model = tiny().model
    return Problem(
        model=with_parallel_blocks(
            replace(
                model,
                evoformer=replace(model.evoformer, blocks=1),
                template=None,
                structure=replace(model.structure, layers=1),
            )
        ),
        losses=initial_training(),
        residues=8,
        rows=3,
        extra_rows=2,
        templates=0,
        recycles=0,
    )


def read(*setups: Setup) -> list[Reading]:
    return judge(Mesh.alone(), problem(), setups)


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


def test_all_techniques_have_right_results_on_one_rank() -> None:
    techniques = [*training_techniques(torch.bfloat16, 1, 1), *prediction_techniques(FLOAT32, 1)]
    setups = dict.fromkeys(setup for each in techniques for setup in (each.on, each.off))
    readings = read(*setups)
    assert [(reading.setup, reading.faults) for reading in readings if reading.faults] == []
    # The comparison is not of equal things: rounding differs between the setups, and is there in most.
    errors = {max(each.error for each in reading.deviations.values()) for reading in readings}
    assert len(errors) > len(readings) / 2
    assert {name for each in techniques[1:8] for name in each.off.plain} == ALL_OPERATORS
    assert all(each.on != each.off for each in techniques)


def test_replayed_passes_have_right_results_and_are_measured_where_there_are_graphs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorder = OperatorRecorder()
    for module in (training, prediction):
        monkeypatch.setattr(module, "GraphRecorder", lambda device: recorder)
    for name in ("ops.unmasked", "optim.flat"):
        monkeypatch.setattr(f"helixfold.{name}.card_of", lambda device: CARDS["h100"])
    setups: list[Setup] = []
    for make in (partial(training_techniques, processors=1), prediction_techniques):
        names = [[each.name for each in make(FLOAT32, 1, graphs=graphs)] for graphs in (False, True)]
        assert {*names[1]} - {*names[0]} == {"CUDA graphs"}
        setups += [each.on for each in make(FLOAT32, 1, graphs=True) if each.name == "CUDA graphs"]
    # A recorder of PyTorch's operators sees nothing that a CPU's kernels decide by values.
    readings = read(*(replace(setup, plain=ALL_OPERATORS) for setup in setups))
    assert [reading.faults for reading in readings] == [[], []]
    assert (recorder.launched, recorder.recorded, recorder.replayed) == (2, 2, 4)
    for module in (recorded_gradients, recorded_passes):
        monkeypatch.setattr(module, "nothing_recycled", something_recycled)
    assert all(reading.faults for reading in read(*setups))


def something_recycled(*given: Any) -> Recycled:
    zeros = nothing_recycled(*given)
    return with_tensors_changed(lambda each: torch.linspace(-5, 5, each.numel()).view_as(each).to(each), zeros)


# On a CPU the residual addition has no fused backend.
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "residual addition"])
def test_a_wrong_operator_is_found(kind: str, break_operators: Callable[[frozenset[str]], None]) -> None:
    on, off = (TrainingSetup(dtype=FLOAT32, plain=plain) for plain in (frozenset[str](), KINDS[kind]))
    break_operators(KINDS[kind])
    broken, right = read(on, off)
    assert broken.faults
    assert "allowed" in broken.faults[0]
    assert right.faults == []


def test_a_wrong_update_of_flat_buffers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = Op.choice

    def chosen(self: Op[..., Any], *args: Any, **kwargs: Any) -> Backend:
        found = choice(self, *args, **kwargs)
        if self.name != "fused_adam":
            return found

        def run(buffers: Any, gradient: Any, scale: Any, step: AdamStep) -> None:
            found.function(buffers, gradient, scale, replace(step, learning_rate=FACTOR * step.learning_rate))

        return Backend(name=found.name, run=run)

    monkeypatch.setattr(Op, "choice", chosen)
    flat, by_tensor = read(TrainingSetup(dtype=FLOAT32), TrainingSetup(dtype=FLOAT32, flat_optimizer=False))
    assert [fault.split()[0] for fault in flat.faults] == ["update"]
    assert by_tensor.faults == []


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
    total_loss = training.total_loss

    def loss(outputs: Any, *others: Any) -> Any:
        found = total_loss(outputs, *others)
        is_low = outputs.representations.pair.dtype == torch.bfloat16
        # Plain PyTorch in bfloat16 is what it is compared with, and right.
        return replace(found, total=FACTOR * found.total) if is_low and not broken_off else found

    broken_off: list[int] = []
    operators = training.operators

    def noted(plain: frozenset[str]) -> Any:
        broken_off[:] = [1] * (plain == ALL_OPERATORS)
        return operators(plain)

    monkeypatch.setattr(training, "total_loss", loss)
    monkeypatch.setattr(training, "operators", noted)
    low, exact = read(TrainingSetup(dtype=torch.bfloat16), TrainingSetup(dtype=FLOAT32))
    assert any(fault.startswith("loss") and fault.endswith("in bfloat16") for fault in low.faults)
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
    apply = prediction.NotInPlace.apply
    monkeypatch.setattr(
        prediction.NotInPlace, "apply", lambda self, *given, **named: apply(self, *given, **named).mul_(FACTOR)
    )
    on = PredictionSetup(dtype=FLOAT32)
    assert [bool(each.faults) for each in read(on, replace(on, way="slabs, not in place"))] == [False, True]


def test_a_wrong_spilled_stream_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    fetch = spilled.Lane.fetch

    def wrong_fetch(self: spilled.Lane, slot: int, part: slice) -> None:
        fetch(self, slot, part)
        if self._fetches:
            self._near[slot].mul_(FACTOR)

    monkeypatch.setattr(spilled, "LEAST_BYTES", 0)
    on = PredictionSetup(dtype=FLOAT32, way="spilled")
    assert read(on)[0].faults == []
    monkeypatch.setattr(spilled.Lane, "fetch", wrong_fetch)
    assert read(on)[0].faults


def _layouts(ranks: int) -> list[Setup]:
    setups: list[Setup] = []
    for each in (*training_techniques(FLOAT32, ranks, ranks), *prediction_techniques(FLOAT32, ranks)):
        setups += [each.on, each.off]
    return list(dict.fromkeys(setups))


BROKEN = ("nothing", "messages", "overlapped", "sums")


def _judged_setups(broken: str) -> list[Setup]:
    """All setups of two ranks, or those that need what is broken between ranks."""

    def needs(setup: Setup) -> bool:
        by_data = isinstance(setup, TrainingSetup) and setup.layout.dp > 1
        overlaps = isinstance(setup, TrainingSetup) and setup.reduction == "overlapped"
        return {
            "nothing": True,
            "messages": setup.layout.sharing > 1,
            "overlapped": by_data and overlaps,
            "sums": by_data and not overlaps,
        }[broken]

    return [each for each in _layouts(2) if needs(each)]


def _judged_in_ranks(mesh: Mesh) -> list[list[Reading]]:
    """Judge all setups of two ranks with one thing broken after another; this runs in the ranks."""
    found = []
    for broken in BROKEN:
        with pytest.MonkeyPatch.context() as patch:
            _break(broken, patch)
            found.append(judge(mesh, problem(), _judged_setups(broken)))
    return found


def _break(name: str, patch: pytest.MonkeyPatch) -> None:
    start, reduced, all_reduce = Channel.start, BucketReduction.reduced, Mesh.all_reduce

    def sent(self: Channel, kind: Any, tensor: torch.Tensor, root: int) -> Any:
        return start(self, kind, wrong(tensor) if tensor.is_floating_point() else tensor, root)

    def scaled(self: BucketReduction) -> Iterator[Bucket]:
        for bucket in reduced(self):
            bucket.values.mul_(FACTOR)
            yield bucket

    def summed(self: Mesh, tensor: torch.Tensor) -> None:
        all_reduce(self, tensor)
        if len(tensor) > 1 and self.size > 1:
            tensor.mul_(FACTOR)

    if name == "messages":
        patch.setattr(Channel, "start", sent)
    elif name == "overlapped":
        patch.setattr(BucketReduction, "reduced", scaled)
    elif name == "sums":
        patch.setattr(Mesh, "all_reduce", summed)


def test_wrong_messages_between_ranks_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fork_ranks(monkeypatch, tmp_path / "output")
    assert {setup.layout for setup in _layouts(2)} == {Layout(), Layout(dp=2), Layout(dap=2), Layout(bp=2)}
    for broken, readings in zip(BROKEN, on_ranks(2, _judged_in_ranks), strict=True):
        assert readings
        for setup, reading in zip(_judged_setups(broken), readings, strict=True):
            assert bool(reading.faults) == (broken != "nothing"), (broken, setup, reading.faults)


def test_ranks_are_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fork_ranks(monkeypatch, tmp_path / "output")
    axial = TrainingSetup(dtype=FLOAT32, layout=Layout(dap=2))
    setups = [axial, TrainingSetup(dtype=FLOAT32), PredictionSetup(dtype=FLOAT32, layout=Layout(dap=2))]
    readings = on_ranks(2, measure, problem(), setups, 2)
    assert [len(each.seconds) for each in readings] == [2, 2, 2]
    assert [each.sent > 0 for each in readings] == [True, False, True]
    assert all(each.moved and min(each.seconds) > 0 and each.faults == [] for each in readings)
    # Half of a sample takes less to compute than the whole, whatever the machine.
    assert (readings[0].moved or 0) < (readings[1].moved or 0)


@pytest.mark.parametrize(
    ("device", "ranks", "problem"),
    [("cuda", 3, "3 ranks need a GPU each, and there are 2"), ("cuda:1", 2, "give --device cuda instead of cuda:1")],
)
def test_every_rank_needs_a_gpu_of_its_own(
    device: str, ranks: int, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(InputError, match=problem):
        ablation._check_ranks([1, ranks], torch.device(device))
    ablation._check_ranks([1, 2], torch.device("cuda"))
    ablation._check_ranks([1], torch.device("cuda:1"))


def test_nothing_passes_for_a_result() -> None:
    true = {"loss": torch.tensor([1.0, 2.0])}
    missing = deviations({"loss": torch.tensor([torch.nan, 2.0])}, true)
    assert [*faults(missing)] == ["loss is off by nan, 1.0e-04 is allowed"]
    # Errors without direction may be large in low precision where plain PyTorch's are, a wrong length may not.
    noisy = deviations({"loss": torch.tensor([1.0 - 0.1, 2.0 + 0.05])}, true)
    assert [*faults_of_lower_precision(noisy, noisy)] == []
    longer = deviations({"loss": 1.01 * true["loss"]}, true)
    assert [*faults_of_lower_precision(longer, noisy)] == [
        "loss is too long or too short by 1.0e-02, 5.0e-03 is allowed"
    ]


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


def test_a_technique_gains_only_if_it_does_in_every_round() -> None:
    on, off = TrainingSetup(dtype=FLOAT32), TrainingSetup(dtype=FLOAT32, flat_optimizer=False)

    def comparison(without: list[float], memory: int, claim: Any = "time") -> Comparison:
        return Comparison(
            technique=Technique(name="it", claim=claim, on=on, off=off, otherwise="because"),
            ranks=1,
            on=Reading(setup=on, seconds=[1.0, 1.0], memory=100, moved=2**30),
            off=Reading(setup=off, seconds=without, memory=memory, faults=["loss is off"]),
        )

    assert comparison([1.1, 1.2], 100).gains
    assert not comparison([1.1, 0.9], 500).gains
    assert comparison([0.5, 0.5], 103, "memory").gains
    assert not comparison([2.0, 2.0], 101, "memory").gains
    lines = [*comparison([1.3, 0.9], 150).lines()]
    assert " ".join(lines[0].split()) == "it 1,000.0 1,100.0 1.10x (0.90-1.30) 0.0 0.0 1.50x 1.00 - 0.0 0.0"
    assert lines[1:] == ["    not faster here: because", "    WRONG, without: loss is off"]


def test_a_table_a_file_and_a_figure_are_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fork_ranks(monkeypatch, tmp_path / "output")
    sizes = ["--crop", "6", "--rows", "2", "--extra-rows", "2", "--blocks", "1", "--recycles", "0", "--repeats", "1"]
    files = ["--json", str(tmp_path / "a.json"), "--plot", str(tmp_path / "a.png")]
    command = ["benchmark", "ablation", *sizes, "--dtype", "float32", "--threads", "1"]
    assert main([*command, "--only", "flat", *files]) == 0
    printed = capsys.readouterr().out
    assert "tiny with 1 + 1 blocks, 6 residues, 2 + 4 rows, 2 extra rows, 0 recycles" in printed
    assert "flat buffers of the optimizer" in printed
    (row,) = json.loads((tmp_path / "a.json").read_text())["techniques"]
    assert row["technique"] == "flat buffers of the optimizer"
    assert row["with"]["seconds"][0] > 0
    assert row["without"]["setup"]["flat_optimizer"] == "False"
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert main([*command, "--only", "nothing like it"]) == 2
    assert "no technique has this in its name" in capsys.readouterr().err


def test_a_wrong_result_is_said_and_ends_with_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(ranks: int, function: Any, problem: Any, setups: list[Setup], *_: Any, **__: Any) -> list[Reading]:
        return [Reading(setup=each, seconds=[1.0], faults=["gradient is off by 0.01"]) for each in setups]

    monkeypatch.setattr(ablation, "on_ranks", measured)
    assert main(["benchmark", "ablation", "--repeats", "1", "--crop", "8"]) == 1
    assert "WRONG, with: gradient is off by 0.01" in capsys.readouterr().out


def test_comparisons_measure_each_setup_once(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Setup] = []

    def measured(ranks: int, function: Any, problem: Any, setups: list[Setup], *_: Any, **__: Any) -> list[Reading]:
        given.extend(setups)
        return [Reading(setup=each, seconds=[1.0]) for each in setups]

    monkeypatch.setattr(ablation, "on_ranks", measured)
    techniques = training_techniques(torch.bfloat16, 1, 1)
    found = comparisons(techniques, problem(), 1, 1, "cpu")
    assert len(given) == len(set(given)) == len(techniques) + 1
    assert all(each.on.setup == each.technique.on and each.off.setup == each.technique.off for each in found)
