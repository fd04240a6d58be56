"""What a second run does with what a first one left: nothing twice, nothing old taken for new, and all of it said."""

import io
import json
import os
import re
import shutil
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import gemmi
import numpy as np
import pytest

from data_pipeline.features.schema import Features
from data_pipeline.parse.pdb import parse_pdb
from data_pipeline.pipeline import Target
from data_pipeline.search.mmseqs_server import PUBLIC_SERVER
from helixfold.cli.main import INTERRUPTED, main
from helixfold.inference import FoldingOptions
from helixfold.predict import postprocess, runner, target
from helixfold.predict.batch import _sorted
from helixfold.predict.jobs import Job
from helixfold.predict.options import ComputeOptions, ModelOptions, PredictOptions
from helixfold.predict.presets import MONOMER
from helixfold.predict.run import folding_of
from helixfold.predict.screen import _Copied, _Log, logged_screen
from helixfold.weights.checkpoint import save_checkpoint
from helixfold.weights.find import find_models
from helixfold.write.archive import write_archive
from tests.predict.kills import predict

SEQUENCE = "MKTAYIAKQR"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No downloaded weights, and nothing is drawn: that takes most of the time of a small target."""
    monkeypatch.setattr("helixfold.weights.find.parameters_directory", lambda: tmp_path / "cache")
    monkeypatch.setattr(
        postprocess, "STEPS", tuple(step for step in postprocess.STEPS if step[0] in ("ranking", "timings", "mark"))
    )
    monkeypatch.setattr("helixfold.predict.target.write_alignment", lambda *_: None)
    return


@pytest.fixture
def fasta(tmp_path: Path) -> Path:
    path = tmp_path / "one.fasta"
    path.write_text(f">one\n{SEQUENCE}\n")
    return path


class Runs:
    """Runs into one output directory: what each folded, and what it said."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.output, self.log, self.capsys = directory / "out", directory / "log", capsys
        self.target, self.code = self.output / "one", -1

    def __call__(self, *arguments: object) -> list[str]:
        self.log.write_text("")
        self.code = predict([*map(str, arguments), "--output", str(self.output)], self.log)
        captured = self.capsys.readouterr()
        self.out, self.err = captured.out, captured.err
        return [line.split()[1] for line in self.log.read_text().splitlines()]

    def order(self) -> list[str]:
        return json.loads((self.target / "ranking_debug.json").read_text())["order"]


@pytest.fixture
def runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Runs:
    return Runs(tmp_path, capsys)


def positions(path: Path) -> np.ndarray:
    (model,) = gemmi.read_structure(str(path))
    return np.array([atom.pos.tolist() for chain in model for residue in chain for atom in residue])


def test_seeds_that_change_nothing_are_not_folded_again(fasta: Path, runs: Runs, tmp_path: Path) -> None:
    names = [f"small_seed_{seed}" for seed in range(3)]
    given = ("--models", "small", "--num-recycles", 0, "--num-seeds", 3)
    assert runs(fasta, *given) == names[:1]
    assert runs.out.count("its input does not depend on the seed; not folded again") == 2
    assert sorted(runs.order()) == names
    assert np.ptp(positions(runs.target / "unrelaxed_small_seed_0.pdb")) > 1
    assert len({(runs.target / f"pae_{name}.json").read_bytes() for name in names}) == 1
    assert runs(fasta, *given) == []
    assert "finished before, skipped" in runs.out
    # With more rows than the model reads at once, each seed draws others.
    a3m = tmp_path / "one.a3m"
    for count, folded in ((5, names[:1]), (20, names)):
        rows = np.random.default_rng(0).choice(list("ACDEFGHIKL"), (count, len(SEQUENCE)))
        a3m.write_text(f">one\n{SEQUENCE}\n" + "".join(f">{index}\n{''.join(row)}\n" for index, row in enumerate(rows)))
        assert runs(a3m, *given, "--overwrite") == folded


def test_templates_that_no_model_reads_are_not_said_to_be_used(fasta: Path, runs: Runs) -> None:
    structure = Path(__file__).parents[2] / "examples/structures/helix_long.pdb"
    fasta.write_text(f">one\n{parse_pdb(structure.read_bytes()).chains[0].sequence}\n")
    for model, count in (("small", 0), ("tiny", 1)):
        runs(fasta, "--templates", structure, "--num-recycles", 0, "--models", model, "--overwrite")
        assert ("1 template (helix_long_A), which no model of this run reads" in runs.out) == (count == 0), runs.out
        assert json.loads((runs.target / "timings.json").read_text())["templates"] == count


def test_seeds_draw_anew_and_are_ranked_together(fasta: Path, runs: Runs, tmp_path: Path) -> None:
    a3m = tmp_path / "one.a3m"
    rows = np.random.default_rng(0).choice(list("ACDEFGHIKL"), (300, len(SEQUENCE)))
    a3m.write_text(f">one\n{SEQUENCE}\n" + "".join(f">{number}\n{''.join(row)}\n" for number, row in enumerate(rows)))
    assert runs(a3m, "--num-seeds", 3, "--seed", 4) == ["tiny_seed_4", "tiny_seed_5", "tiny_seed_6"]
    structures = [positions(runs.target / f"unrelaxed_tiny_seed_{seed}.pdb") for seed in (4, 5, 6)]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert np.abs(structures[one] - structures[other]).max() > 0.01
    assert sorted(runs.order()) == ["tiny_seed_4", "tiny_seed_5", "tiny_seed_6"]
    scores = [
        json.loads((runs.target / f"confidence_{name}.json").read_text())["ranking_confidence"] for name in runs.order()
    ]
    assert scores == sorted(scores, reverse=True)
    # A seed's prediction is the same alone.
    assert (
        main(
            [
                "predict",
                str(a3m),
                "--seed",
                "5",
                "--num-recycles",
                "0",
                "--output",
                str(tmp_path / "alone"),
                "--models",
                "tiny",
            ]
        )
        == 0
    )
    # But its parameters are drawn with the seed, too, where there are none that were trained.
    settings = json.loads((tmp_path / "alone" / "one" / "settings.json").read_text())
    assert settings["predictions"]["tiny"]["seed"] == 5
    # Names that files of earlier runs have.
    assert list(settings["predictions"]["tiny"]) == ["model", "seed", "weights", "standing"]
    assert settings["predictions"]["tiny"]["standing"] == "untrained"


def test_only_the_predictions_that_are_missing_are_made(fasta: Path, runs: Runs) -> None:
    assert runs(fasta) == ["tiny"]
    before = (runs.target / "unrelaxed_tiny.pdb").stat().st_mtime_ns
    assert runs(fasta, "--num-seeds", 3) == ["tiny_seed_1", "tiny_seed_2"]
    assert "one: 1 prediction there from an earlier run, 2 to be made\n" in runs.out
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


@pytest.mark.parametrize(
    ("arguments", "difference"),
    [
        (["--num-recycles", "2"], "num_recycles 0, now 2"),
        (["--recycle-tolerance", "0.5"], "recycle_tolerance 0, now 0.5"),
        (["--max-extra-rows", "5"], "max_extra_rows not given, now 5"),
        (["--dtype", "bfloat16"], "dtype float32, now bfloat16"),
        (["--seed", "3"], "other weights of tiny"),
    ],
)
def test_a_target_made_with_other_settings_is_kept_and_its_user_told(
    arguments: list[str], difference: str, fasta: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs(fasta)
    before = {path.name: path.stat().st_mtime_ns for path in runs.target.iterdir()}
    given = ["predict", str(fasta), "--num-recycles", "0", "--output", str(runs.output), *arguments, "--models", "tiny"]
    assert main(given) == 0
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
    assert "finished before with other settings (alignments: other ones), skipped" in runs.out
    assert runs(fasta, "--msa", moved, "--overwrite") == ["tiny"]
    assert runs(fasta, "--msa", moved) == []
    assert "finished before, skipped" in runs.out


def test_an_unfinished_target_of_other_settings_begins_anew(fasta: Path, runs: Runs) -> None:
    runs(fasta, "--num-seeds", 2)
    (runs.target / "ranking_debug.json").unlink()
    (runs.target / "mine.txt").write_text("not ours")
    assert runs(fasta, "--max-extra-rows", 5) == ["tiny"]
    assert (
        "begun before with other settings (max_extra_rows not given, now 5) and not finished; begins anew" in runs.out
    )
    assert runs.order() == ["tiny"]
    assert not list(runs.target.glob("*seed*"))
    assert not (runs.target / "ranked_1.pdb").exists()
    assert (runs.target / "mine.txt").exists()


@pytest.mark.parametrize("damage", ["", "[]", '{"inputs":1}', "[" * 100_000, '{"predictions":{"../x":{}}}'])
def test_a_damaged_record_hides_nothing(damage: str, fasta: Path, runs: Runs) -> None:
    runs(fasta)
    (runs.target / "settings.json").write_text(damage)
    assert runs(fasta) == []
    assert "finished before, but settings.json there is missing or damaged" in runs.out
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
    assert "one: made before with untrained parameters; begins anew" in runs.out
    assert runs.order() == ["tiny"]
    assert not list(runs.target.glob("*seed*"))
    assert runs(fasta) == []
    assert "finished before with other settings (other weights of tiny; untrained parameters), skipped" in runs.out
    assert runs(fasta, "--weights", weights, *unrelaxed) == []
    assert "one: finished before, skipped" in runs.out
    # A file of another format with the same parameters is the same.
    as_npz = tmp_path / "params_tiny.npz"
    assert main(["weights", "convert", str(weights), str(as_npz), "--preset", "tiny"]) == 0
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
def test_damaged_times_of_an_earlier_run_do_not_count(damage: str, fasta: Path, runs: Runs) -> None:
    runs(fasta)
    (runs.target / "timings.json").write_text(damage)
    assert runs(fasta, "--num-seeds", 2) == ["tiny_seed_1"]
    assert runs.code == 0
    timings = json.loads((runs.target / "timings.json").read_text())
    assert list(timings["models"]) == ["tiny_seed_1"]


def test_no_more_is_made_once_the_score_is_reached(fasta: Path, runs: Runs) -> None:
    runs(fasta)
    score = json.loads((runs.target / "confidence_tiny.json").read_text())["ranking_confidence"]
    assert runs(fasta, "--overwrite", "--num-seeds", 3, "--stop-at-score", score - 0.01) == ["tiny_seed_0"]
    assert runs.order() == ["tiny_seed_0"]
    assert runs(fasta, "--num-seeds", 3, "--stop-at-score", score - 0.01) == []
    assert "finished before, skipped" in runs.out
    assert len(runs(fasta, "--overwrite", "--num-seeds", 3, "--stop-at-score", 100)) == 3
    # Passes end, too.
    arguments = ["--stop-at-score", "1", "--num-recycles", "4", "--output", str(runs.output), "--overwrite"]
    assert main(["predict", str(fasta), *arguments, "--models", "tiny"]) == 0
    assert json.loads((runs.target / "confidence_tiny.json").read_text())["num_recycles"] == 0
    assert main(["predict", str(fasta), "--stop-at-score", "101"]) == 2


def test_an_archive_has_the_whole_target_and_is_made_later_if_asked_for(fasta: Path, runs: Runs) -> None:
    runs(fasta)
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
    write = target.write_prediction

    def ended(*arguments: object, **options: object) -> None:
        if moment == "once it is written":
            write(*arguments, **options)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(target, "write_prediction", ended)
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
    assert "one: 1 prediction there from an earlier run, 1 to be made" in runs.out
    assert "2 of 2 targets to fold: 3 predictions by tiny with 2 seeds each, 0 recycles; to relax: none" in runs.out
    assert "estimated time in all: under 10 s" in runs.out
    table = [line for line in runs.out.splitlines() if line.startswith(("target ", "one  ", "two  "))]
    assert [line[-10:] for line in table] == ["      time", "under 10 s", "under 10 s"]
    with monkeypatch.context() as slower:
        slower.setattr("helixfold.planning.duration._product_rate", lambda *_: 1e5)
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


def test_a_mistake_of_the_program_stops_no_other_target_and_says_where_it_is(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = tmp_path / "two.fasta"
    two.write_text(f">bad\n{SEQUENCE}\n>one\n{SEQUENCE}A\n")
    prepare = Job.prepare

    def mistaken(self: Job, *arguments: object) -> object:
        return {}["x"] if self.name == "bad" else prepare(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Job, "prepare", mistaken)
    assert runs(two) == ["tiny"]
    (failure,) = json.loads((runs.output / "failures.json").read_text()).values()
    assert failure.startswith("KeyError: 'x' (in test_batch.py, line ")
    assert runs.code == 1


def test_many_finished_targets_share_a_line(runs: Runs, tmp_path: Path) -> None:
    many = tmp_path / "many.fasta"
    many.write_text(f">one\n{SEQUENCE}\n")
    runs(many)
    for number in range(11):
        shutil.copytree(runs.target, runs.output / f"t{number}")
    many.write_text("".join(f">t{number}\n{SEQUENCE}\n" for number in range(11)))
    assert runs(many) == []
    assert runs.out == "11 targets: finished before, skipped (--overwrite folds them again)\n"


def test_every_target_has_a_line_with_its_place_and_the_time_left(runs: Runs, tmp_path: Path) -> None:
    three = tmp_path / "three.fasta"
    three.write_text("".join(f">{name}\n{SEQUENCE}{'A' * len(name)}\n" for name in ("ccc", "a", "bb")))
    runs(three)
    lines = [line for line in runs.out.splitlines() if "mean pLDDT" in line]
    assert [line.split(":")[0] for line in lines] == ["a", "bb", "ccc"]
    assert "[1 of 3, " in lines[0]
    assert " left]" in lines[1]
    assert lines[2].endswith(" s]")
    assert "\r" not in runs.err


def test_the_index_is_not_written_again_for_every_target(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[object] = []
    write_index = runner.write_index
    monkeypatch.setattr(runner, "write_index", lambda *given: written.append(given) or write_index(*given))
    path = tmp_path / "four.fasta"
    path.write_text("".join(f">t{number}\n{SEQUENCE}\n" for number in range(4)))
    monkeypatch.setattr(runner, "_SECONDS_BETWEEN_INDEXES", 1e9)
    runs(path)
    assert len(written) == 2  # after the first target, and at the end
    assert all(f">t{number}<" in (runs.output / "index.html").read_text() for number in range(4))
    monkeypatch.setattr(runner, "_SECONDS_BETWEEN_INDEXES", 0)
    runs(path, "--overwrite")
    assert len(written) == 2 + 4 + 1


SLIM = {
    *("ranked_0.pdb", "ranked_0.cif", "confidence_tiny.json", "pae_tiny.json", "ranking_debug.json", "settings.json"),
}


def test_a_slim_target_has_few_files_and_is_finished(fasta: Path, runs: Runs) -> None:
    runs(fasta)
    usual = {path.name: path.read_bytes() for path in runs.target.iterdir()}
    shutil.rmtree(runs.target)
    assert runs(fasta, "--slim") == ["tiny"]
    slim = {path.name: path.read_bytes() for path in runs.target.iterdir()}
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


def test_programs_read_the_progress(runs: Runs, tmp_path: Path) -> None:
    path = tmp_path / "two.fasta"
    path.write_text(f">t0\n{SEQUENCE}\n>bad\n{SEQUENCE}\n")
    runs(path, "--progress", "json", "--sort-queries-by", "none")
    lines = [json.loads(line) for line in runs.err.splitlines() if line.startswith("{")]
    assert all(list(line) == ["target", "stage", "done", "total", "seconds"] for line in lines)
    assert [line["stage"] for line in lines if line["target"] == "t0"][:3] == [
        *("features", "tiny: sampling", "tiny: network")
    ]
    ended = [(line["target"], line["stage"], line["done"], line["total"]) for line in lines if " " not in line["stage"]]
    assert [each for each in ended if each[1] in ("finished", "failed")] == [
        ("t0", "finished", 1, 2),
        ("bad", "failed", 2, 2),
    ]
    runs(path, "--overwrite")
    assert "{" not in runs.err


def test_a_log_file_has_what_the_screen_shows_with_times(fasta: Path, runs: Runs, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "run.log"
    runs(fasta, "--log-file", log)
    lines = log.read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d ", line) for line in lines)
    assert [line.split(" ", 1)[1] for line in lines if "one: " in line] == [
        line for line in runs.out.splitlines() if line.startswith("one: ")
    ]
    assert main(["predict", str(fasta), "--log-file", str(log), "--models", "tiny", "--weights", "no.npz"]) == 2
    more = log.read_text().splitlines()
    assert more[: len(lines)] == lines
    assert "helixfold: error: no.npz" in more[-1]
    assert main(["predict", str(fasta), "--log-file", str(tmp_path), "--models", "tiny"]) == 2


def test_a_log_on_a_full_disk_ends_no_run_and_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    with logged_screen(Path("/dev/full")):
        print("first")
        print("second")
    said = "helixfold: /dev/full: lines are missing: No space left on device\n"
    assert capsys.readouterr() == ("first\nsecond\n", said)


def test_bars_are_left_out_of_the_log(tmp_path: Path) -> None:
    screen, path = io.StringIO(), tmp_path / "log"
    log = _Log(path)
    copied = _Copied(screen, log)
    for text in ("\rtargets: 0/2", "\rtargets: 1/2", "\r             \r", "a line\n", "\rtargets: 2/2\n", "last", "\n"):
        copied.write(text)
    log.close()
    assert [line.split(" ", 1)[1] for line in path.read_text().splitlines()] == ["a line", "last"]
    assert screen.getvalue().count("targets") == 3


def test_jobs_are_sorted_as_asked() -> None:
    jobs = [Job(target=Target(name=str(length), sequence="A" * length)) for length in (3, 1, 4, 2, 6, 5)]

    def lengths(order: str, *, several: bool = False) -> list[int]:
        return [len(job.sequence) for job in _sorted(jobs, order, 0, several=several)]  # type: ignore[arg-type]

    assert lengths("length") == [1, 2, 3, 4, 5, 6]
    assert lengths("length", several=True) == [6, 5, 4, 3, 2, 1]
    assert lengths("none") == [3, 1, 4, 2, 6, 5]
    assert sorted(lengths("random")) == [1, 2, 3, 4, 5, 6]
    assert lengths("random") == lengths("random")


def test_presets_are_defaults_for_what_is_not_given() -> None:
    assert folding_of(PredictOptions()) == ((), FoldingOptions())
    casp14 = folding_of(PredictOptions(models=ModelOptions(preset="monomer_casp14")))
    assert casp14 == (MONOMER, FoldingOptions(num_ensemble=8))
    given = ModelOptions(preset="thorough", models=("tiny",)), ComputeOptions(num_recycles=0)
    assert folding_of(PredictOptions(models=given[0], compute=given[1])) == (
        ("tiny",), FoldingOptions(num_recycles=0, recycle_tolerance=0.5)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--msa-mode", "single_sequence", "--msa", "x.a3m"],
            "--msa-mode single_sequence and --msa exclude each other",
        ),
        (["--msa-mode", "single_sequence", "--msa-server"], "exclude each other"),
        (["--msa-mode", "databases"], "give --databases or --database"),
        (["--msa-mode", "mmseqs2_uniref", "--database", "x"], "--msa-mode mmseqs2_uniref and --database exclude"),
        (["--db-preset", "reduced_dbs"], "give their --databases DIR"),
        (["--preset", "quick"], "there are no parameters of model_1_ptm"),
        (["--preset", "quick", "--weights", "one.fasta"], "is one file of parameters and --preset names model_1_ptm"),
    ],
)
def test_contradictions_are_one_sentence(
    arguments: list[str], message: str, fasta: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(fasta.parent)
    assert runs(fasta, *arguments) == []
    assert (runs.code, runs.err.count("\n")) == (2, 1)
    assert message in runs.err
    assert not runs.output.exists()


def test_a_single_sequence_has_no_alignment(runs: Runs, tmp_path: Path) -> None:
    a3m = tmp_path / "one.a3m"
    a3m.write_text(f">one\n{SEQUENCE}\n>two\nMKTAYIAAKQ\n")
    assert runs(a3m, "--msa-mode", "single_sequence") == ["tiny"]
    assert "the alignments of one are not read" in runs.err
    assert json.loads((runs.target / "timings.json").read_text())["msa_rows"] == 1
    features = tmp_path / "features"
    assert main(["features", str(a3m), "--msa-mode", "single_sequence", "--output", str(features)]) == 0
    assert len(Features.load(features / "one" / "features.npz").msa) == 1


def test_a_server_is_asked_in_the_mode_that_was_named(
    fasta: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = []
    monkeypatch.setattr("helixfold.predict.run.predict", lambda *_, searches, **__: plans.append(searches) or 0)
    for mode in ("server", "mmseqs2_uniref_env", "mmseqs2_uniref"):
        assert main(["predict", str(fasta), "--msa-mode", mode, "--models", "tiny"]) == 0
        assert f"sequences are sent to {PUBLIC_SERVER}" in capsys.readouterr().err
    assert [plan.alignments[0].tool.options.mode for plan in plans] == ["env", "env", "all"]
    assert main(["predict", str(fasta), "--msa-mode", "server", "--msa-server", "http://here", "--models", "tiny"]) == 0
    assert plans[-1].alignments[0].tool.options.url == "http://here"
    limits = ["--msa-server", "--msa-server-timeout", "5", "--msa-server-wait", "60", "--models", "tiny"]
    assert main(["predict", str(fasta), *limits]) == 0
    own = plans[-1].alignments[0].tool.options
    assert (own.timeout, own.max_wait) == (5, 60)
    assert main(["predict", str(fasta), "--msa-server", "--msa-server-wait", "nan", "--models", "tiny"]) == 2
    assert "--msa-server-wait is a number of seconds greater than 0, got nan" in capsys.readouterr().err
    capsys.readouterr()
    assert main(["predict", str(fasta), "--msa-mode", "server", "--dry-run", "--models", "tiny"]) == 0
    shown = capsys.readouterr().err
    assert f"sequences would be sent to {PUBLIC_SERVER}" in shown
    assert "are sent" not in shown
