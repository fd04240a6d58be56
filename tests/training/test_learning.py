"""It learns: one chain by heart, and in bfloat16 as in float32."""

from pathlib import Path

import numpy as np
import pytest
import torch

from data_pipeline.training_sets.store import FeatureStore
from helixfold.cli.main import main
from helixfold.results.training_log import read_log
from helixfold.training.config import TrainingConfig
from helixfold.training.evaluate import evaluate
from helixfold.training.presets import tiny
from helixfold.weights.find import find_models

STRUCTURES = Path(__file__).parents[2] / "examples/structures"


def train(structures: Path, directory: Path, *settings: str) -> tuple[FeatureStore, TrainingConfig, Path]:
    """Train on these structures; the training set, the settings and the run's directory."""
    store, run = directory / "store", directory / "run"
    assert main(["features", "--structures", str(structures), "--output", str(store)]) == 0
    arguments = [argument for setting in settings for argument in ("--set", setting)]
    assert main(["train", str(store), "--output", str(run), "--device", "cpu", *arguments]) == 0
    return FeatureStore.open(store), tiny().with_settings(settings), run


@pytest.mark.long
@pytest.mark.parametrize("source", ["ideal", "real"])
def test_one_protein_is_learnt_by_heart_with_all_losses_on(
    source: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if source == "ideal":
        path = STRUCTURES / "strand_helix.pdb"
    else:
        (path,) = (request.getfixturevalue("real_data") / "train_mmcif").glob("1bjp_A*")
    structures = tmp_path / "structures"
    structures.mkdir()
    (structures / path.name).write_bytes(path.read_bytes())
    store, config, run = train(
        structures, tmp_path, "steps=2500", "batch_size=1", "optimizer.learning_rate=2e-3", "save_every=2500",
        "example.max_passes=1",
    )  # fmt: skip
    weights = [getattr(config.loss, name) for name in ("backbone_fape", "sidechain_fape", "torsion", "violation")]
    assert all(weight > 0 for weight in weights)
    (model,) = find_models([], run / "weights/last.safetensors", seed=0)
    (scores,) = evaluate(
        model.network, store, [store.entries[0].name], example=config.example, loss=config.loss,
        config=config.evaluation.with_settings(["num_recycles=0"]), dtype=torch.float32, device=torch.device("cpu"),
        structures=run,
    )  # fmt: skip
    print(f"{scores.name}: CA-lDDT {scores.lddt_ca:.3f}, all atoms {scores.lddt:.3f}, TM {scores.tm_score:.3f}")
    assert scores.lddt_ca >= 0.90


@pytest.mark.long
def test_bfloat16_training_follows_float32_as_one_seed_follows_another(tmp_path: Path) -> None:
    curves = {}
    for name, settings in {
        "float32": ("seed=0", "dtype=float32"),
        "bfloat16": ("seed=0", "dtype=bfloat16"),
        "another seed": ("seed=1", "dtype=float32"),
    }.items():
        *_, run = train(STRUCTURES, tmp_path / name, "steps=300", "batch_size=4", "save_every=300", *settings)
        losses = np.array([step.losses["weighted"] for step in read_log(run / "log.jsonl").steps])
        curves[name] = losses.reshape(-1, 20).mean(1)
        print(name, curves[name].round(3).tolist())
    distance = {name: np.abs(curves[name] / curves["float32"] - 1)[5:].mean() for name in ("bfloat16", "another seed")}
    print(distance)
    assert distance["bfloat16"] <= distance["another seed"]
