"""Choices from given costs of the parts of a pass, worked out by hand; other tests of planning count real passes."""

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from helixfold.execution.recompute import Keep, RecomputeConfig
from helixfold.model.config import ConfigError
from helixfold.model.presets import preset, tiny
from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.parallel.mesh import Layout, Mesh
from helixfold.planning import estimate as subject
from helixfold.planning import layouts, machines
from helixfold.planning.estimate import (
    Device,
    Prediction,
    PredictionEstimate,
    Seconds,
    Training,
    TrainingEstimate,
    estimate,
)
from helixfold.planning.layouts import axial_summary, best, choose_layout, predict, table
from helixfold.planning.links import Line, Links
from helixfold.planning.machines import MACHINES, Machine, Rates, Readings
from helixfold.planning.memory import FeatureRows, MemoryOptions
from helixfold.planning.passes import PARTS, Direction, PartCost, prepared_product_memory
from helixfold.planning.size import PassSize

GIB = 2**30
SIZE = PassSize(residues=64, msa_rows=8, extra_rows=16, templates=0, dtype=torch.float32)
NONE, AUTO = RecomputeConfig.everywhere("none"), RecomputeConfig.everywhere("auto")
# GiB that a part keeps with the policy "block", and the products of its forward pass.
KEPT = {"evoformer": 100, "extra_msa": 50, "template": 10, "structure": 5}
PRODUCTS = {"evoformer": 100e6, "extra_msa": 20e6, "template": 4e6, "structure": 5e6}
TIMES: Mapping[Keep | None, int] = {"none": 4, "operators": 3, "inputs": 2, "block": 1, None: 0}


def costs(
    model: object, size: PassSize, keep: Keep | None, *_: object, branch_rank: int = 0, **__: object
) -> dict[str, PartCost]:
    """Costs that grow with the length; the second branch sends to the first, and operators are launched again."""
    share = size.residues * size.dtype.itemsize / (64 * 4)
    return {
        part: PartCost(
            kept=int(TIMES[keep] * KEPT.get(part, 0) * GIB * share),
            forward=Direction(products=int(PRODUCTS.get(part, 0)), moved=30, launches=7, messages=[("all_gather", 10)]),
            backward=Direction()
            if keep is None
            else Direction(
                products=2 * int(PRODUCTS.get(part, 0)),
                moved=50 if keep == "none" else 70,
                launches=11 + (keep == "operators"),
                messages=[("swap", 5)] * branch_rank,
            ),
        )
        for part in PARTS
    }


@pytest.fixture(autouse=True)
def given_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "part_costs", costs)
    monkeypatch.setattr(subject, "RESERVE", 1.0)
    monkeypatch.setattr(subject, "library_memory", lambda *_: 0)


def training(recompute: RecomputeConfig = NONE, **changes: Any) -> Training:
    return Training(model=tiny().model, size=SIZE, recompute=recompute, **changes)


def found_in(memory: int, work: Training, device_model: str = "h100") -> TrainingEstimate:
    """The estimate in so many GiB, beside what oneDNN takes."""
    device = DEVICE_MODELS[device_model]
    return estimate(work, Device(properties=device, memory=memory * GIB + prepared_product_memory(device)))


def test_what_is_kept_adds_up_and_the_state_counts_once() -> None:
    keep = RecomputeConfig(evoformer="block", extra_msa="none", template="inputs", structure="operators")
    assert found_in(0, training(keep, samples=2, state=7)).needed == 7 + 2 * (100 + 200 + 20 + 15) * GIB


@pytest.mark.parametrize(
    ("device_model", "memory", "changes"),
    [
        ("h100", 660, {}),
        # On a GPU "operators" computes nothing again, and of parts with as many launches the largest needs the least.
        ("h100", 659, {"evoformer": "operators"}),
        ("h100", 559, {"evoformer": "operators", "extra_msa": "operators"}),
        ("cpu", 660, {}),
        # On a CPU "operators" computes half of the forward pass again, "inputs" all of it and "block" half more.
        ("cpu", 655, {"template": "operators"}),
        ("cpu", 645, {"template": "inputs"}),
        ("cpu", 630, {"template": "block"}),
        ("cpu", 165, dict.fromkeys(KEPT, "block")),
        ("h100", 164, None),
    ],
)
def test_the_policy_that_computes_least_again_is_chosen(
    device_model: str, memory: int, changes: dict[str, Keep] | None
) -> None:
    found = found_in(memory, training(AUTO), device_model)
    assert found.fits == (changes is not None)
    # What needs the least is estimated where nothing fits.
    expected = dict.fromkeys(KEPT, "block") if changes is None else changes
    assert found.policy == replace(NONE, **expected)  # type: ignore[arg-type]


def test_settings_that_are_not_auto_stay() -> None:
    asked = RecomputeConfig(evoformer="none", extra_msa="auto", template="inputs", structure="auto")
    least = replace(asked, extra_msa="block", structure="block")
    for memory, fits in ((0, False), (400 + 50 + 20 + 5, True)):
        found = found_in(memory, training(asked))
        assert (found.policy, found.fits, found.needed) == (least, fits, (400 + 50 + 20 + 5) * GIB)
    assert found_in(0, training()).settled() == NONE


def test_what_would_fit_is_named() -> None:
    with pytest.raises(ConfigError) as raised:
        found_in(100, training(AUTO)).settled()
    text = str(raised.value)
    assert text.startswith("a training pass of 64 residues needs 165.0 GiB whatever is recomputed, and there are 100.0")
    # 38 residues would fit, too; the search ends within an eighth. Fewer extra rows take as much here.
    assert text.endswith("what would fit: dtype=bfloat16, or example.crop_size=36, or 165.0 GiB of memory")
    assert "bfloat16" not in found_in(80, training(AUTO)).problem


class Speeds:
    """Seconds of the parts together: 2 without gradients and 6 with them on the slower of two branches."""

    def seconds(self, work: object, properties: object, rank: int, keep: RecomputeConfig | None, part: str) -> float:
        return (1 + rank) * (1.0 if keep is None else 3.0) / len(PARTS)

    def optimizer(self, parameters: int) -> float:
        return parameters / 1000


def links(slope: float) -> Links:
    """Links that are of different speeds for each kind of message."""
    kinds = {"all_to_all": 1.0, "all_gather": 0.1, "all_reduce": 0.01, "reduce_scatter": 7.0}
    return Links(**{kind: Line(slope=slope * share) for kind, share in kinds.items()})


MACHINE = Machine(
    name="some",
    properties=DEVICE_MODELS["h100"],
    speeds=cast(Rates, Speeds()),
    memory=250 * GIB,
    per_node=2,
    near=links(0.1),
    far=links(1.0),
    overlaps=True,
)
WORK = training(samples=2, micro_batches=3, recycling_iterations=0.5, parameters=100)


def test_a_step_is_its_micro_batches_and_what_is_left_of_the_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "BUCKET_ELEMENTS", 25)
    monkeypatch.setattr(machines, "BETWEEN_BRANCHES", ("swap",))
    layout, parts = Layout(dp=2, bp=2, dap=2), len(PARTS)
    found = predict(WORK, layout, MACHINE)
    assert (found.samples_per_second, found.rank_seconds) == (
        pytest.approx(6 / found.seconds.total),
        pytest.approx(8 * found.seconds.total / 6),
    )
    # One rank has two micro-batches: 6 s with gradients and half of 2 s without. Both branches gather within a node,
    # 20 bytes in each part and direction; the slower one sends 10 bytes to another node, as an exchange.
    assert found.seconds.passes == pytest.approx(2 * 7)
    assert found.seconds.messages == pytest.approx(2 * parts * (1.5 * 20 * 0.01 + 10))
    # 400 bytes take 2 * 400 * 7 / 8 hundredths, of which two thirds of 6 s are hidden by the last backward pass.
    assert found.seconds.gradients == pytest.approx(7 - 4)
    assert found.seconds.optimizer == pytest.approx(0.1)
    assert (found.work.batch_size, found.idle, found.fits) == (6, 0, False)
    assert predict(WORK, layout, replace(MACHINE, overlaps=False)).seconds.gradients == pytest.approx(7)
    # Half of the bytes take less than the backward pass, but the last 100 are sent after it.
    small = predict(replace(WORK, parameters=50), layout, MACHINE)
    assert small.seconds.gradients == pytest.approx(1.75)
    # Four ranks that share a sample sum its gradients before they are clipped, in each micro-batch.
    clipped = predict(replace(WORK, clips_samples=True), layout, MACHINE)
    assert clipped.seconds.gradients == pytest.approx(3 + 2 * 6)
    alone = predict(replace(WORK, clips_samples=True), Layout(), MACHINE).seconds
    assert (alone.gradients, alone.passes) == (0, pytest.approx(3 * 3.5))
    assert predict(replace(WORK, micro_batches=1), layout, MACHINE).idle == 4


def test_the_fastest_policy_that_fits_is_predicted() -> None:
    work = replace(WORK, samples=1, recompute=replace(NONE, evoformer="auto", extra_msa="auto"))
    assert [each.evoformer for each in work.policies] == ["none", "operators", "inputs", "block"]
    assert [each.template for each in work.policies] == ["none"] * 4
    assert replace(work, recompute=NONE).policies == [NONE]
    for memory, keep, fits in ((660, "none", True), (659, "operators", True), (509, "inputs", True), (200, "block", 0)):
        found = predict(work, Layout(), replace(MACHINE, memory=memory * GIB))
        assert (found.policy.evoformer, found.fits) == (keep, fits)


def prediction(layout: Layout, total: float, *, memory: int = GIB, fits: bool = True, idle: int = 0) -> Any:
    """What tables and choices read of an estimate of six samples."""
    return SimpleNamespace(
        work=SimpleNamespace(layout=layout),
        policy=NONE,
        seconds=Seconds(passes=total / 4, gradients=total * 3 / 4),
        needed=memory,
        fits=fits,
        idle=idle,
        samples_per_second=6 / total,
        rank_seconds=layout.ranks * total / 6,
    )


def test_the_fastest_layout_that_fits_is_best_and_of_equals_the_one_that_shares_least() -> None:
    found = [
        prediction(Layout(dap=8), 1.0, fits=False, memory=3 * GIB),
        prediction(Layout(dp=2, dap=4), 2.0),
        prediction(Layout(dp=4, dap=2), 2.0),
        prediction(Layout(dp=8), 2.5, idle=2),
    ]
    assert best(found) is found[2]
    with pytest.raises(
        ConfigError, match=r"no layout of 8 ranks fits into memory: dp=1,bp=1,dap=8 needs the least, 3.0"
    ):
        best([found[0], prediction(Layout(dp=8), 1.0, fits=False, memory=4 * GIB)])
    with pytest.raises(ConfigError, match="more ranks than samples in a batch"):
        best([])
    header, *lines = table(found, Layout(dp=4, dap=2))
    assert header.split()[:2] == ["layout", "recompute"]
    assert [line[0] for line in lines] == [" ", " ", ">", " "]
    assert " ".join(lines[2].split()) == "> dp=4,bp=1,dap=2 none 2.000 3.00 2.67 1.0 yes 0 gradients 75%"
    assert lines[3].split()[-4:] == ["yes", "2", "gradients", "75%"]
    assert "no" in lines[0].split()


def test_the_degree_up_to_which_axial_parallelism_pays_is_said() -> None:
    one, two, four = (
        prediction(Layout(dp=8 // dap, dap=dap), seconds, idle=6 - dap)
        for dap, seconds in ((1, 3.0), (2, 2.0), (4, 2.5))
    )
    assert axial_summary([one, two, four]) == (
        "8 ranks: axial parallelism pays up to degree 2 (2.000 s a step, 2.67 rank-seconds a sample, 4 ranks idle; "
        "2.500 s at degree 4)"
    )
    assert axial_summary([prediction(Layout(dp=8), 3.0)]) == (
        "8 ranks: axial parallelism does not pay (3.000 s a step, 4.00 rank-seconds a sample without it)"
    )


def test_the_first_rank_chooses_a_layout_without_idle_ranks_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "measured_machine", lambda *_: MACHINE)
    found = [prediction(Layout(dp=4), 1.0, idle=1), prediction(Layout(dp=2, dap=2), 2.0)]
    monkeypatch.setattr(layouts, "predictions", lambda *_: found)
    first = cast(Mesh, SimpleNamespace(size=4, is_first=True, broadcast=lambda each: each))
    assert choose_layout(WORK, first, 0) == Layout(dp=2, dap=2)
    other = cast(Mesh, SimpleNamespace(size=4, is_first=False, broadcast=lambda _: ["dp=1,bp=2,dap=2", ""]))
    assert choose_layout(WORK, other, 0) == Layout(bp=2, dap=2)
    failing = cast(Mesh, SimpleNamespace(size=4, is_first=False, broadcast=lambda _: ["", "no layout"]))
    with pytest.raises(ConfigError, match="no layout"):
        choose_layout(WORK, failing, 0)
    found.pop()
    with pytest.raises(ConfigError, match="more ranks than samples in a batch"):
        choose_layout(WORK, first, 0)
    assert choose_layout(WORK, cast(Mesh, SimpleNamespace(size=1)), 0) == Layout()


def test_rates_take_the_longer_of_products_and_memory_and_every_launch() -> None:
    rates = Rates(product=1e6, memory=100.0, reached=0.5, call=1e-3)
    given, properties = training(samples=2), DEVICE_MODELS["h100"]
    # 20e6, and twice that backward, at 1e6 a second; launches are of the whole micro-batch.
    assert rates.seconds(given, properties, 0, NONE, "extra_msa") == pytest.approx(2 * 60 / 0.5 + 18e-3)
    assert rates.seconds(given, properties, 0, None, "extra_msa") == pytest.approx(2 * 20 / 0.5 + 7e-3)
    again = RecomputeConfig.everywhere("operators")
    assert rates.seconds(given, properties, 0, again, "extra_msa") == pytest.approx(2 * 80 / 0.5 + 19e-3)
    # Heads recompute nothing: 80 bytes at 100 a second.
    assert rates.seconds(given, properties, 0, again, "heads") == pytest.approx(2 * 0.8 / 0.5 + 18e-3)
    assert rates.optimizer(1000) == 400
    readings = Readings(passes={(Layout(bp=2), 1, NONE): {"heads": 3.0}}, parameter=0.25)
    assert readings.seconds(replace(given, layout=Layout(bp=2)), properties, 1, NONE, "heads") == 6
    assert readings.optimizer(8) == 2


def test_links_within_a_node_are_for_as_many_ranks_as_it_has() -> None:
    machine = MACHINES["h100"]
    assert (machine.links(8), machine.links(9)) == (machine.near, machine.far)
    # A megabyte over 80 % of 450 and of 50 GB/s.
    assert machine.near.at("all_gather", 1e6) == pytest.approx(20e-6 + 1e6 / 360e9)
    assert machine.far.at("swap", 1e6) == pytest.approx(40e-6 + 1e6 / 40e9)


@pytest.mark.parametrize(
    ("device", "dtype", "rate", "copies"),
    [("cpu", torch.float32, 1.0, True), ("cpu", torch.bfloat16, 0.4, True), ("cuda", torch.bfloat16, 0.2, False)],
)
def test_a_prediction_takes_its_work_divided_by_the_speed(
    device: str, dtype: torch.dtype, rate: float, copies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def work(_: object, size: PassSize) -> Direction:
        asked.append(size)
        return Direction(products=8 * 10**9, moved=4 * 10**8, launches=1000)

    monkeypatch.setattr(subject, "pass_work", work)
    monkeypatch.setattr(subject, "_product_rate", lambda *_: 1e9)
    monkeypatch.setattr(subject, "_copy_rate", lambda: 1e8)
    size = replace(SIZE, residues=48, dtype=dtype, ensemble=3, ranks=2)
    given = Prediction(model=tiny().model, size=size, recycling_iterations=5)
    at = Device(properties=DEVICE_MODELS["cpu" if device == "cpu" else "h100"], memory=0)
    found = PredictionEstimate(work=given, device=at, executor="whole").seconds
    # A pass of 64 residues is counted, of which one of 48 takes nine sixteenths.
    assert asked == [replace(SIZE, residues=64)]
    shorter = 9 / 16 / 2
    assert found == pytest.approx(5 * 3 * (8 * shorter / rate + 4 * shorter * copies + 1e-5 * 1000))
    published = PredictionEstimate(work=given, device=replace(at, rate=4e9), executor="whole").seconds
    assert published == pytest.approx(5 * 3 * (2 * shorter + 1e-5 * 1000))


def test_rates_are_of_the_second_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "mean_seconds", lambda action, times, *_: action() is not None and 0.5 * times)
    monkeypatch.setattr(subject, "_MATRIX_SIDES", {"cpu": 4})
    monkeypatch.setattr(subject, "_COPIED_ELEMENTS", 6)
    assert subject._product_rate.__wrapped__(torch.device("cpu"), torch.float32) == pytest.approx(2 * 64 / 1.5)
    assert subject._copy_rate.__wrapped__() == pytest.approx(2 * 24 / 1.5)


def test_rows_of_an_input_are_limited_by_model_and_target() -> None:
    used = preset("model_1_ptm")
    used = replace(used, sampling=replace(used.sampling, max_msa_clusters=8, max_extra_msa=20, max_templates=4))
    for rows, msa, extra in ((1, 1, 1), (8, 8, 1), (9, 8, 1), (10, 8, 2), (1000, 8, 20)):
        given = FeatureRows(residues=5, alignment=rows, templates=6)
        size = given.size(used, torch.bfloat16, ensemble=3, ranks=2)
        assert (size.msa_rows, size.extra_rows, size.templates) == (msa, extra, 4)
        assert (size.residues, size.dtype, size.ensemble, size.ranks) == (5, torch.bfloat16, 3, 2)
    complexes = preset("model_1_multimer_v3")
    assert FeatureRows(residues=5, alignment=9, templates=0).size(complexes, torch.float32).templates == 4
    limited = MemoryOptions(max_msa_rows=3, max_extra_rows=10**6).limited_preset(used).sampling
    assert (limited.max_msa_clusters, limited.max_extra_msa) == (3, 20)
