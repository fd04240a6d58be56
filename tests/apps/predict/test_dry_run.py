"""What `helixfold predict --dry-run` shows of a large batch."""

import re
from pathlib import Path

import pytest

from helixfold.apps.predict import dry_run
from helixfold.cli.main import main
from helixfold.planning import estimate
from helixfold.planning.size import PassSize

COUNT = dry_run.MAX_ROWS + 10
LENGTHS = range(30, 30 + COUNT)


@pytest.fixture
def many(tmp_path: Path) -> list[str]:
    fasta = tmp_path / "many.fasta"
    fasta.write_text("".join(f">target_{length}\n{'MKTAYIAKQR' * 9:.{length}}\n" for length in LENGTHS))
    return ["predict", str(fasta), "--models", "tiny", "--output", str(tmp_path / "out"), "--dry-run"]


def test_a_large_batch_has_a_summary_and_with_verbose_a_row_for_each_target(
    many: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(many) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"residues: 30 to 59 (longest: target_59), median {LENGTHS[COUNT // 2]}"
    assert lines[1] == "searched for each target: nothing; sequences and alignments are used as they are"
    assert lines[2].startswith(f"executors: whole {COUNT}; the longest target needs at most ")
    assert lines[5].startswith(f"{COUNT} of {COUNT} targets to fold: {COUNT} predictions by tiny, ")
    assert "under 10 s" not in lines[6]  # plots and pages take a second for each of the 30 targets
    assert len(lines) == 7
    assert main([*many, "--verbose"]) == 0
    rows = re.findall(r"(?m)^target_(\d+) +tiny +(\d+) ", capsys.readouterr().out)
    assert rows == [(str(length), str(length)) for length in LENGTHS]


def test_a_summary_counts_few_sizes(many: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    counted: set[PassSize] = set()
    memory = estimate.prediction_memory

    def recorded(config: object, size: PassSize, *rest: object) -> object:
        counted.add(size)
        return memory(config, size, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(estimate, "_SHORT_ON_CPU", 0)  # every length counts
    monkeypatch.setattr(estimate, "prediction_memory", recorded)
    assert main(many) == 0
    assert {size.residues for size in counted} == {32, 48, 64}


def test_a_summary_names_the_databases_that_are_searched(
    many: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_sequences.fasta").write_text(">x\nMKTAYIAKQR\n")
    assert main([*many, "--database", str(tmp_path / "own_sequences.fasta")]) == 0
    assert "searched for each target: own_sequences" in capsys.readouterr().out


@pytest.mark.usefixtures("without_remedies")
def test_targets_that_do_not_fit_are_named_and_more_of_them_counted(
    many: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dry_run, "_MAX_PROBLEM_LINES", 2)
    assert main([*many, "--memory", "10KB"]) == 1
    out = capsys.readouterr().out
    assert f"executors: none {COUNT};" in out
    assert re.findall(r"(?m)^target_(\d+): tiny: ", out) == [str(length) for length in LENGTHS[:2]]
    assert f"\n{COUNT - 2} more do not fit (--verbose lists them)\n" in out
