"""All errors in the input are listed and nothing is predicted; with --skip-invalid, the valid targets are."""

import json
from pathlib import Path

import pytest

from helixfold.cli.main import main
from tests.apps.predict import worker_groups
from tests.apps.predict.conftest import SEQUENCE, Runs
from tests.apps.predict.test_devices import meeting_place
from tests.data_pipeline.templates.structures import QUERY, make_chain, make_structure, write
from tests.training.ranks import Ranks

pytestmark = pytest.mark.usefixtures("quick")
HINT = "; or pass --skip-invalid to leave invalid targets out"
MIXED = f">first\n{SEQUENCE}\n>letter\nMK1\n>gene\n{'ATGC' * 5}\n>last\n{SEQUENCE}A\n>\nMKT\n"


@pytest.fixture
def mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("mixed.fasta")
    path.write_text(MIXED)
    return path


def failures(output: Path) -> dict[str, str]:
    return json.loads((output / "failures.json").read_text())


def folded(runs: Runs) -> list[str]:
    return [line.split()[0] for line in runs.log.read_text().splitlines()]


def test_all_errors_are_listed_in_lines_of_their_own(mixed: Path, runs: Runs) -> None:
    Path("\x1b[31m\n.fasta").write_text(">x\nMK2\n")
    runs(mixed, "\x1b[31m\n.fasta", "gone.fasta")
    assert runs.code == 2
    lines = runs.err.splitlines()
    starts = (
        "mixed.fasta, line 4, column 3, record 'letter': '1' is not",
        "mixed.fasta, line 9: the name is empty",
        "mixed.fasta, record 'gene': this is DNA",
        r"\x1b[31m\n.fasta, line 2, column 3, record 'x': '2' is not",
        "gone.fasta: cannot be read: No such file",
    )
    assert len(lines) == len(starts)
    for start in starts:
        assert sum(line.startswith(f"helixfold: error: {start}") for line in lines) == 1
    assert all(line.isprintable() for line in lines)
    assert [line.endswith(HINT) for line in lines] == [False] * 4 + [True]
    assert not runs.output.exists()


def test_the_option_is_named_once_if_it_leaves_valid_targets(mixed: Path, runs: Runs) -> None:
    one, two = f">a\n{SEQUENCE}\n", ">b\nMK1\n"
    for text, has_hint in ((one + two, True), (two, False), (two + two.replace("b", "c"), False)):
        mixed.write_text(text)
        for command in ("predict", "features"):
            assert main([command, str(mixed), "--output", str(runs.output)]) == 2
            lines = runs.capsys.readouterr().err.splitlines()
            assert len(lines) == text.count("MK1")
            assert [line.endswith(HINT) for line in lines] == [has_hint] * len(lines)


def test_valid_targets_are_folded_as_they_are_without_the_others(mixed: Path, runs: Runs, tmp_path: Path) -> None:
    runs(mixed, "gone.fasta", "--skip-invalid")
    assert runs.code == 1
    assert folded(runs) == ["first", "last"]
    assert "helixfold: mixed.fasta, line 4, column 3, record 'letter': '1' is not" in runs.err
    assert "helixfold: 4 invalid inputs skipped (--skip-invalid)" in runs.err
    found = failures(runs.output)
    assert {name: why.split(":")[1].strip() for name, why in found.items()} == {
        "letter": "mixed.fasta, line 4, column 3, record 'letter'",
        "gene": "mixed.fasta, record 'gene'",
        "gone.fasta": "gone.fasta",
        "invalid input 2": "mixed.fasta, line 9",
    }
    Path("valid.fasta").write_text(f">first\n{SEQUENCE}\n>last\n{SEQUENCE}A\n")
    alone = Runs(tmp_path / "alone", runs.capsys)
    alone.log.parent.mkdir()
    alone("valid.fasta")
    for name in ("first", "last"):
        assert (alone.output / name / "ranked_0.pdb").read_bytes() == (runs.output / name / "ranked_0.pdb").read_bytes()
    # Once the input is corrected, the rest is folded.
    mixed.write_text(MIXED.replace("MK1", "MKA").replace("ATGC" * 5, "AAA").replace(">\n", ">named\n"))
    runs(mixed, "--skip-invalid")
    assert (runs.code, folded(runs)) == (0, ["letter", "gene", "named"])
    assert not (runs.output / "failures.json").exists()


def test_nothing_is_left_out_if_nothing_is_valid(runs: Runs, tmp_path: Path) -> None:
    path = tmp_path / "x.fasta"
    path.write_text(">a\nMK1\n>b\nMK2\n")
    for command in ("predict", "features"):
        assert main([command, str(path), "--skip-invalid", "--output", str(runs.output)]) == 2
        assert runs.capsys.readouterr().err.count("helixfold: error: ") == 2
    assert not runs.output.exists()


def test_shards_divide_the_valid_targets(mixed: Path, runs: Runs) -> None:
    for shard, name in (("0/2", "first"), ("1/2", "last")):
        runs(mixed, "--skip-invalid", "--shard", shard)
        assert (runs.code, folded(runs)) == (1, [name])
        assert "letter" in failures(runs.output)


def test_shared_runs_and_dry_runs_report_invalid_targets(mixed: Path, runs: Runs) -> None:
    runs(mixed, "--skip-invalid", "--dry-run")
    assert runs.code == 1
    assert "2 of 2 targets to fold" in runs.out
    assert "helixfold: 3 invalid inputs skipped" in runs.err
    assert not runs.output.exists()
    for expected in (["first", "last"], []):
        runs(mixed, "--skip-invalid", "--shared")
        assert (runs.code, folded(runs)) == (1, expected)
        assert len(failures(runs.output)) == 3


def test_progress_counts_invalid_targets(mixed: Path, runs: Runs) -> None:
    runs(mixed, "--skip-invalid", "--progress", "json")
    last = json.loads([line for line in runs.err.splitlines() if line.startswith("{")][-1])
    assert (last["stage"], last["done"], last["total"]) == ("finished", 5, 5)


def test_several_processes_report_invalid_targets_once(mixed: Path, tmp_path: Path) -> None:
    printed, log = tmp_path / "printed.txt", tmp_path / "log"
    given = [str(mixed), "--output", str(tmp_path / "out"), "--skip-invalid"]
    store = meeting_place()
    with Ranks(2, printed, worker_groups.predict, given, log, False, store.port) as processes:
        assert processes.finish() == [1, 0], processes.printed()
    assert sorted(line.split()[0] for line in log.read_text().splitlines()) == ["first", "last"]
    assert printed.read_text().count("record 'letter'") == 1
    assert set(failures(tmp_path / "out")) == {"letter", "gene", "invalid input 2"}


def test_features_of_valid_targets_are_made(mixed: Path, runs: Runs) -> None:
    output = runs.output.parent / "features"
    assert main(["features", str(mixed), "--output", str(output), "--skip-invalid"]) == 1
    assert {path.parent.name for path in output.glob("*/features.npz")} == {"first", "last"}
    assert set(failures(output)) == {"letter", "gene", "invalid input 2"}
    assert main(["features", str(mixed), "--output", str(output)]) == 2


def test_damaged_features_and_initial_guesses_that_are_missing_are_left_out(runs: Runs, tmp_path: Path) -> None:
    fasta, output, guesses = tmp_path / "x.fasta", tmp_path / "features", tmp_path / "guesses"
    fasta.write_text("".join(f">{name}\n{SEQUENCE}\n" for name in ("a", "b", "c/d", "e")))
    assert main(["features", str(fasta), "--output", str(output)]) == 0
    (output / "b/features.npz").write_bytes(b"PK\x03\x04")
    guesses.mkdir()
    for name in ("a", "c_d"):
        (guesses / f"{name}.pdb").write_bytes(b"")
    runs("--features", output, tmp_path / "gone.npz", "--initial-guess", guesses)
    assert runs.code == 2
    problems = ["b/features.npz", "e", "gone.npz"]
    lines = sorted(line.split(": ")[2] for line in runs.err.splitlines())
    assert len(lines) == 3
    assert lines[0].endswith(problems[0])
    runs("--features", output, tmp_path / "gone.npz", "--initial-guess", guesses, "--skip-invalid", "--dry-run")
    assert runs.code == 1
    assert "2 of 2 targets to fold" in runs.out


def test_a_pulldown_leaves_out_the_complexes_of_invalid_proteins(runs: Runs, tmp_path: Path) -> None:
    baits, preys, msa = (tmp_path / name for name in ("baits.fasta", "preys.fasta", "msa"))
    baits.write_text(f">bait\n{SEQUENCE}\n>wrong\nMK1\n")
    preys.write_text(f">one\n{SEQUENCE[::-1]}\n>two\n{SEQUENCE}A\n>bad\nMK2\n")
    msa.mkdir()
    for name, sequence in (("bait", SEQUENCE), ("one", SEQUENCE[::-1])):
        (msa / f"{name}.a3m").write_text(f">q\n{sequence}\n")
    given = ("--pulldown", baits, preys, "--msa", msa)
    runs(*given)
    assert runs.code == 2
    assert len(runs.err.splitlines()) == 3
    assert runs.err.endswith(f"{HINT}\n")
    runs(*given, "--skip-invalid")
    assert (runs.code, folded(runs)) == (1, ["bait__one"])
    assert set(failures(runs.output)) == {"wrong", "bad", "two"}
    rows = (runs.output / "pulldown.tsv").read_text().splitlines()
    assert len([row for row in rows if not row.startswith("#")]) == 2


def test_a_wrong_option_is_no_reason_to_leave_out_targets(mixed: Path, runs: Runs, tmp_path: Path) -> None:
    runs(mixed, "--skip-invalid", "--templates", tmp_path / "gone.pdb")
    assert runs.code == 2
    assert "gone.pdb: no such structure file" in runs.err
    assert not runs.output.exists()


def test_targets_of_other_settings_are_listed_with_what_to_do(runs: Runs, tmp_path: Path) -> None:
    path = tmp_path / "x.fasta"
    path.write_text("".join(f">t{number}\n{SEQUENCE}\n" for number in range(3)))
    runs(path)
    runs(path, "--seed", 3)
    runs(path, "--recycle-tolerance", 0.1)
    assert runs.code == 2
    lines = runs.err.splitlines()
    listed = [line for line in lines if line.startswith("helixfold: error: ")]
    assert len(listed) == 3
    assert "pass --overwrite to fold these 3 of 3 targets again" in listed[0]
    assert all("finished before with other settings" in line for line in listed)


def test_templates_across_chains_are_for_complexes_and_their_models(runs: Runs, tmp_path: Path) -> None:
    pair = write(tmp_path, make_structure(make_chain("X", QUERY), make_chain("Y", QUERY)), "pair.pdb")
    (tmp_path / "two.fasta").write_text(f">two\n{QUERY}:{QUERY}\n")
    (tmp_path / "one.fasta").write_text(f">one\n{QUERY}\n")
    for words, problem in (
        (("two.fasta", "--models", "tiny", "--cross-chain-templates", pair), "tiny was trained on single chains"),
        (("one.fasta", "--models", "tiny_multimer", "--cross-chain-templates", pair), "'one' is a single chain"),
        (("two.fasta", "--models", "tiny_multimer", "--cross-chain-templates", *[pair] * 5), "at most 4 files, got 5"),
    ):
        runs(tmp_path / words[0], *words[1:])
        assert runs.code == 2
        assert problem in runs.err
        assert not runs.output.exists()
