"""Parameter files that are interrupted while they are written or fetched are whole or absent."""

from pathlib import Path

import pytest

from helixfold.model.presets import preset
from helixfold.weights.checkpoint import save_checkpoint
from helixfold.weights.files import convert
from helixfold.weights.load import load_weights
from helixfold.weights.untrained import untrained_model
from tests.support.interruptions import State, check_interruptions, check_kills, states
from tests.weights.server import Behaviour
from tests.weights.test_download import ARCHIVE, FILE, NAME, fetch

pytestmark = pytest.mark.integration

TINY = preset("tiny").model


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def download(directory: Path) -> int:
    return 0 if fetch(Behaviour(content=ARCHIVE), directory).read_bytes() == FILE else 1


def test_a_download_survives_a_kill_at_every_step(tmp_path: Path) -> None:
    directory = tmp_path / "parameters"
    assert check_kills(directory, lambda: download(directory), contents) > 4
    assert contents(directory).keys() == {NAME, "sha256.json"}


def test_ctrl_c_at_every_step_of_a_download_leaves_no_temporary_file(tmp_path: Path) -> None:
    directory = tmp_path / "parameters"

    def run() -> int:
        try:
            return download(directory)
        except KeyboardInterrupt:
            return 130

    check_interruptions(directory, run, contents)


@pytest.mark.parametrize("suffix", [".npz", ".pt", ".safetensors"])
def test_a_converted_file_is_the_old_or_the_new_one_whenever_it_is_interrupted(suffix: str, tmp_path: Path) -> None:
    old, new = (tmp_path / f"{name}.safetensors" for name in ("old", "new"))
    for seed, path in enumerate((old, new)):
        save_checkpoint(path, untrained_model(TINY, seed=seed).state_dict(), TINY.to_dict())
    target = tmp_path / "out" / f"converted{suffix}"
    target.parent.mkdir()
    convert(old, target, "tiny")
    before = State.of(target.parent, "before").content
    found = states(target.parent, lambda: convert(new, target, "tiny", overwrite=True))
    after = State.of(target.parent, "after").content
    assert before != after
    assert len(found) >= 2
    for state in found:
        assert state.without_temporary() in (before, after), state.label
    found[0].restore(target.parent)
    convert(new, target, "tiny", overwrite=True)
    expected, written = load_weights(new, TINY), load_weights(target, TINY)
    assert all((expected[name] == written[name]).all() for name in expected)
