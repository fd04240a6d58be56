"""`helixfold finetune` trains what `predict --adapter` and `weights merge` take, for the parameters it began with."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from data_pipeline.io.errors import InputError
from data_pipeline.pipeline import Target
from helixfold.cli.main import main
from helixfold.folding.api import predict
from helixfold.results.training_log import LOG_FILE, read_log
from helixfold.training.finetune.result import FinetuningResult, TargetScores, read_result
from helixfold.training.stopping import StopRequest
from helixfold.weights.adapters import WeightedAdapter, read_adapter
from helixfold.weights.find import find_models
from helixfold.weights.load import load_weights
from tests.training.finetune.conftest import write_base
from tests.training.finetune.runs import PRESET, adapters, result, words

MODEL = PRESET.model


USUAL = ("--learning-rate=0.01", "--targets=evoformer.*")


@pytest.fixture(scope="module")
def command(store: Path, weights: Path, held_out: Path) -> Callable[..., list[str]]:
    """The words of a run of low-rank changes in a directory."""

    def words_of(output: Path, *more: str) -> list[str]:
        return ["finetune", *words(store, weights, output, f"--held-out={held_out}", *USUAL, *more)]

    return words_of


@pytest.fixture(scope="module")
def run(command: Callable[..., list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of low-rank changes."""
    output = tmp_path_factory.mktemp("runs") / "lora"
    assert main(command(output)) == 0
    return output


def test_a_run_leaves_an_adapter_with_its_card_and_a_page_of_each_target(run: Path, weights: Path) -> None:
    assert {path.name for path in run.iterdir()} >= {"adapter.safetensors", "finetuning.json", "finetuning.html"}
    adapter, found = read_adapter(run / "adapter.safetensors"), read_result(run)
    assert found is not None
    assert [target.name for target in found.targets] == ["0abc_A", "3abc_A"]
    assert adapter.card.base_name == weights.name
    assert adapter.card.training["held_out"] == ["0abc_A", "3abc_A"]
    assert adapter.card.training["seed"] == 0
    assert adapter.card.scores["lddt_ca"]["change"].keys() == {"mean", "low", "high"}
    assert all(tensor.abs().max() > 0 for name, tensor in adapter.tensors.items() if name.endswith("lora_b"))
    page = (run / "finetuning.html").read_text()
    assert all(target.name in page for target in found.targets)
    assert "CA-lDDT before" in page
    assert "data:image/png" in page


def test_a_change_is_that_from_before_to_after() -> None:
    targets = tuple(
        TargetScores(name=str(n), residues=9, before={"lddt_ca": 0.1 * n}, after={"lddt_ca": 0.1 * n + 0.2})
        for n in range(3)
    )
    found = FinetuningResult(
        name="x", adapter="lora", base="b", base_sha256="", steps=1, best_step=1, skipped=0, targets=targets
    )
    change = found.change("lddt_ca")
    assert change is not None
    assert (change.value, change.low, change.high) == pytest.approx((0.2, 0.2, 0.2))


def test_the_adapter_is_of_the_best_step(run: Path) -> None:
    found = read_result(run)
    assert found is not None
    assert found.best_step in (2, 4)
    best, own = (read_adapter(run / name).tensors for name in ("weights/best.safetensors", "adapter.safetensors"))
    assert all(torch.equal(best[name], tensor) for name, tensor in own.items())


def test_the_last_lines_name_the_adapters_and_the_command_that_predicts(
    run: Path, command: Callable[..., list[str]], weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = read_result(run)
    assert found is not None
    assert main(command(run)) == 0
    assert capsys.readouterr().out.splitlines()[-3:] == [
        f"best adapter, of step {found.best_step}: {run}/weights/best.safetensors",
        f"last adapter: {run}/weights/last.safetensors",
        f"to predict: helixfold predict FILE --weights {weights} --adapter {run}/adapter.safetensors",
    ]


def test_predictions_with_an_adapter_differ_and_name_it(run: Path, weights: Path) -> None:
    target = Target(name="short", sequence="MKTAYIAK")
    adapter = run / "adapter.safetensors"
    (plain,), (twice,), (none,) = (
        predict(
            target, weights=weights, device="cpu", adapters=[WeightedAdapter(path=adapter, weight=each)] * (each > 0)
        )
        for each in (0.0, 2.0, 0.5)
    )
    assert plain.notes == ()
    assert "The adapter adapter.safetensors (SHA-256 " in twice.notes[0]
    assert twice.notes[0].endswith("with weight 2.")
    assert not torch.equal(*(torch.tensor(each.protein.atom_positions) for each in (plain, twice)))
    assert none.notes[0].endswith("with weight 0.5.")


def test_adapters_add_up_each_times_its_weight(run: Path, weights: Path) -> None:
    adapter = run / "adapter.safetensors"
    base = load_weights(weights, MODEL)

    def merged(*weighted: float) -> dict[str, torch.Tensor]:
        each = [WeightedAdapter(path=adapter, weight=weight) for weight in weighted]
        return find_models([], weights, seed=0, adapters=each)[0].network.state_dict()

    one, both, none = merged(1.0), merged(0.25, 0.5), merged(1.0, -1.0)
    changed = [name for name in base if not torch.equal(one[name], base[name])]
    assert changed
    assert all(name.startswith("evoformer.") and name.endswith("weight") for name in changed)
    for name in base:
        torch.testing.assert_close(both[name], base[name] + 0.75 * (one[name] - base[name]), rtol=0, atol=1e-6)
        torch.testing.assert_close(none[name], base[name], rtol=0, atol=1e-6)
    digests = {
        find_models([], weights, seed=0, adapters=[WeightedAdapter(path=adapter, weight=w)])[0].digest for w in (1, 2)
    }
    assert len(digests) == 2


@pytest.mark.parametrize("suffix", [".npz", ".pt", ".safetensors"])
def test_merged_parameters_are_those_that_predict_uses(suffix: str, run: Path, weights: Path, tmp_path: Path) -> None:
    target, adapter = tmp_path / f"merged{suffix}", run / "adapter.safetensors"
    assert main(["weights", "merge", str(weights), str(target), "--adapter", str(adapter)]) == 0
    expected = find_models([], weights, seed=0, adapters=[WeightedAdapter(path=adapter)])[0].network.state_dict()
    found = load_weights(target, MODEL)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_an_adapter_of_other_parameters_is_refused_in_one_sentence(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_base(tmp_path / "other.safetensors", PRESET, seed=4)
    command = ["weights", "merge", str(other), str(tmp_path / "x.npz"), "--adapter", str(run / "adapter.safetensors")]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "was trained on the parameters minute.safetensors" in said
    assert "does not fit other.safetensors" in said
    assert not (tmp_path / "x.npz").exists()
    with pytest.raises(InputError, match="cannot be added to the random parameters"):
        find_models(["tiny"], None, seed=0, adapters=[WeightedAdapter(path=run / "adapter.safetensors")])


@pytest.mark.parametrize("adapter", ["heads", "full"])
def test_heads_or_all_parameters_may_be_trained(
    adapter: str, command: Callable[..., list[str]], weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / adapter
    assert main(command(output, "--adapter", adapter)) == 0
    found = read_result(output)
    assert found is not None
    # No evaluation says which heads are best, so the last ones are taken.
    evaluation = {record.step + 1: record for record in read_log(output / LOG_FILE).evaluations}[found.best_step or 4]
    assert (found.best_step is None) == (adapter == "heads")
    for target, chain in zip(found.targets, evaluation.chains, strict=True):
        assert target.after == {name: chain[name] for name in TargetScores.SCORES}
    base = load_weights(weights, MODEL)
    if adapter == "full":
        state = load_weights(output / "weights/best.safetensors", MODEL)
        assert not (output / "adapter.safetensors").exists()
    else:
        file = WeightedAdapter(path=output / "adapter.safetensors")
        state = find_models([], weights, seed=0, adapters=[file])[0].network.state_dict()
        assert all(name.startswith("heads.") for name in read_adapter(file.path).tensors)
    options = f"--weights {weights} --adapter {output}/adapter.safetensors"
    if adapter == "full":
        options = f"--weights {output}/weights/best.safetensors"
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == f"to predict: helixfold predict FILE {options}"
    assert any(line.startswith("best ") for line in printed) == (adapter == "full")
    changed = {name for name in base if not torch.equal(state[name], base[name])}
    assert changed
    assert all(name.startswith("heads.") for name in changed) == (adapter == "heads")
    assert adapters(output)


def test_a_run_ends_when_held_out_targets_are_no_better(
    store: Path, weights: Path, held_out: Path, tmp_path: Path
) -> None:
    """A learning rate of nearly 0 changes no score, and equal scores are not better."""
    more = [f"--held-out={held_out}", "--learning-rate=1e-30", "--set=evaluation.patience=2"]
    command = ["finetune", *words(store, weights, tmp_path / "run", *more, steps=40)]
    assert main(command) == 0
    found = read_result(tmp_path / "run")
    assert found is not None
    assert (found.best_step, found.steps) == (2, 6)
    assert all(target.after == target.before for target in found.targets)
    before = result(tmp_path / "run")
    assert main(command) == 0
    assert result(tmp_path / "run") == before


def test_a_run_that_was_stopped_goes_on_to_the_same_bits(
    run: Path, command: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = command(tmp_path / "lora")
    with monkeypatch.context() as stopping:
        stopping.setattr(StopRequest, "is_requested", lambda _: True)
        assert main(again) == 143
    assert not (tmp_path / "lora/adapter.safetensors").exists()
    assert main(again) == 0
    assert result(tmp_path / "lora") == result(run)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--rank=3", "begun before with other settings (low_rank.alpha 8, now 6; low_rank.rank 4, now 3)"),
        ("--adapter=heads", "adapter lora, now heads"),
        (
            "--learning-rate=0.02",
            "begun before with other settings (optimizer.learning_rate 0.01, now 0.02)",
        ),
    ],
)
def test_a_run_does_not_go_on_with_other_settings(
    more: str, message: str, run: Path, command: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    before = result(run)
    assert main(command(run, more)) == 2
    assert message in capsys.readouterr().err
    assert result(run) == before


def test_wrong_input_is_one_sentence_and_writes_nothing(
    store: Path, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "run"
    for command, message in (
        (["--output", str(output)], "pass exactly one of a training set"),
        ([str(store)], "pass --output"),
        ([str(store), "--output", str(output), "--model", "tiny"], "has random parameters; pass trained ones"),
        (words(store, weights, output, "--targets=nothing*"), "no linear map has a name like"),
        (words(store, weights, output, "--rank=0"), "--rank: must be a whole number from 1 to"),
        (words(store, weights, output, "--set=stepz=2"), "unknown setting 'stepz'"),
        (words(store, tmp_path / "no.npz", output), "no such file"),
    ):
        assert main(["finetune", *command]) == 2
        said = capsys.readouterr().err
        assert message in said, said
        assert said.count("\n") == 1
    assert not output.exists()


def test_settings_and_the_forecast_are_shown_without_a_run(weights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["finetune", "--weights", str(weights), "--show-settings", "--rank", "8"]) == 0
    shown = capsys.readouterr().out
    assert "low_rank.rank=8\n" in shown
    assert "low_rank.alpha=16.0\n" in shown
    assert "run.optimizer.learning_rate=0.00025\n" in shown
    assert "run.evaluation.patience=5\n" in shown
    assert main(["finetune", "--weights", str(weights), "--show-settings", "--adapter", "heads"]) == 0
    assert "run.evaluation.patience=None\n" in capsys.readouterr().out
    assert main(["finetune", "--weights", str(weights), "--dry-run", "--set=example.crop_size=16"]) == 0
    assert "of a full fine-tuning" in capsys.readouterr().out


def test_a_changed_network_starts_from_the_file_and_what_is_named_is_new(
    store: Path, weights: Path, held_out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = MODEL.evoformer.blocks
    more = [f"--held-out={held_out}", f"--set=model.evoformer.blocks={blocks + 1}", "--adapter=full"]
    new = f"--new-parameters=evoformer.blocks.{blocks}.*"
    assert main(["finetune", *words(store, weights, tmp_path / "none", *more, steps=2)]) == 2
    assert main(["finetune", *words(store, weights, tmp_path / "run", *more, new, steps=2)]) == 0
    told = capsys.readouterr().err
    assert f"starts from {sum(t.numel() for t in load_weights(weights, MODEL).values()):,} parameters of " in told
    assert f"new, with their initial values: evoformer.blocks.{blocks}.*" in told
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["began_with"]["new"] == [f"evoformer.blocks.{blocks}.*"]
    (ready,) = find_models([], tmp_path / "run" / "weights" / "last.safetensors", seed=0)
    assert ready.preset.model.evoformer.blocks == blocks + 1
    # The same network again: the run is finished, and not refused as another one.
    assert main(["finetune", *words(store, weights, tmp_path / "run", *more, new, steps=2)]) == 0


def test_new_parameters_that_an_adapter_does_not_train_are_an_error(
    store: Path, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = MODEL.evoformer.blocks
    more = [f"--set=model.evoformer.blocks={blocks + 1}", f"--new-parameters=evoformer.blocks.{blocks}.*"]
    for adapter in ("lora", "heads"):
        assert main(["finetune", *words(store, weights, tmp_path / "run", *more, f"--adapter={adapter}")]) == 2
        problem = f"--adapter {adapter} does not train the new parameter evoformer.blocks.{blocks}."
        assert problem in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
