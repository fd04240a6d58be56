"""`helixfold evaluate --benchmark` predicts, compares as single comparisons do, goes on after kills, tells failures."""

import csv
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.parse.structures import read_structure
from helixfold.cli.main import main

EXAMPLES = Path(__file__).parents[2] / "examples" / "structures"
NAMES = ("helical_hairpin", "strand_helix", "meander")
SMALL = ("--models", "small", "--num-recycles", "0", "--device", "cpu")


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def content(output: Path) -> Any:
    return json.loads((output / "scores.json").read_text())


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three peptides, of which the second has an alignment with a relative."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("helixfold.weights.find.parameters_directory", lambda: tmp_path / "cache")
    path = tmp_path / "table.tsv"
    lines = ["id\tsequence\treferences\tmsa\tdate"]
    for name in NAMES:
        sequence = read_structure(EXAMPLES / f"{name}.pdb").chains[0].sequence
        alignment = ""
        if name == "strand_helix":
            alignment = "relatives.a3m"
            (tmp_path / alignment).write_text(f">{name}\n{sequence}\n>relative\n{'A' + sequence[1:]}\n")
        lines.append(f"{name}\t{sequence}\t{EXAMPLES / name}.pdb\t{alignment}\t2020-05-14")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.usefixtures("undrawn")
def test_scores_are_those_of_single_comparisons(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    run = ["evaluate", "--benchmark", str(table), "--output", str(output), *SMALL]
    assert main(run) == 0
    printed = capsys.readouterr().out
    found = {row["target"]: row for row in rows(output / "scores.tsv")}
    assert set(found) == set(NAMES)
    for name in NAMES:
        single = tmp_path / "single" / name
        assert (
            main(["evaluate", str(output / "predictions" / name), str(EXAMPLES / f"{name}.pdb"), "-o", str(single)])
            == 0
        )
        assert rows(single / "scores.tsv") == [found[name]]
    sizes = content(output)["benchmark"]["targets"]
    assert {name: entry["rows"] for name, entry in sizes.items()} == dict(zip(NAMES, (1, 2, 1), strict=True))
    assert {entry["latest_template"] for entry in sizes.values()} == {"2020-05-14"}
    groups = rows(output / "groups.tsv")
    assert [(group["by"], group["group"], group["targets"]) for group in groups] == [
        ("all", "all", "3"),
        ("residues", "1 to 100", "3"),
        ("alignment rows", "1", "2"),
        ("alignment rows", "2 to 30", "1"),
    ]
    mean = sum(float(row["tm_score"]) for row in found.values()) / 3
    assert float(groups[0]["tm_score"]) == pytest.approx(mean, abs=1e-4)
    assert groups[0]["tm_score"] in {f"{round(mean, 4)}"}
    assert f"{mean:.3f} [" in printed
    assert groups[3]["tm_score_low"] == "NA"
    capsys.readouterr()
    assert main(run) == 0
    assert "finished before" in capsys.readouterr().out
    assert {row["target"]: row for row in rows(output / "scores.tsv")} == found


@pytest.mark.usefixtures("undrawn")
def test_a_target_that_fails_is_told_alone(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "relatives.a3m").write_text(">other\nGGGGGGGGG\n")
    (tmp_path / "broken.pdb").write_text("hello\n")
    text = table.read_text().replace(f"{EXAMPLES / 'meander'}.pdb", "broken.pdb")
    table.write_text(text)
    output = tmp_path / "out"
    assert main(["evaluate", "--benchmark", str(table), "--output", str(output), *SMALL]) == 1
    errors = capsys.readouterr().err
    settings = json.loads((output / "predictions" / "helical_hairpin" / "settings.json").read_text())
    assert settings["provenance"][0]["command"][:3] == ["helixfold", "evaluate", "--benchmark"]
    assert [row["target"] for row in rows(output / "scores.tsv")] == ["helical_hairpin"]
    failures = content(output)["failures"]
    assert set(failures) == {"strand_helix", "meander and broken"}
    assert "relatives.a3m" in failures["strand_helix"]
    for name in failures:
        assert f"{name}: failed: " in errors


@pytest.mark.usefixtures("undrawn")
def test_predictions_of_other_settings_are_not_scored(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["evaluate", "--benchmark", str(table), "--output", str(tmp_path / "out"), *SMALL]
    assert main(run) == 0
    capsys.readouterr()
    assert main([*run, "--recycle-tolerance", "0.5"]) == 2
    error = capsys.readouterr().err
    assert "finished before with other settings" in error
    assert "pass --overwrite to fold these 3 of 3 targets again" in error
    assert "(helixfold predict only) --keep-existing" in error


@pytest.mark.usefixtures("undrawn")
def test_a_list_shows_published_means_beside_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("helixfold.weights.find.parameters_directory", lambda: tmp_path / "cache")
    data, output = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    shutil.copy(EXAMPLES / "meander.pdb", data / "T1031-D1.pdb")
    run = ["evaluate", "--benchmark", "casp14", "--data", str(data), "--output", str(output), *SMALL]
    assert main(run) == 0
    printed = capsys.readouterr()
    assert "86 of 87 structures left out: " in printed.err
    assert any(line.split()[:4] == ["HelixFold", "87", "0.8771", "0.7932"] for line in printed.out.splitlines())
    assert "This run has 1 structure, not the 87 of the published list." in printed.out
    assert len(content(output)["benchmark"]["missing"]) == 86
    assert content(output)["benchmark"]["list"]["published"][0]["tm_score"] == 0.8771


def test_wrong_options_are_one_sentence(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out"
    for arguments, words in (
        ([], "pass PREDICTIONS and REFERENCES, or a --benchmark"),
        (["one"], "pass PREDICTIONS and REFERENCES"),
        (["one", "two", "--weights", "w.npz"], "--weights requires --benchmark"),
        (["one", "two", "--overwrite"], "--overwrite requires --benchmark"),
        (["one", "--benchmark", str(table)], "one cannot be combined with --benchmark"),
        (["--benchmark", str(tmp_path / "none.tsv")], "no such table"),
        (["--benchmark", str(table), "--msa", str(tmp_path)], "there is no helical_hairpin.a3m"),
    ):
        assert main(["evaluate", *arguments, "--output", str(output)]) == 2
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == (3 if "--msa" in arguments else 1)  # one for each target without an alignment
        assert not output.exists()


def test_torchrun_is_refused(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    assert main(["evaluate", "--benchmark", str(table), "--output", str(tmp_path / "out")]) == 2
    assert "a benchmark cannot run under torchrun" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_a_run_that_is_killed_goes_on_to_the_same_scores(table: Path, tmp_path: Path) -> None:
    def command(output: Path) -> list[str]:
        arguments = ["evaluate", "--benchmark", str(table), "--output", str(output), *SMALL]
        return [sys.executable, "-m", "helixfold.cli.main", *arguments]

    def finished(output: Path) -> int:
        return len(list(output.glob("predictions/*/ranking_debug.json")))

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run(command(whole), check=True, capture_output=True)
    process = subprocess.Popen(command(killed), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not finished(killed):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert finished(killed) < 3
    ended = subprocess.run(command(killed), check=True, capture_output=True, text=True)
    assert "finished before" in ended.stdout
    for name in ("scores.tsv", "residues.tsv", "groups.tsv", "scores.json"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes()
