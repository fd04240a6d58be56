"""What tests of fine-tunings share: a minute model with parameters, and a training set."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from helixfold.model.presets import Preset
from helixfold.weights.checkpoint import save_checkpoint
from helixfold.weights.untrained import untrained_model
from tests.training.chain_stores import write_chains
from tests.training.finetune.runs import PRESET


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training set of six chains on disk."""
    return write_chains(tmp_path_factory.mktemp("chains"))


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parameters of a minute model."""
    return write_base(tmp_path_factory.mktemp("weights") / "minute.safetensors", PRESET, seed=3)


@pytest.fixture(scope="session")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("names") / "held_out.txt"
    path.write_text("0abc_A\n3abc_A\n")
    return path


def write_base(path: Path, preset: Preset, seed: int) -> Path:
    """Write random parameters of a model, as trained ones are written."""
    state = untrained_model(preset.model, seed).state_dict()
    save_checkpoint(path, state, preset.model.to_dict(), preset.without_model())
    return path


@pytest.fixture(autouse=True, scope="module")
def undrawn_curves() -> Iterator[None]:
    """Curves that are no pictures, which take most of the time of a short run; also of runs that tests share."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(
            "helixfold.training.finetune.finetuning.plot_curves", lambda _, path: path.write_bytes(b"\x89PNG")
        )
        yield
