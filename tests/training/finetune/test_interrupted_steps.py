"""Fine-tunings that are killed before or after any change of a file go on to the bits of unbroken ones."""

from pathlib import Path

import pytest
from jaxtyping import config

from tests.support.interruptions import check_kills, temporary_files
from tests.training.finetune.runs import jobs_file, result
from tests.training.ranks import finetune

pytestmark = pytest.mark.long

STEP = "helixfold.training.trainer:Trainer._make_step"
JOBS = ('name = "low"\nlearning_rate = 0.01', 'name = "heads"\nadapter = "heads"\nsteps = 1')


@pytest.fixture(autouse=True)
def shapes_checked_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "jaxtyping_disable", config.jaxtyping_disable)  # which the command changes


def test_fine_tunings_survive_a_kill_at_every_step(store: Path, weights: Path, held_out: Path, tmp_path: Path) -> None:
    jobs, output = jobs_file(tmp_path / "jobs.toml", store, held_out, JOBS), tmp_path / "out"
    words = ["--jobs", str(jobs), "--weights", str(weights), "--output", str(output), "--device=cpu"]

    def look(directory: Path) -> object:
        assert not temporary_files(directory)
        states = [line.split("\t")[:3:2] for line in (directory / "finetuning.tsv").read_text().splitlines()]
        return states, [result(directory / name) for name in ("low", "heads")]

    assert check_kills(output, lambda: finetune(words), look, work=STEP, limit=20) > 8
