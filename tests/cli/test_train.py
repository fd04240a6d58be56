"""`helixfold train`: what is wrong is one sentence before anything is written; what it trains, `predict` uses."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.features.schema import Features
from data_pipeline.io.errors import InputError
from data_pipeline.io.file_lock import acquire_lock
from data_pipeline.training_sets.store import FeatureStore
from helixfold.cli.main import main
from helixfold.model.presets import preset
from helixfold.training import checkpoint
from helixfold.training.presets import TRAINING_PRESETS, training_preset
from helixfold.training.stopping import StopRequest
from helixfold.weights.checkpoint import save_checkpoint
from helixfold.weights.npz import open_npz
from helixfold.weights.transfer import initial_weights
from helixfold.weights.untrained import untrained_model

STRUCTURES = Path(__file__).parents[2] / "examples/structures"
SHORT = [
    "--set",
    "steps=2",
    "--set",
    "batch_size=1",
    "--set",
    "example.crop_size=12",
    "--set",
    "evaluation.max_residues=20",
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("set") / "store"
    assert main(["features", "--structures", str(STRUCTURES), "--output", str(path), "--workers", "1"]) == 0
    return path


@pytest.mark.usefixtures("undrawn")
def test_a_run_leaves_weights_that_predict_and_convert(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    held_out = ["--held-out", str(STRUCTURES / "held_out.txt")]
    assert main(["train", str(store), "--output", str(run), *SHORT, *held_out]) == 0
    assert capsys.readouterr().out.splitlines()[-3:] == [
        f"best weights, of step 2: {run}/weights/best.safetensors",
        f"last weights: {run}/weights/last.safetensors",
        f"to predict: helixfold predict FILE --weights {run}/weights/best.safetensors",
    ]
    assert {path.name for path in run.iterdir()} == {
        "checkpoints", "config.json", "curves.png", "log.jsonl", "structures", "tensorboard", "weights",
    }  # fmt: skip
    fasta = tmp_path / "short.fasta"
    fasta.write_text(">short\nMKTAYIAK\n")
    weights = run / "weights/last.safetensors"
    predict = [
        "predict",
        str(fasta),
        "--weights",
        str(weights),
        "--num-recycles",
        "0",
        "--output",
        str(tmp_path / "out"),
    ]
    assert main(predict) == 0
    remarks = (tmp_path / "out/short/ranked_0.pdb").read_text()
    assert "UNTRAINED" not in remarks
    assert "unrelaxed_tiny.pdb" in {path.name for path in (tmp_path / "out/short").iterdir()}
    assert main(["weights", "convert", str(weights), str(tmp_path / "params_tiny.npz")]) == 0
    with open_npz(tmp_path / "params_tiny.npz") as arrays:
        assert len(arrays.shapes) > 300
    capsys.readouterr()
    # And DeepMind's format is what a run may begin with.
    again = tmp_path / "again"
    assert (
        main(["train", str(store), "--output", str(again), *SHORT, "--weights", str(tmp_path / "params_tiny.npz")]) == 0
    )
    assert json.loads((again / "config.json").read_text())["weights"] == str(tmp_path / "params_tiny.npz")
    last = f"{again}/weights/last.safetensors"
    printed = capsys.readouterr().out.splitlines()
    assert printed[-2:] == [f"last weights: {last}", f"to predict: helixfold predict FILE --weights {last}"]
    assert not any(line.startswith("best") for line in printed)


@pytest.mark.usefixtures("undrawn")
def test_listed_chains_are_predicted_from_the_features_of_the_training_set(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, names = tmp_path / "set", [entry.name for entry in FeatureStore.open(store).entries[1:3]]
    shutil.copytree(store, own)
    (own / "held_out.txt").write_text("\n".join(names))
    options = ["--models", "tiny", "--num-recycles", "0", "--device", "cpu", "--output", str(tmp_path / "out")]
    assert main(["predict", "--features", str(own / "held_out.txt"), *options]) == 0
    assert sorted(path.parent.name for path in tmp_path.glob("out/*/ranked_0.pdb")) == sorted(names)
    for name in names:
        expected, _ = FeatureStore.open(store).load(name)
        found = Features.load(tmp_path / "out" / name / "features.npz").arrays()
        assert found.keys() == expected.arrays().keys()
        assert all(np.array_equal(found[key], array) for key, array in expected.arrays().items())
    (own / "held_out.txt").write_text("1xxx_A\n")
    capsys.readouterr()
    assert main(["predict", "--features", str(own / "held_out.txt"), *options]) == 2
    assert "held_out.txt, line 1: the feature store has no chain '1xxx_A'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--set", "optimiser.eps=1"], "'optimiser' could be one of model, example,"),
        (["--set", "steps"], "a setting is written name=value, got 'steps'"),
        (["--set", "steps=many"], "TrainingConfig.steps must be int, got 'many'"),
        (["--set", "batch_size=0"], "TrainingConfig.batch_size must be at least 1, got 0"),
        (["--set", "micro_batch=2"], "so micro_batch must be 1, got 2"),
        (["--set", "dtype=float16"], "dtype must be auto or float32 or bfloat16, got 'float16'"),
        (["--workers", "-1"], "--workers: must be a whole number from 0 to 1,024"),
        (["--held-out", "nowhere.txt"], "nowhere.txt"),
        (["--weights", "nowhere.npz"], "nowhere.npz"),
        (["--device", "tpu"], "unknown device 'tpu'"),
        (["--layout", "dp=2"], "layout dp=2,bp=1,dap=1 needs 2 ranks, got 1; these fit: dp=1,bp=1,dap=1"),
        (["--layout", "many"], "a layout must be like dp=16,bp=2,dap=2"),
        (["--timeout", "0"], "--timeout must be greater than 0 seconds, got 0"),
    ],
)
def test_wrong_input_is_one_sentence_and_writes_nothing(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    capsys.readouterr()
    assert main(["train", str(store), "--output", str(tmp_path / "run"), *arguments]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
    assert not any(tmp_path.iterdir())


def test_a_run_needs_a_training_set_and_a_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train"]) == 2
    assert "pass a training set and --output" in capsys.readouterr().err


def test_a_directory_of_other_things_is_left_alone(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.txt").write_text("x")
    assert main(["train", str(store), "--output", str(tmp_path)]) == 2
    assert "has files that are not from a training run" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_directory_that_another_run_writes_into_is_refused(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checkpoint, "LOCK_TIMEOUT", 0.0)
    checkpoints = tmp_path / "run/checkpoints"
    checkpoints.mkdir(parents=True)
    with acquire_lock(checkpoints / checkpoint.LOCK, "in use"):
        assert main(["train", str(store), "--output", str(tmp_path / "run"), *SHORT]) == 2
    assert "another run writes its checkpoints here; wait for it" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "run").rglob("*")] == ["checkpoints", checkpoint.LOCK]


def test_weights_of_another_model_are_refused(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = preset("tiny")
    other = chosen.model.with_settings(["structure.layers=3"])
    save_checkpoint(tmp_path / "w.safetensors", untrained_model(other, 0).state_dict(), other.to_dict())
    run = tmp_path / "run"
    assert main(["train", str(store), "--output", str(run), "--weights", str(tmp_path / "w.safetensors")]) == 2
    assert "structure.layers is 3 there and 4 here" in capsys.readouterr().err
    assert not run.exists()


def test_an_aligned_error_head_may_be_new(tmp_path: Path) -> None:
    chosen = preset("tiny").model
    headless = chosen.with_settings(["heads.aligned_error=false"])
    state = untrained_model(headless, 0).state_dict()
    save_checkpoint(tmp_path / "w.safetensors", state, headless.to_dict())
    initial = initial_weights(tmp_path / "w.safetensors", chosen)
    assert initial.state.keys() == state.keys()
    head = "heads.aligned_error.linear.weight, heads.aligned_error.linear.bias"
    known = sum(tensor.numel() for tensor in state.values())
    start = f"starts from {known:,} parameters of w.safetensors"
    assert initial.description("w.safetensors") == f"{start}; new, with their initial values: {head}"
    assert initial_weights(tmp_path / "w.safetensors", headless).description("w.safetensors") == start
    with pytest.raises(InputError, match=r"does not fit this model: .* new parameters with --new-parameters$"):
        initial_weights(tmp_path / "w.safetensors", chosen.with_settings(["c_s=32"]))


@pytest.mark.parametrize("name", TRAINING_PRESETS)
def test_settings_that_are_shown_can_be_set(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--preset", name, "--show-settings"]) == 0
    shown = capsys.readouterr().out.splitlines()
    config = training_preset(name)
    assert config.with_settings(shown) == config


def test_a_dry_run_chooses_for_a_card_that_is_not_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--preset", "finetuning", "--dry-run", "--device", "h200"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("508 + 4 + 5,120 rows, bfloat16; GiB at the peak")
    rows = {line.split()[0]: line.split() for line in lines[2:]}
    # Keeping everything takes more than the card has beside the reserve, and the choice takes less.
    assert float(rows["none"][-2]) > 139 / 1.05
    assert rows["none"][-1] == "no"
    assert rows["chosen"][:4] == ["chosen", "for", "139.0", "GiB:"]
    assert 0.7 * 139 < float(rows["chosen"][-4]) < 139 / 1.05
    assert main(["train", "--preset", "finetuning", "--dry-run", "--device", "h300"]) == 2


def test_a_dry_run_says_what_is_taken_and_needs_no_training_set(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["train", "--memory", "4GiB", "--set", "recompute.evoformer=auto"]
    assert main([*options, "--dry-run"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("one micro-batch, 1 x 64 residues, 8 + 4 + 16 rows, float32")
    assert shown[-1].startswith("chosen for 4.0 GiB: evoformer none")
    assert main(options) == 2
    assert "--memory requires --dry-run" in capsys.readouterr().err


@pytest.mark.usefixtures("undrawn")
def test_stages_of_a_recipe_follow_each_other_and_go_on(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = preset("tiny")
    assert tiny.model.template is not None
    starting = replace(tiny.model, template=replace(tiny.model.template, initial_frames=True))
    monkeypatch.setattr("helixfold.model.presets.small", lambda: replace(tiny, model=starting))
    output = tmp_path / "runs"
    words = ["train", str(store), "--recipe", "small", "--output", str(output), *SHORT, "--set", "example.max_passes=1"]
    with monkeypatch.context() as stopping:
        stopping.setattr(StopRequest, "is_requested", lambda _: True)
        assert main([*words, "--stages", "2"]) == 143
    # A stage starts from the final weights of the previous stage, not from intermediate ones.
    assert [path.name for path in output.iterdir()] == ["stage_1"]
    assert main([*words, "--stages", "1"]) == 0
    assert [path.name for path in output.iterdir()] == ["stage_1"]
    first = output / "stage_1/weights/last.safetensors"
    before = first.stat().st_mtime_ns
    assert main([*words, "--stages", "2"]) == 0
    assert first.stat().st_mtime_ns == before
    about = json.loads((output / "stage_2/config.json").read_text())
    assert about["weights"] == str(first)
    assert (output / "stage_2/weights/last.safetensors").is_file()
