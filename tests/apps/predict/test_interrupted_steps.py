"""Predictions that are interrupted before or after any change of a file go on to the files of an unbroken run."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jaxtyping import config

from data_pipeline.io import claims
from data_pipeline.protein import Hydrogens, Protein
from helixfold.apps.predict import relaxation, runner
from helixfold.relax.flaws import Flaws
from helixfold.relax.result import Relaxed
from helixfold.results.packed import PackedResults
from tests.apps.predict.commands import BAD, batch, predict
from tests.support.interruptions import State, check_interruptions, check_kills, spread, states
from tests.support.run_values import values

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("undrawn")]

FOLD = "helixfold.folding.planned:fold"
# Every directory of a run that searches, predicts, relaxes and archives.
OPTIONS = ("--num-seeds", "2", "--zip", "--models-to-relax", "best")


def shifted(protein: Protein, **_: object) -> Relaxed:
    """A relaxation that is no work, whose structure is another one than the predicted."""
    flaws = Flaws(residues=0, bonds=0, clashes=0, within=0)
    return Relaxed(
        protein=replace(protein, atom_positions=protein.atom_positions + np.float32(1)),
        hydrogens=Hydrogens(residue=np.zeros(0, int), names=(), positions=np.zeros((0, 3))),
        before=flaws,
        after=flaws,
        flawed=(),
        left_out=(),
        added=0,
        initial_energy=1.0,
        final_energy=0.0,
        rmsd=1.0,
        rmsd_held=0.0,
        freed=(),
        rounds=1,
        seconds=0.0,
        platform="CPU",
    )


@pytest.fixture(autouse=True)
def small_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No downloaded weights, shapes that are checked elsewhere, and relaxations that move all atoms together."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(relaxation, "installed", lambda: True)
    monkeypatch.setattr(relaxation, "relax", shifted)
    (tmp_path / "database.fasta").write_text(">relative\nMKTAYLAK\n")
    monkeypatch.setattr(config, "jaxtyping_disable", True)


Command = Callable[..., Callable[[], int]]


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Make a run into the output directory, with the options of a command."""

    def of(*options: str, targets: int = 1, code: int = 0, others: tuple[str, ...] = ()) -> Callable[[], int]:
        fasta = batch(tmp_path / f"{targets}.fasta", targets, *others)
        words = [str(fasta), "--database", str(tmp_path / "database.fasta"), *options]

        def run() -> int:
            ended = predict([*words, "--output", str(tmp_path / "out")], tmp_path / "log")
            return 0 if ended == code else ended

        return run

    return of


def test_searched_relaxed_and_archived_predictions_survive_a_kill_at_every_step(
    command: Command, tmp_path: Path
) -> None:
    count = check_kills(tmp_path / "out", command(*OPTIONS), values, work=FOLD)
    assert count > 8


def test_ctrl_c_at_every_step_leaves_no_temporary_file(command: Command, tmp_path: Path) -> None:
    check_interruptions(tmp_path / "out", command("--models-to-relax", "all", "--zip"), values, limit=60)


def test_slim_targets_survive_a_kill_at_every_step(command: Command, tmp_path: Path) -> None:
    check_kills(tmp_path / "out", command("--slim", "--zip", "--models-to-relax", "best"), values)
    assert not (tmp_path / "out" / "t00" / "features.npz").exists()


def test_files_of_colabfold_survive_a_kill_at_every_step(command: Command, tmp_path: Path) -> None:
    def without_log(output: Path) -> object:
        return {name: each for name, each in values(output).items() if name != "log.txt"}

    check_kills(tmp_path / "out", command("--output-format", "colabfold", "--zip"), without_log, limit=60)


def unpacked(output: Path) -> dict[str, Any]:
    """The values of all targets' files, wherever they are; each target must be in one archive or a directory."""
    copy = output.with_name("unpacked")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(output, copy)
    with PackedResults(copy) as found:
        assert not found.problems
        for name in found.names():
            found.restore(name)
    shutil.rmtree(copy / "packed", ignore_errors=True)
    return {"directories": sorted(path.name for path in output.iterdir() if path.is_dir()), **values(copy)}


@pytest.mark.parametrize("options", [(), ("--slim",)])
def test_packed_targets_survive_a_kill_at_every_step(
    options: tuple[str, ...], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "TARGETS", 2)
    run = command("--output-format", "packed", *options, targets=3)
    check_kills(tmp_path / "out", run, unpacked, work=None if options else FOLD, limit=60)


def test_more_predictions_of_packed_targets_survive_a_kill_at_every_step(command: Command, tmp_path: Path) -> None:
    assert command("--output-format", "packed", targets=2)() == 0
    run = command("--output-format", "packed", "--num-seeds", "2", targets=2)
    check_kills(tmp_path / "out", run, unpacked, work=FOLD, limit=60)


def test_ctrl_c_while_packing_leaves_no_temporary_file(command: Command, tmp_path: Path) -> None:
    check_interruptions(tmp_path / "out", command("--output-format", "packed"), unpacked, limit=60)


def test_a_failed_target_is_recorded_whenever_the_run_is_killed(command: Command, tmp_path: Path) -> None:
    run = command(targets=2, others=(BAD,), code=1)
    check_kills(tmp_path / "out", run, values, limit=60)
    assert (tmp_path / "out" / "failures.json").exists()


def test_results_of_other_settings_are_never_taken_for_those_of_a_killed_run(command: Command, tmp_path: Path) -> None:
    """Killed while it replaces a finished run, the run makes everything again."""
    output, other, own = tmp_path / "out", command("--seed", "3", *OPTIONS), command("--overwrite", *OPTIONS)
    assert other() == 0
    before = State.of(output, "before")
    shutil.rmtree(output)
    assert own() == 0
    fresh = without_searches(output)
    before.restore(output)
    check_kills(output, own, without_searches)
    assert without_searches(output) == fresh


def without_searches(output: Path) -> object:
    return {name: each for name, each in values(output).items() if not name.startswith("t00/msas")}


def test_a_killed_replacement_goes_on_without_overwrite(command: Command, tmp_path: Path) -> None:
    """Once the mark of the old run is gone, its files are not those of the new settings."""
    output = tmp_path / "out"
    assert command("--seed", "3", "--num-seeds", "2")() == 0
    old = values(output)
    plain = command("--num-seeds", "2")
    found = states(output, command("--num-seeds", "2", "--overwrite"))
    new = values(output)
    for state in (found[index] for index in spread(len(found), 30)):
        state.restore(output)
        ended, now = plain(), values(output)
        if ended == 0:
            seeds = {name: now[name] == new[name] for name in new if "unrelaxed" in name}
            assert all(seeds.values()), (state.label, seeds)
            assert now.keys() == new.keys(), state.label
        else:  # still finished with other settings, and said to be
            assert {name: each for name, each in now.items() if name in old} == old, state.label


def test_more_predictions_of_a_finished_run_survive_a_kill_at_every_step(command: Command, tmp_path: Path) -> None:
    assert command("--zip")() == 0
    check_kills(tmp_path / "out", command(*OPTIONS), values, work=FOLD)


@pytest.mark.parametrize("options", [("--zip",), ("--output-format", "packed")])
def test_runs_that_share_a_directory_take_over_from_one_killed_at_any_step(
    options: tuple[str, ...], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, output = command("--shared", *options, targets=2), tmp_path / "out"

    def killed() -> int:
        """As a process of this machine that is known to have ended."""
        with monkeypatch.context() as patch:
            patch.setattr(claims, "_this_process", lambda: f"{claims._machine()} 4194305 1")
            return run()

    def resume() -> int:
        """Long after the other was killed."""
        for path in [*output.glob(".claims/draft-*"), *output.glob(".claims/clock-*")]:
            os.utime(path, (0, 0))
        return run()

    def without_claims(directory: Path) -> object:
        assert not [*directory.glob(".claims/draft-*"), *directory.glob(".claims/clock-*")]
        return {name: each for name, each in unpacked(directory).items() if not name.startswith(".claims/")}

    check_kills(output, killed, without_claims, work=FOLD, resume=resume)
