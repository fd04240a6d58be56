"""`helixfold features` for targets, and `helixfold predict --features` afterwards: the same as predicting at once."""

import fcntl
import json
import threading
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.features.schema import Features
from data_pipeline.io.claims import ClaimFiles, Claims
from data_pipeline.pipeline import PreparedTarget, prepare
from helixfold.cli.main import main

SEQUENCE = "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQ"
RELATIVE = "MKTAYLAKQRQLSFVKSHFSRQLEQRLGMIEVN"


@pytest.fixture(autouse=True)
def no_downloaded_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("helixfold.weights.find.parameters_directory", lambda: tmp_path / "cache")


@pytest.fixture
def fasta(tmp_path: Path) -> Path:
    path = tmp_path / "two.fasta"
    path.write_text(f">one\n{SEQUENCE}\n>two\n{SEQUENCE[::-1]}\n")
    (tmp_path / "database.fasta").write_text(f">relative\n{RELATIVE}\n>stranger\n{'GSHPTW' * 6}\n")
    return path


def features(fasta: Path, *more: object) -> int:
    database = str(fasta.parent / "database.fasta")
    output = str(fasta.parent / "features")
    return main(["features", str(fasta), "--database", database, "--output", output, *map(str, more)])


@pytest.mark.usefixtures("undrawn")
def test_features_then_prediction_equals_prediction_at_once(fasta: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = fasta.parent
    assert features(fasta) == 0
    out = capsys.readouterr().out
    assert "one: 2 rows in the alignment (1 from database_hits.sto)" in out
    assert "two: 1 row in the alignment (0 from database_hits.sto)" in out
    assert (root / "features" / "one" / "msas" / "database_hits.sto").is_file()
    common = ["--num-recycles", "0", "--models", "tiny"]
    assert main(["predict", "--features", str(root / "features"), "--output", str(root / "staged"), *common]) == 0
    database = str(root / "database.fasta")
    assert main(["predict", str(fasta), "--database", database, "--output", str(root / "direct"), *common]) == 0
    for file in ("one/ranked_0.pdb", "two/ranked_0.pdb", "one/features.npz"):
        assert (root / "staged" / file).read_bytes() == (root / "direct" / file).read_bytes()


def test_a_repeated_run_reports_what_it_writes_again(fasta: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = fasta.read_text()
    fasta.write_text(text.partition(">two")[0])
    assert features(fasta) == 0
    (first,) = capsys.readouterr().out.splitlines()
    before = (fasta.parent / "features/one/features.npz").read_bytes()
    fasta.write_text(text)
    assert features(fasta) == 0
    one, two = capsys.readouterr().out.splitlines()
    assert one == f"{first} (written again)"
    assert two.endswith("features/two")
    assert (fasta.parent / "features/one/features.npz").read_bytes() == before


def test_a_shard_makes_its_own_targets_only(fasta: Path) -> None:
    assert features(fasta, "--shard", "1/2") == 0
    made = sorted(path.name for path in (fasta.parent / "features").iterdir())
    assert made == [".helixfold-0001-of-0002.lock", ".helixfold.lock", "two"]


def test_two_runs_do_not_write_into_one_directory_unless_they_are_parts(
    fasta: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = fasta.parent / "features"
    output.mkdir()
    with (output / ".helixfold.lock").open("w") as file, (output / ".helixfold-0000-of-0002.lock").open("w") as part:
        fcntl.flock(part, fcntl.LOCK_EX)
        for kind in (fcntl.LOCK_EX, fcntl.LOCK_SH):
            fcntl.flock(file, kind)
            for arguments in ((), ("--shard", "0/2")):
                assert features(fasta, *arguments) == 2
                (sentence,) = capsys.readouterr().err.splitlines()
                assert "features: another run is writing there" in sentence
        assert not (output / "one").exists()
        assert features(fasta, "--shard", "1/2") == 0
    assert features(fasta) == 0


def test_runs_that_share_a_directory_make_each_target_once(
    fasta: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("helixfold.parallel.shared_tasks._POLL_INTERVAL", 0.01)
    output = fasta.parent / "features"
    living = Claims(ClaimFiles(output / ".claims"))
    assert living.take("features of one") == "taken"
    renewed, stop = living.renew, threading.Event()
    thread = threading.Thread(target=lambda: [renewed() for _ in iter(lambda: stop.wait(0.01), True)])
    thread.start()
    try:
        assert features(fasta, "--shared") == 0
    finally:
        stop.set()
        thread.join()
    assert "one:" not in capsys.readouterr().out
    assert [path.parent.name for path in output.glob("*/features.npz")] == ["two"]
    partial = output / "one" / ".features.npz.0123abcd.partial"
    partial.parent.mkdir()
    partial.touch()
    monkeypatch.setattr("data_pipeline.io.claims._has_ended", lambda owner: True)
    assert features(fasta, "--shared") == 0
    assert (output / "one" / "features.npz").is_file()
    assert not partial.exists()


def test_what_a_killed_run_had_not_finished_writing_is_removed(fasta: Path) -> None:
    output = fasta.parent / "features"
    left = [
        output / ".failures.json.0123abcd.partial",
        output / "one/.features.npz.0123abcd.partial",
        output / "one/msas/.database_hits.sto.0123abcd.partial",
        output / "two/msas/.searches.json.0123abcd.partial",
    ]
    others = [output / "one/.mine.partial", output / "three/.features.npz.0123abcd.partial"]
    for path in (*left, *others):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert features(fasta, "--shard", "1/2") == 0
    assert [path.exists() for path in left] == [True, True, True, False]
    assert features(fasta) == 0
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in others)


def test_a_directory_of_features_that_is_moved_is_not_made_anew(
    fasta: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = fasta.parent / "features"

    def moving(*arguments: object) -> PreparedTarget:
        if output.exists():
            output.rename(fasta.parent / "moved")
        return prepare(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("helixfold.apps.search.prepare_any", moving)
    assert features(fasta) == 2
    (_, sentence) = capsys.readouterr().err.splitlines()
    assert f"{output}: was moved or removed while this run wrote there" in sentence
    assert not output.exists()


def test_one_bad_target_never_stops_the_others(fasta: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Features.save

    def failing(self: Features, path: Path) -> None:
        if self.domain_name == "one":
            raise OSError("disk full")
        real(self, path)

    monkeypatch.setattr(Features, "save", failing)
    assert features(fasta) == 1
    failures = json.loads((fasta.parent / "features" / "failures.json").read_text())
    assert failures == {"one": "OSError: disk full"}
    assert (fasta.parent / "features" / "two" / "features.npz").is_file()
    monkeypatch.undo()
    monkeypatch.setattr("helixfold.weights.find.parameters_directory", lambda: fasta.parent / "cache")
    assert features(fasta) == 0
    assert not (fasta.parent / "features" / "failures.json").exists()


def test_templates_and_the_fate_of_every_hit_are_written(fasta: Path, tmp_path: Path) -> None:
    assert (
        main(["predict", str(fasta), "--output", str(tmp_path / "first"), "--num-recycles", "0", "--models", "tiny"])
        == 0
    )
    template = tmp_path / "first" / "one" / "ranked_0.pdb"
    assert features(fasta, "--templates", template) == 0
    report = json.loads((tmp_path / "features" / "one" / "templates.json").read_text())
    (used,) = report["used"]
    assert (used["aligned_residues"], used["identity"]) == (len(SEQUENCE), 1.0)
    other = json.loads((tmp_path / "features" / "two" / "templates.json").read_text())
    assert not other["used"]
    assert other["rejected"][0]["detail"]
    made = Features.load(tmp_path / "features" / "one" / "features.npz")
    assert made.template_all_atom_masks.shape == (1, len(SEQUENCE), 37)
    assert np.isfinite(made.template_all_atom_positions).all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "there is nothing to do"),
        (["x.fasta", "--structures", "."], "cannot be combined"),
        (["FASTA", "--shard", "2/2"], "a shard must be i/n"),
        (["FASTA", "--alignments", "."], "--alignments is for a training set; pass --structures DIR"),
        (["FASTA", "--max-resolution", "3"], "--max-resolution is for a training set"),
        (["--structures", ".", "--database", "x.fasta"], "--database is for targets to fold, not for a training set"),
        (["FASTA", "--databases", "a.toml", "--database", "b.fasta"], "cannot be combined"),
        (["FASTA", "--database", "nothing.fasta"], "no such database file"),
        (["FASTA", "--templates", "nothing.cif"], "no such structure file"),
        (["FASTA", "--templates", "FASTA"], "neither mmCIF (data_) nor PDB"),
        (["FASTA", "--threads", "0"], "--threads: must be a whole number from 1 to 1,024"),
        (["FASTA", "--msa-server", "ftp://x"], "MMseqs2 server"),
    ],
)
def test_wrong_use_is_one_sentence_and_writes_nothing(
    fasta: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    given = [str(fasta) if argument == "FASTA" else argument for argument in arguments]
    assert main(["features", *given, "--output", str(fasta.parent / "out")]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1
    assert not (fasta.parent / "out").exists()


def test_predicting_needs_something_to_fold(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["predict", "--output", str(tmp_path / "out")]) == 2
    assert "no input; pass" in capsys.readouterr().err
    assert main(["predict", "--features", str(tmp_path), "--output", str(tmp_path / "out")]) == 2
    assert "no features.npz in this directory" in capsys.readouterr().err


def test_targets_whose_features_are_unfinished_are_named(
    fasta: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    features = tmp_path / "features"
    for name in ("half", "empty"):
        (features / name).mkdir(parents=True)
    (features / "half" / "searches.json").write_text("{}")
    assert main(["features", str(fasta), "--msa-mode", "single_sequence", "--output", str(features)]) == 0
    arguments = ["predict", "--features", str(features), "--models", "tiny", "--dry-run"]
    capsys.readouterr()
    assert main([*arguments, "--output", str(tmp_path / "out")]) == 0
    left_out = f"skipped because features.npz is missing: {features / 'empty'}, {features / 'half'};"
    assert left_out in capsys.readouterr().err


def test_searching_for_features_that_are_ready_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["predict", "--features", str(tmp_path), "--database", "x.fasta"]) == 2
    assert "--database would do nothing: features are ready" in capsys.readouterr().err


def test_directories_and_tables_are_inputs_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    (inputs / "a.fasta").write_text(f">a\n{SEQUENCE}\n")
    (inputs / "b.a3m").write_text(f">b\n{SEQUENCE}\n>c\n{RELATIVE}\n")
    (inputs / "c.csv").write_text(f"id,sequence\nc,{SEQUENCE}\n")
    (inputs / "notes.txt").write_text("nothing")
    assert main(["features", str(inputs), "--output", str(tmp_path / "out")]) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [".helixfold.lock", "a", "b", "c"]
    assert "b: 2 rows" in capsys.readouterr().out
