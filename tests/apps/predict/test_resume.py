"""What a second run does with what a first one left: nothing twice, nothing old taken for new, and all of it said."""

import json
import os
import re
import shutil
import time
import zipfile
from pathlib import Path

import pytest

from helixfold.apps.predict import lot, postprocess, relaxation
from helixfold.cli.main import INTERRUPTED, main
from helixfold.results.archive import write_archive
from helixfold.weights.checkpoint import save_checkpoint
from helixfold.weights.find import find_models
from tests.apps.predict.conftest import SEQUENCE, Begin, Runs
from tests.apps.predict.files import without_command

pytestmark = pytest.mark.usefixtures("quick")


def test_only_the_predictions_that_are_missing_are_made(fasta: Path, runs: Runs, begin: Begin) -> None:
    begin(fasta)
    before = (runs.target / "unrelaxed_tiny.pdb").stat().st_mtime_ns
    assert runs(fasta, "--num-seeds", 3) == ["tiny_seed_1", "tiny_seed_2"]
    assert "one: 1 prediction there from an earlier run, 2 missing\n" in runs.out
    assert sorted(runs.order()) == ["tiny", "tiny_seed_1", "tiny_seed_2"]
    assert (runs.target / "unrelaxed_tiny.pdb").stat().st_mtime_ns == before
    assert (runs.target / "ranked_2.pdb").is_file()
    assert set(json.loads((runs.target / "timings.json").read_text())["models"]) == set(runs.order())
    (runs.target / "confidence_tiny_seed_1.json").write_text("{")
    assert runs(fasta, "--num-seeds", 3) == ["tiny_seed_1"]
    # Fewer are asked for, and all are there.
    assert runs(fasta) == []
    assert "one: finished before, skipped" in runs.out
    assert len(runs.order()) == 3
    (runs.target / "ranked_1.cif").unlink()
    assert runs(fasta) == []
    assert (runs.target / "ranked_1.cif").is_file()


def test_files_that_a_later_run_asks_for_are_made(fasta: Path, runs: Runs, begin: Begin) -> None:
    begin(fasta)
    saved = runs.target / "representations_tiny.npz"
    assert not saved.exists()
    assert runs(fasta, "--save-representations", "single") == ["tiny"]
    assert runs(fasta, "--save-representations", "single") == []
    assert runs(fasta, "--save-representations", "single", "pair") == ["tiny"]
    assert runs(fasta, "--save-representations", "pair") == []
    saved.write_bytes(saved.read_bytes()[:-30])
    assert runs(fasta, "--save-representations", "pair") == ["tiny"]
    assert runs(fasta, "--save-recycles") == ["tiny"]
    assert runs(fasta, "--save-recycles") == []
    (runs.target / "recycles_tiny.pdb").unlink()
    assert runs(fasta, "--save-recycles") == ["tiny"]


def test_a_finished_target_is_relaxed_by_a_later_run_that_asks_for_it(
    fasta: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def relax_predictions(directory: Path, order: object, to_relax: str, *_: object, **__: object) -> None:
        asked.append(to_relax)
        if to_relax != "none":
            (directory / "relax_metrics.json").write_text(json.dumps({"tiny": {"failed": "in a test"}}))

    monkeypatch.setattr(relaxation, "installed", lambda: True)
    monkeypatch.setattr(relaxation, "relax_predictions", relax_predictions)
    monkeypatch.setattr(postprocess, "STEPS", (("relaxation", postprocess._relax), *postprocess.STEPS))
    assert runs(fasta, "--models-to-relax", "none") == ["tiny"]
    assert runs(fasta, "--models-to-relax", "best") == []
    assert "one: 1 prediction there from an earlier run, ranking and reports are missing\n" in runs.out
    assert runs(fasta, "--models-to-relax", "best") == []
    assert "one: finished before, skipped" in runs.out
    assert asked == ["none", "best"]


@pytest.mark.parametrize(
    ("arguments", "difference"),
    [
        (["--num-recycles", "2"], "num_recycles 0, now 2"),
        (["--recycle-tolerance", "0.5"], "recycle_tolerance 0, now 0.5"),
        (["--max-extra-rows", "5"], "max_extra_rows not set, now 5"),
        (["--dtype", "bfloat16"], "dtype float32, now bfloat16"),
        (["--seed", "3"], "other weights of tiny"),
    ],
)
def test_a_target_made_with_other_settings_is_an_error_unless_it_is_kept(
    arguments: list[str], difference: str, fasta: Path, runs: Runs, begin: Begin
) -> None:
    begin(fasta)
    before = {path.name: path.stat().st_mtime_ns for path in runs.target.iterdir()}
    given = ["predict", str(fasta), "--num-recycles", "0", "--output", str(runs.output), *arguments, "--models", "tiny"]
    assert main(given) == 2
    error = runs.capsys.readouterr().err
    assert f"{runs.target}: finished before with other settings ({difference}" in error
    assert "pass --overwrite to fold it again, another --output, or (helixfold predict only) --keep-existing" in error
    assert main([*given, "--dry-run"]) == 2
    assert main([*given, "--keep-existing"]) == 0
    told = runs.capsys.readouterr().out
    assert f"one: finished before with other settings ({difference}" in told
    assert "skipped (--overwrite folds it again)" in told
    assert {path.name: path.stat().st_mtime_ns for path in runs.target.iterdir()} == before


def test_another_alignment_of_a_finished_target_is_told(fasta: Path, runs: Runs, tmp_path: Path) -> None:
    a3m = tmp_path / "one.a3m"
    a3m.write_text(f">one\n{SEQUENCE}\n>two\nMKTAYIAAKQ\n")
    assert runs(fasta, "--msa", a3m) == ["tiny"]
    moved = tmp_path / "moved.a3m"
    moved.write_bytes(a3m.read_bytes())
    assert runs(fasta, "--msa", moved) == []
    assert "finished before, skipped" in runs.out
    moved.write_text(f">one\n{SEQUENCE}\n>two\nMKTAYIAAAA\n")
    assert runs(fasta, "--msa", moved) == []
    assert "finished before with other settings (other alignments)" in runs.err
    assert runs.code == 2
    assert runs(fasta, "--msa", moved, "--overwrite") == ["tiny"]
    assert runs(fasta, "--msa", moved) == []
    assert "finished before, skipped" in runs.out


def test_all_targets_of_other_settings_are_listed_before_anything_is_folded(fasta: Path, runs: Runs) -> None:
    fasta.write_text(f">one\n{SEQUENCE}\n>two\n{SEQUENCE}A\n")
    runs(fasta)
    fasta.write_text(f">new\n{SEQUENCE}AA\n>one\n{SEQUENCE}\n>two\n{SEQUENCE}A\n")
    assert runs(fasta, "--max-extra-rows", 5) == []
    assert runs.code == 2
    for name in ("one", "two"):
        assert f"{runs.output / name}: finished before with other settings (max_extra_rows" in runs.err
    assert "--keep-existing to skip these 2 of 3 targets" in runs.err
    assert not (runs.output / "new").exists()
    assert len(runs(fasta, "--max-extra-rows", 5, "--keep-existing")) == 1
    assert (runs.output / "new/ranked_0.pdb").is_file()


def test_an_unfinished_target_of_other_settings_begins_anew(fasta: Path, runs: Runs) -> None:
    runs(fasta, "--num-seeds", 2)
    (runs.target / "ranking_debug.json").unlink()
    (runs.target / "mine.txt").write_text("not ours")
    assert runs(fasta, "--max-extra-rows", 5) == ["tiny"]
    assert (
        "started before with other settings (max_extra_rows not set, now 5) and not finished; starts again" in runs.out
    )
    assert runs.order() == ["tiny"]
    assert not list(runs.target.glob("*seed*"))
    assert not (runs.target / "ranked_1.pdb").exists()
    assert (runs.target / "mine.txt").exists()


@pytest.mark.parametrize("damage", ["", "[]", '{"inputs":1}', "[" * 100_000, '{"predictions":{"../x":{}}}'])
def test_a_damaged_record_hides_nothing(damage: str, fasta: Path, runs: Runs, begin: Begin) -> None:
    begin(fasta)
    (runs.target / "settings.json").write_text(damage)
    assert runs(fasta) == []
    assert runs.code == 2
    assert "finished before, but settings.json there is missing or damaged" in runs.err
    (runs.target / "ranking_debug.json").unlink()
    assert runs(fasta) == ["tiny"]
    assert runs.code == 0


def test_what_untrained_parameters_made_gives_way_to_trained_ones_and_never_takes_their_place(
    fasta: Path, runs: Runs, tmp_path: Path
) -> None:
    unrelaxed = ("--models-to-relax", "none")
    (model,) = find_models(["tiny"], None, seed=7)
    weights = tmp_path / "params_tiny.safetensors"
    save_checkpoint(weights, model.network.state_dict(), model.preset.model.to_dict())
    runs(fasta, "--num-seeds", 2)
    assert runs(fasta, "--weights", weights, *unrelaxed) == ["tiny"]
    assert "one: predicted before with untrained parameters; starts again" in runs.out
    assert runs.order() == ["tiny"]
    assert not list(runs.target.glob("*seed*"))
    assert runs(fasta) == []
    assert "finished before with other settings (other weights of tiny; untrained parameters)" in runs.err
    assert runs.code == 2
    assert runs(fasta, "--weights", weights, *unrelaxed) == []
    assert "one: finished before, skipped" in runs.out
    # A file of another format with the same parameters is the same.
    as_npz = tmp_path / "params_tiny.npz"
    assert main(["weights", "convert", str(weights), str(as_npz), "--model", "tiny"]) == 0
    assert runs(fasta, "--weights", as_npz, *unrelaxed) == []
    assert "one: finished before, skipped" in runs.out


@pytest.mark.parametrize(
    "damage",
    [
        "{",
        "[]",
        '{"models":{},"stages":{"x":{"seconds":1e999,"peak_memory_gib":0}}}',
        '{"models":{"tiny":NaN},"stages":{}}',
        '{"models":{},"stages":{"x":{"seconds":1,"peak_memory_gib":1e999}}}',
        '{"models":[1],"stages":{}}',
    ],
)
def test_damaged_times_of_an_earlier_run_do_not_count(damage: str, fasta: Path, runs: Runs, begin: Begin) -> None:
    begin(fasta)
    (runs.target / "timings.json").write_text(damage)
    assert runs(fasta, "--num-seeds", 2) == ["tiny_seed_1"]
    assert runs.code == 0
    timings = json.loads((runs.target / "timings.json").read_text())
    assert list(timings["models"]) == ["tiny_seed_1"]


def test_an_archive_has_the_whole_target_and_is_made_later_if_asked_for(fasta: Path, runs: Runs, begin: Begin) -> None:
    begin(fasta)
    archive = runs.output / "one.result.zip"
    assert not archive.exists()
    assert runs(fasta, "--zip") == []
    with zipfile.ZipFile(archive) as packed:
        assert sorted(packed.namelist()) == sorted(f"one/{path.name}" for path in runs.target.iterdir())
        for name in packed.namelist():
            assert packed.read(name) == (runs.output / name).read_bytes()
    before = archive.stat().st_mtime_ns
    assert runs(fasta, "--zip") == []
    assert archive.stat().st_mtime_ns == before
    assert runs(fasta, "--zip", "--num-seeds", 2) == ["tiny_seed_1"]
    with zipfile.ZipFile(archive) as packed:
        assert "one/unrelaxed_tiny_seed_1.pdb" in packed.namelist()


def test_an_archive_whose_time_lies_ahead_is_made_again(tmp_path: Path) -> None:
    target, archive = tmp_path / "one", tmp_path / "one.result.zip"
    target.mkdir()
    (target / "a").write_text("a")
    write_archive(target)
    now = time.time()
    for ahead, packed in ((-1, b"a"), (-3600, b"b"), (3600, b"b")):
        (target / "a").write_text("b")
        os.utime(target / "a", (now - 2, now - 2))
        os.utime(archive, (now + ahead, now + ahead))
        write_archive(target)
        assert zipfile.ZipFile(archive).read("one/a") == packed
        (target / "a").write_text("a")
        os.utime(target / "a", (now - 2, now - 2))
    assert archive.stat().st_mtime < now + 60


@pytest.mark.parametrize("moment", ["before it is written", "once it is written"])
def test_no_stage_is_lost_or_counted_twice_by_a_run_that_was_ended(
    moment: str, fasta: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = (fasta, "--num-recycles", 0, "--num-seeds", 2)
    write = lot.write_prediction

    def ended(*arguments: object, **options: object) -> None:
        if moment == "once it is written":
            write(*arguments, **options)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(lot, "write_prediction", ended)
        runs(*given)
    assert runs.code == INTERRUPTED
    first = json.loads((runs.target / "timings.json").read_text())
    assert {"tiny_seed_0: network", "tiny_seed_0: writing"} <= first["stages"].keys()
    counted = {**first["stages"], "tiny_seed_0: network": {"seconds": 1000.0, "peak_memory_gib": 0.1}}
    (runs.target / "timings.json").write_text(json.dumps({**first, "stages": counted}))
    assert runs(*given) == (["tiny_seed_1"] if moment == "once it is written" else ["tiny_seed_0", "tiny_seed_1"])
    resumed = json.loads((runs.target / "timings.json").read_text())
    assert (resumed["stages"]["tiny_seed_0: network"]["seconds"] >= 1000) == (moment == "once it is written")
    runs(*given, "--overwrite")
    unbroken = json.loads((runs.target / "timings.json").read_text())
    assert resumed["stages"].keys() == unbroken["stages"].keys()
    assert resumed["models"].keys() == unbroken["models"].keys()


def test_a_dry_run_tells_what_is_left_and_writes_nothing(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two, one = tmp_path / "two.fasta", tmp_path / "one.fasta"
    one.write_text(f">one\n{SEQUENCE}\n")
    two.write_text(f">one\n{SEQUENCE}\n>two\n{SEQUENCE}A\n")
    runs(one)
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*") if path != runs.log)
    assert runs(two, "--num-seeds", 2, "--dry-run") == []
    assert "one: 1 prediction there from an earlier run, 1 missing" in runs.out
    assert "2 of 2 targets to fold: 3 predictions by tiny with 2 seeds each, 0 recycles; to relax: none" in runs.out
    assert "estimated time in all: under 10 s" in runs.out
    table = [line for line in runs.out.splitlines() if line.startswith(("target ", "one  ", "two  "))]
    assert [line[-10:] for line in table] == ["      time", "under 10 s", "under 10 s"]
    with monkeypatch.context() as slower:
        slower.setattr("helixfold.planning.estimate._product_rate", lambda *_: 1e5)
        runs(two, "--num-seeds", 2, "--dry-run")
    each = [float(found) for found in re.findall(r"(?m)^(?:one|two) .* about ([\d.]+) min$", runs.out)]
    total = re.search(r"estimated time in all: about ([\d.]+) min", runs.out)
    assert total is not None
    # One of the four predictions is there already.
    assert float(total[1]) == pytest.approx(each[0] / 2 + each[1], abs=2)
    runs(two, "--dry-run")
    assert "one: finished before, would be skipped" in runs.out
    assert "1 of 2 targets to fold: 1 prediction by tiny, 0 recycles; to relax: none" in runs.out
    assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*") if path != runs.log) == before


SLIM = {
    *("ranked_0.pdb", "ranked_0.cif", "confidence_tiny.json", "pae_tiny.json", "ranking_debug.json", "settings.json"),
    "pae_tiny.bcif.gz",
}


def test_a_slim_target_has_few_files_and_is_finished(fasta: Path, runs: Runs) -> None:
    runs(fasta)
    usual = {path.name: without_command(path) for path in runs.target.iterdir()}
    shutil.rmtree(runs.target)
    assert runs(fasta, "--slim") == ["tiny"]
    slim = {path.name: without_command(path) for path in runs.target.iterdir()}
    assert set(slim) == SLIM & set(usual) < set(usual)
    assert all(slim[name] == usual[name] for name in slim)
    assert runs(fasta, "--slim") == []
    assert runs(fasta) == []
    assert "finished before, skipped" in runs.out
    # What a killed run has not removed is removed later.
    (runs.target / "unrelaxed_tiny.pdb").write_bytes(usual["unrelaxed_tiny.pdb"])
    assert runs(fasta, "--slim") == []
    assert {path.name for path in runs.target.iterdir()} == set(slim)
    # The unranked structures that another seed would be ranked with are gone.
    assert runs(fasta, "--slim", "--num-seeds", 2) == ["tiny", "tiny_seed_1"]
    assert {"ranked_1.pdb", "confidence_tiny_seed_1.json"} < {path.name for path in runs.target.iterdir()}
    (runs.target / "ranked_1.pdb").unlink()
    assert len(runs(fasta, "--slim", "--num-seeds", 2)) == 2
