"""Heads learn values of whole targets that follow from what the network makes of them, and nothing where none do."""

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from jaxtyping import config
from scipy import stats
from torch import Tensor

from data_pipeline.features.complexes.complex_input import ComplexInput
from data_pipeline.features.complexes.pipeline import target_features
from data_pipeline.features.complexes.target import ComplexTarget
from data_pipeline.io.errors import InputError
from data_pipeline.pipeline import Target
from helixfold.analysis.rank_scores import auc, roc, spearman, with_interval
from helixfold.cli.main import main
from helixfold.execution.slabs import Slabs
from helixfold.folding.api import predict
from helixfold.folding.model_input import batch_of, draw, model_input
from helixfold.folding.prediction import Prediction
from helixfold.model.alphafold import AlphaFold
from helixfold.model.outputs import Folded
from helixfold.results.lock import LOCK_FILE, locked_directory
from helixfold.training.finetune import task_command
from helixfold.training.finetune.adapted import base_file, load_base
from helixfold.training.finetune.settings import finetuning
from helixfold.training.finetune.task_command import (
    Task,
    TaskTraining,
    all_features,
    fit,
    head_features,
    loss_of,
    published_binder_head,
    with_frozen_network,
)
from helixfold.training.finetune.task_table import TaskRow, read_table
from helixfold.training.stopping import StopRequest
from helixfold.weights.adapters import WeightedAdapter
from tests.training.finetune.conftest import write_base
from tests.training.finetune.runs import PRESET
from tests.training.ranks import Ranks, finetune

# Targets of which a class is learnt.
COUNT = 24
LETTERS = list("ARNDCQEGHILKMFPSTWYV")


def sequences(count: int, seed: int = 0) -> list[str]:
    random = np.random.default_rng(seed)
    return ["".join(random.choice(LETTERS, random.integers(8, 13))) for _ in range(count)]


def table(path: Path, rows: list[tuple[str, str, float]], splits: list[str] | None = None) -> Path:
    header = "name,sequence,value" + (",split" if splits else "")
    lines = [f"{name},{sequence},{value:g}" for name, sequence, value in rows]
    lines = [f"{line},{split}" for line, split in zip(lines, splits, strict=True)] if splits else lines
    path.write_text("\n".join([header, *lines, ""]))
    return path


@pytest.fixture(autouse=True, scope="module")
def shapes_are_not_checked() -> Iterator[None]:
    """Shapes of the network are checked in other tests; here it runs a hundred times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "jaxtyping_disable", True)
        yield


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parameters of a model that predicts in a single pass."""
    return write_base(tmp_path_factory.mktemp("once") / "once.safetensors", replace(PRESET, num_recycles=0), seed=3)


@pytest.fixture(scope="module")
def labelled(once: Path) -> list[tuple[str, str, float]]:
    """Pairs of chains, and whether the network is surer than usual of where they stand to each other."""
    preset, path = base_file(None, once)
    model, found = load_base(preset, path, torch.device("cpu")).model().eval(), []
    pairs = zip(sequences(COUNT), sequences(COUNT, seed=1), strict=True)
    for number, chains in enumerate(":".join(pair) for pair in pairs):
        target = ComplexInput(target=ComplexTarget.of(f"t{number}", chains.split(":")))
        given = model_input(target_features(target), preset)
        with torch.no_grad():
            folded = model.fold(Slabs(), [batch_of([draw(given, preset, [0])], preset)])
            error = float(head_features(model, folded, torch.from_numpy(given.chain_index), "pae"))
        found.append((f"t{number}", chains, error))
    middle = float(np.median([error for *_, error in found]))
    return [(name, chains, float(error < middle)) for name, chains, error in found]


@pytest.mark.integration
@pytest.mark.parametrize(
    "is_shuffled", [False, pytest.param(True, marks=pytest.mark.long)], ids=["planted", "shuffled"]
)
def test_a_planted_class_is_learnt_and_shuffled_ones_are_not(
    is_shuffled: bool, labelled: list[tuple[str, str, float]], once: Path, tmp_path: Path
) -> None:
    values = [value for *_, value in labelled]
    if is_shuffled:
        np.random.default_rng(1).shuffle(values)
    rows = [(name, sequence, value) for (name, sequence, _), value in zip(labelled, values, strict=True)]
    file = table(tmp_path / "table.csv", rows)
    command = ["--table", str(file), "--task", "binder", "--weights", str(once), "--device=cpu"]
    assert main(["finetune", *command, "--adapter=heads", "--output", str(tmp_path / "out")]) == 0
    score = json.loads((tmp_path / "out" / "task.json").read_text())["scores"]["frozen network"]["auc"]
    if is_shuffled:
        assert score["low"] < 0.5 < score["high"]
    else:
        assert score["value"] >= 0.9


@pytest.mark.long
@pytest.mark.parametrize(("task", "head"), [("binder", "pae"), ("regression", "pair")])
def test_the_network_learns_with_the_head_and_its_changes_are_an_adapter(
    task: str, head: str, weights: Path, tmp_path: Path
) -> None:
    random = np.random.default_rng(2)
    chains = [f"{one}:{two}" for one, two in zip(sequences(6), sequences(6, seed=1), strict=True)]
    values = [float(n % 2) if task == "binder" else float(random.normal()) for n in range(6)]
    splits = [*("train" for _ in range(3)), *("test" for _ in range(2)), "predict"]
    rows = [(f"c{n}", chain, value) for n, (chain, value) in enumerate(zip(chains, values, strict=True))]
    file = table(tmp_path / "table.csv", rows, splits)
    output = tmp_path / "out"
    command = ["--table", str(file), "--task", task, "--head", head, "--weights", str(weights), "--device=cpu"]
    assert main(["finetune", *command, "--steps=3", "--learning-rate=0.01", "--output", str(output)]) == 0
    lines = [line.split("\t") for line in (output / "predictions.tsv").read_text().splitlines()]
    ways = ["frozen_network", "adapted_network"] + (["published_function_of_the_error"] if head == "pae" else [])
    assert lines[0] == ["name", "split", "value", *ways]
    assert [line[1] for line in lines[1:]] == splits
    assert lines[-1][2] == ""
    assert any(line[3] != line[4] for line in lines[1:])
    assert {path.name for path in output.iterdir()} == {
        "adapter.safetensors", "task_head.safetensors", "predictions.tsv", "task.json", "finetuning.html",
        "config.json", "checkpoints", LOCK_FILE,
    }  # fmt: skip
    (prediction,) = predict_with(output / "adapter.safetensors", weights)
    assert "The adapter adapter.safetensors" in prediction.notes[0]


def files_of(output: Path) -> dict[str, bytes]:
    """What a task came to, down to the last bit."""
    return {
        path.name: path.read_bytes() for path in sorted(output.iterdir()) if path.is_file() and path.name != LOCK_FILE
    }


@pytest.mark.long
def test_a_killed_task_goes_on_to_the_same_bits(weights: Path, tmp_path: Path) -> None:
    rows = [(f"c{n}", sequence, n % 3 + n / 10) for n, sequence in enumerate(sequences(6))]
    file = table(tmp_path / "table.csv", rows, ["train"] * 4 + ["test"] * 2)
    for name in ("unbroken", "killed"):
        output = tmp_path / name / "task"
        command = ["--table", str(file), "--weights", str(weights), "--device=cpu", "--output", str(output)]
        command += ["--steps=12", "--set=save_every=1", "--set=batch_size=1"]
        if name == "killed":
            with Ranks(1, tmp_path / "out.txt", finetune, command) as processes:
                while not (output / "checkpoints/step_00000002").exists():
                    assert not processes.wait(0.002), processes.printed()
            assert not (output / "task.json").exists()
        with Ranks(1, tmp_path / "out.txt", finetune, command) as processes:
            assert processes.finish() == [0], processes.printed()
    assert "resuming after " in (tmp_path / "out.txt").read_text()
    assert files_of(tmp_path / "killed/task") == files_of(tmp_path / "unbroken/task")


@pytest.mark.integration
def test_a_task_that_is_stopped_goes_on_and_one_that_ended_is_not_learnt_again(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [(f"c{n}", sequence, n / 10) for n, sequence in enumerate(sequences(5))]
    file, output = table(tmp_path / "table.csv", rows, ["train"] * 3 + ["test"] * 2), tmp_path / "out"
    command = ["finetune", "--table", str(file), "--weights", str(weights), "--device=cpu", "--output", str(output)]
    command += ["--steps=2", "--set=batch_size=1"]
    with locked_directory(output):
        assert main(command) == 2
    assert "out: another run is writing there (process" in capsys.readouterr().err
    with monkeypatch.context() as stopping:
        stopping.setattr(StopRequest, "is_requested", lambda _: True)
        assert main(command) == 143
    assert not (output / "task.json").exists()
    assert main(command) == 0
    first, before = capsys.readouterr(), files_of(output)
    assert "resuming after 1 step\n" in first.err
    unbroken = tmp_path / "unbroken" / output.name
    assert main([*command[:-4], "--output", str(unbroken), *command[-2:]]) == 0
    assert files_of(unbroken) == before
    capsys.readouterr()
    monkeypatch.setattr(TaskTraining, "run", None)
    assert main(command) == 0
    assert capsys.readouterr().out == first.out
    assert main([*command, "--rank=3"]) == 2
    assert "other settings (low_rank.alpha 8, now 6; low_rank.rank 4, now 3)" in capsys.readouterr().err
    table(file, rows[::-1], ["train"] * 3 + ["test"] * 2)
    assert main(command) == 2
    assert "begun before with other settings (another table)" in capsys.readouterr().err
    assert files_of(output) == before


@pytest.mark.integration
def test_only_consecutive_skipped_steps_stop_a_task(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = itertools.count()

    def loss(predicted: Tensor, *given: Any) -> Tensor:
        found = loss_of(predicted, *given)
        if predicted.dtype != torch.float32 or not found.requires_grad:  # of a fit
            return found
        return found * (math.nan if next(calls) in (0, 2) else 1)

    monkeypatch.setattr(task_command, "loss_of", loss)
    rows = [(f"c{n}", sequence, n / 10) for n, sequence in enumerate(sequences(5))]
    file = table(tmp_path / "table.csv", rows, ["train"] * 3 + ["test"] * 2)
    command = ["finetune", "--table", str(file), "--weights", str(weights), "--device=cpu"]
    settings = ["--steps=3", "--set=batch_size=1", "--set=max_skipped=2"]
    assert main([*command, "--output", str(tmp_path / "out"), *settings]) == 0
    assert next(calls) == 3


def predict_with(adapter: Path, weights: Path) -> list[Prediction]:
    return predict(
        Target(name="t", sequence="MKTAYIAK"), weights=weights, device="cpu", adapters=[WeightedAdapter(path=adapter)]
    )


def test_scores_are_those_of_their_definitions() -> None:
    random = np.random.default_rng(0)
    scores, labels = random.normal(size=40).round(1), random.random(40) < 0.4
    pairs = [(a, b) for a in scores[labels] for b in scores[~labels]]
    by_pairs = np.mean([(a > b) + 0.5 * (a == b) for a, b in pairs])
    assert float(auc(scores, labels)) == pytest.approx(by_pairs)
    false, true = roc(scores, labels)
    assert float(np.trapezoid(true, false)) == pytest.approx(by_pairs)
    assert (false[0], true[0], false[-1], true[-1]) == (0, 0, 1, 1)
    other = scores + random.normal(size=40)
    assert float(spearman(scores, other)) == pytest.approx(stats.spearmanr(scores, other).statistic)
    found = with_interval(auc, scores.tolist(), labels.tolist())
    assert found is not None
    assert found.low < found.value < found.high
    assert with_interval(auc, [1.0, 2.0], [True, True]) is None


def test_a_linear_value_and_a_class_are_fitted() -> None:
    numbers = torch.randn(200, 6, generator=torch.Generator().manual_seed(0)) * 3 + 1
    values = 2 * numbers[:, 0] - numbers[:, 3] + 5
    head = fit(numbers[:150], values[:150], "regression")
    with torch.no_grad():
        assert float((head(numbers[150:]) - values[150:]).abs().max()) < 0.5
    labels = (values > values.median()).float()
    head = fit(numbers[:150], labels[:150], "classification")
    with torch.no_grad():
        assert float(auc(head(numbers[150:]).numpy(), labels[150:].numpy() > 0)) > 0.97


@pytest.mark.integration
def test_a_head_is_fitted_to_the_rows_to_learn_from_alone() -> None:
    random = np.random.default_rng(0)
    rows = [
        TaskRow(name=f"c{n}", sequence="MK", value=float(random.integers(2)), split="test" if n % 3 == 0 else "train")
        for n in range(30)
    ]
    config = finetuning(PRESET, "heads")
    task = Task(kind="classification", reads="single", rows=rows, inputs=[], preset=PRESET, config=config)
    numbers = torch.from_numpy(random.normal(size=(30, 40))).float()
    learnt = with_frozen_network(task, numbers)
    train = task.of("train")
    assert torch.equal(learnt.head.weight, fit(numbers[train], task.values(train), "classification").weight)


def test_what_heads_read_of_a_complex_is_between_its_chains() -> None:
    pair = torch.randn(1, 5, 5, 3, generator=torch.Generator().manual_seed(0))
    folded = cast(Folded, SimpleNamespace(representations=SimpleNamespace(pair=pair, single=pair[:, 0])))
    model = cast(AlphaFold, None)
    between = torch.cat([pair[0, :2, 2:].reshape(-1, 3), pair[0, 2:, :2].reshape(-1, 3)])
    for chains, read in (([0, 0, 1, 1, 1], between), ([0] * 5, pair.reshape(-1, 3))):
        found = head_features(model, folded, torch.tensor(chains), "pair")
        torch.testing.assert_close(found, torch.cat([read.mean(0), read.std(0, correction=0)]))
    found = head_features(model, folded, torch.zeros(5, dtype=torch.int64), "single")
    torch.testing.assert_close(found, torch.cat([pair[0, 0].mean(0), pair[0, 0].std(0, correction=0)]))


@pytest.mark.integration
def test_a_head_reads_the_last_of_all_recycling_iterations(weights: Path) -> None:
    """Without an alignment, and with nothing masked, every iteration reads the same sample."""
    given = model_input(target_features(Target(name="t", sequence="MKTAYIAK")), PRESET)
    preset, path = base_file(None, weights)
    model, batch = (
        load_base(preset, path, torch.device("cpu")).model().eval(),
        batch_of([draw(given, PRESET, [0])], PRESET),
    )
    row, previous = TaskRow(name="t", sequence="MKTAYIAK", value=1.0, split="train"), None
    for count in range(3):
        with torch.no_grad():
            folded = model.fold(Slabs(), [batch], previous)
        config = finetuning(replace(PRESET, num_recycles=count), "heads")
        task = Task(kind="regression", reads="single", rows=[row], inputs=[given], preset=PRESET, config=config)
        (found,) = all_features(task, model, torch.device("cpu"), "network")
        single = folded.representations.single[0]
        expected = torch.cat([single.mean(0), single.std(0, correction=0)])
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        previous = folded.recycled()


def test_the_published_function_falls_with_the_error() -> None:
    """Its middle is an error of 8.04 Angstrom, which is 0.804 of its units."""
    with torch.no_grad():
        low, middle, high = published_binder_head()(torch.tensor([[0.3], [0.804], [2.0]])).sigmoid().tolist()
    assert low > 0.95
    assert middle == pytest.approx(0.5, abs=1e-5)
    assert high < 0.01


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("name,sequence\na,MK\n", "regression", "value"),
        ("name,sequence,value\na,MK,x\n", "regression", "line 2: value must be a number, got 'x'"),
        ("name,sequence,value\na,MK,nan\n", "regression", "value must be a number, got 'nan'"),
        ("name,sequence,value\na,MK,2\n", "classification", "value must be one of 0, 1, false"),
        ("name,sequence,value\na,MK,1\na,MK,1\n", "classification", "'a' is also in line 2"),
        ("name,sequence,value\n,MK,1\n", "classification", "has no name"),
        ("name,sequence,value\na,MK,1\n", "binder", "two or more chains"),
        ("name,sequence,value,split\na,MK,1,some\n", "regression", "split must be train, test or predict"),
        ("name,sequence,value,split\na,MK,1,train\nb,MK,2,train\n", "regression", "has 0 rows held out"),
        ("name,sequence,value,split\na,MK,1,train\n", "regression", "has 1 row to learn from"),
        (
            "name,sequence,value,split\na,MK,1,train\nb,MK,1,train\nc,MK,1,test\nd,MK,1,test\n",
            "regression",
            "all rows to learn from have the value 1",
        ),
    ],
)
def test_a_wrong_table_is_refused_in_one_sentence(text: str, kind: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_table(path, kind)  # type: ignore[arg-type]
    assert message in str(error.value), str(error.value)
