"""Files and command lines of version 0.1 are still read.

The folder 0.1 holds what that version wrote (commit 931e89e): the feature store of examples/structures; a run of four
training steps of the preset `tiny` with the smallest widths, its last weights beside it; a prediction of peptide.a3m
with them; and, in options.json, an example of every option that it knew.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.parse.gemmi_chains import parse_pdb
from helixfold.cli.app import application
from helixfold.cli.main import main
from helixfold.model.config import ConfigError
from helixfold.training.config import TrainingConfig
from helixfold.training.presets import training_preset

HERE = Path(__file__).parent / "0.1"
# What tests/inventory/removed.toml lists.
REMOVED = (
    "layouts",
    "benchmark all",
    "benchmark data",
    "benchmark recompute",
    "benchmark layouts",
    "benchmark optimizer",
)
OPTIONS: dict[str, list[str]] = {
    command: options
    for command, options in json.loads((HERE / "options.json").read_text()).items()
    if not command.startswith(REMOVED)
}


@pytest.fixture
def earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the files of the earlier version."""
    shutil.copytree(HERE, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", OPTIONS)
def test_every_option_is_still_known(command: str) -> None:
    for option in OPTIONS[command]:
        words = [*command.split(), *option.split()]
        application(words[:2]).parse_args(words)


def predict(output: str, *words: str) -> int:
    settings = ["--weights", "weights.safetensors", "--num-recycles", "1", "--threads", "1"]
    return main(["predict", *settings, "--output", output, *words])


def test_a_prediction_counts_as_finished(earlier: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in (earlier / "predictions/peptide").iterdir()}
    assert predict("predictions", "peptide.a3m") == 0
    assert "peptide: finished before, skipped" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in before} == before
    assert predict("predictions", "peptide.a3m", "--num-recycles", "0") == 2
    assert "finished before with other settings (num_recycles 1, now 0)" in capsys.readouterr().err


def test_weights_and_features_give_the_same_prediction(earlier: Path) -> None:
    assert predict("again", "--features", "predictions") == 0
    before, after = earlier / "predictions/peptide", earlier / "again/peptide"
    assert {path.name for path in before.iterdir()} <= {path.name for path in after.iterdir()}
    for name in ("confidence_tiny.json", "pae_tiny.json"):
        old, new = (json.loads((folder / name).read_text()) for folder in (before, after))
        # Version 0.1 named the target by its directory only, and knew no complexes.
        later = {"target": "peptide", "iptm": None} if name == "confidence_tiny.json" else {}
        assert_alike(old | later if later else old, new, name)
    old, new = (parse_pdb((folder / "ranked_0.pdb").read_bytes()).chains[0] for folder in (before, after))
    assert np.ptp(old.atom_positions) > 1
    np.testing.assert_allclose(old.atom_positions, new.atom_positions, atol=2e-3)


def assert_alike(old: Any, new: Any, where: str) -> None:
    """Check that JSON values have the same fields, the same texts, and numbers equal to what their decimals allow."""
    if isinstance(old, dict | list):
        pairs = old.items() if isinstance(old, dict) else enumerate(old)
        assert len(old) == len(new), where
        for key, value in pairs:
            assert_alike(value, new[key], f"{where} {key}")
    elif isinstance(old, float):
        assert new == pytest.approx(old, rel=1e-3, abs=0.02), where
    else:
        assert new == old, where


def test_a_training_run_goes_on(earlier: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = TrainingConfig.from_dict(json.loads((earlier / "run/config.json").read_text())["config"]).flat()
    defaults = training_preset("tiny").flat()
    changed = {name: value for name, value in (stored | {"steps": 6}).items() if value != defaults[name]}
    settings = [word for name, value in changed.items() for word in ("--set", f"{name}={json.dumps(value)}")]
    assert main(["train", "peptides", "--held-out", "held_out.txt", "--output", "run", *settings]) == 0
    assert "resuming after 4 steps" in capsys.readouterr().err
    steps = [json.loads(line) for line in (earlier / "run/log.jsonl").read_text().splitlines()]
    losses = [line["losses"]["total"] for line in steps if line["type"] == "step"]
    # The last two are what version 0.1 itself reached.
    assert losses == pytest.approx([41.97189, 41.5896, 41.1591, 19.25666, 41.6492, 40.94221], rel=1e-4)


def test_a_config_without_later_settings_means_their_defaults() -> None:
    stored = json.loads((HERE / "run/config.json").read_text())["config"]
    del stored["loss"]["smooth_lddt"]
    assert TrainingConfig.from_dict(stored).loss.smooth_lddt == 0
    del stored["loss"]["violation"]
    with pytest.raises(ConfigError, match="missing settings \\['violation'\\]"):
        TrainingConfig.from_dict(stored)
