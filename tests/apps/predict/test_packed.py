"""`--output-format packed`: finished targets go into archives, from which runs resume as from directories."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from helixfold.apps.predict import runner
from helixfold.results import packed
from helixfold.results.packed import PackedResults
from tests.apps.predict.commands import batch
from tests.apps.predict.conftest import Begin, Runs
from tests.support.interruptions import calls_of
from tests.support.run_values import values

pytestmark = pytest.mark.usefixtures("quick")

PACKED = ("--output-format", "packed")


def targets(output: Path) -> dict[str, object]:
    """The values of the files of all targets, packed or not."""
    copy = output.with_name(f"{output.name} unpacked")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(output, copy)
    with PackedResults(copy) as found:
        for name in found.names():
            found.restore(name)
    return {path: value for path, value in values(copy).items() if "/" in path and not path.startswith("packed/")}


def archives(output: Path) -> list[str]:
    return sorted(path.name for path in (output / "packed").glob("*.zip"))


def directories(output: Path) -> list[str]:
    return sorted(path.name for path in output.iterdir() if path.is_dir() and not path.name.startswith("."))


@pytest.fixture
def five(tmp_path: Path) -> Path:
    return batch(tmp_path / "five.fasta", 5)


def test_finished_targets_are_packed_with_the_same_files(
    five: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(runs(five)) == 5
    plain = targets(runs.output)
    page = (runs.output / "index.html").read_text()
    shutil.rmtree(runs.output)
    monkeypatch.setattr(runner, "TARGETS", 2)
    assert len(runs(five, *PACKED)) == 5
    assert runs.code == 0
    assert directories(runs.output) == ["packed"]
    assert archives(runs.output) == ["000001.zip", "000002.zip", "000003.zip"]
    assert targets(runs.output) == plain
    # The page of the batch has the same figures, times aside.
    assert figures((runs.output / "index.html").read_text()) == figures(page)
    assert page.count("packed in") == 0
    assert (runs.output / "index.html").read_text().count("packed in packed/00000") == 5


def figures(page: str) -> list[str]:
    return re.findall(r'data-label="(?:residues|mean pLDDT|pTM|MSA rows|relaxed)"[^>]*>|<path class="fill[^>]*>', page)


def test_packed_targets_are_finished_by_their_index_alone(five: Path, runs: Runs, begin: Begin) -> None:
    begin(five, *PACKED)
    calls = 0

    def count(_: bool) -> None:
        nonlocal calls
        calls += 1

    with calls_of("helixfold.results.packed:open_archive", count):
        for options in (PACKED, (), ("--slim",), ("--zip",), ("--dry-run",)):
            assert runs(five, *options) == []
            assert runs.code == 0
            assert runs.out.count("skipped") == 5 or "would be skipped" in runs.out
    assert calls == 0
    assert directories(runs.output) == ["packed"]
    assert archives(runs.output) == ["000001.zip"]
    assert not [*runs.output.glob("*.result.zip")]


def test_other_settings_are_told_as_of_directories(five: Path, runs: Runs, begin: Begin) -> None:
    begin(five)
    runs(five, "--seed", 7)
    expected = runs.code, runs.err
    assert "other weights of tiny" in runs.err
    runs(five, *PACKED)
    assert directories(runs.output) == ["packed"]
    runs(five, "--seed", 7)
    assert (runs.code, runs.err) == expected
    assert runs(five, "--seed", 7, "--keep-existing") == []
    assert runs.code == 0


def test_more_predictions_are_added_to_packed_ones(five: Path, runs: Runs, begin: Begin, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    whole = Runs(tmp_path / "whole", runs.capsys)
    whole(five)
    whole(five, "--num-seeds", 2)
    begin(five, *PACKED)
    assert runs(five, *PACKED, "--num-seeds", 2) == ["tiny_seed_1"] * 5
    assert archives(runs.output) == ["000001.zip", "000002.zip"]
    assert directories(runs.output) == ["packed"]
    assert targets(runs.output) == targets(whole.output)
    assert runs(five, *PACKED) == []


def test_targets_are_unpacked_one_by_one(five: Path, runs: Runs, begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(five, *PACKED)
    monkeypatch.setattr(runner, "TARGETS", 1)
    seen = []
    with calls_of("helixfold.apps.predict.lot:fold_planned", lambda _: seen.append(len(directories(runs.output)))):
        runs(five, *PACKED, "--num-seeds", 2)
    assert seen == [2] * len(seen)
    assert len(seen) >= 5


def test_a_target_that_cannot_be_unpacked_fails_alone(
    five: Path, runs: Runs, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(five, *PACKED)
    unpack = PackedResults.unpack

    def full(self: PackedResults, name: str, directory: Path, *rest: object, **named: object) -> None:
        if name == "t02" and directory.parent.name == "packed":
            raise OSError(28, os.strerror(28))
        unpack(self, name, directory, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(PackedResults, "unpack", full)
    assert len(runs(five, *PACKED, "--num-seeds", 2)) == 4
    assert runs.code == 1
    assert list(json.loads((runs.output / "failures.json").read_text())) == ["t02"]
    assert directories(runs.output) == ["packed"]


def test_overwritten_targets_are_packed_again(five: Path, runs: Runs, begin: Begin) -> None:
    begin(five, *PACKED)
    before = targets(runs.output)
    assert runs(five, *PACKED, "--overwrite", "--seed", 3) == ["tiny"] * 5
    assert directories(runs.output) == ["packed"]
    assert archives(runs.output) == ["000001.zip", "000002.zip"]
    assert targets(runs.output) != before
    assert runs(five, *PACKED, "--seed", 3) == []


def test_files_that_are_asked_for_later_are_made(fasta: Path, runs: Runs) -> None:
    runs(fasta, *PACKED)
    assert runs(fasta, *PACKED, "--save-logits") == ["tiny"]
    assert runs(fasta, *PACKED, "--save-logits") == []
    assert runs(fasta, "--output-format", "colabfold") == []
    assert runs.target.is_dir()
    assert runs(fasta, *PACKED) == []
    assert directories(runs.output) == ["packed"]


def test_targets_of_earlier_runs_are_packed(five: Path, runs: Runs, begin: Begin) -> None:
    begin(five)
    before = targets(runs.output)
    assert runs(five, *PACKED) == []
    assert directories(runs.output) == ["packed"]
    assert targets(runs.output) == before
    with PackedResults(runs.output) as found:
        found.restore("t01")
    assert runs(five, *PACKED) == []
    assert archives(runs.output) == ["000001.zip"]
    assert directories(runs.output) == ["packed"]


def test_a_slim_target_is_packed_as_it_is(five: Path, runs: Runs) -> None:
    runs(five, *PACKED, "--slim")
    assert directories(runs.output) == ["packed"]
    assert not any(path.endswith("features.npz") for path in targets(runs.output))
    assert runs(five, *PACKED, "--slim") == []


def test_a_failed_target_is_not_packed(tmp_path: Path, runs: Runs) -> None:
    runs(batch(tmp_path / "bad.fasta", 3, "bad"), *PACKED)
    assert runs.code == 1
    assert directories(runs.output) == ["bad", "packed"]
    assert list(json.loads((runs.output / "failures.json").read_text())) == ["bad"]


def test_damaged_archives_are_one_sentence_and_made_again(five: Path, runs: Runs, begin: Begin) -> None:
    begin(five, *PACKED)
    before = targets(runs.output)
    path = runs.output / "packed" / "000001.zip"
    path.write_bytes(path.read_bytes()[:-30])
    assert runs(five, *PACKED) == ["tiny"] * 5
    assert runs.code == 0
    assert runs.err.count("000001.zip: is damaged") == 1
    assert "failed:</strong> " in (runs.output / "index.html").read_text()
    path.unlink()
    assert targets(runs.output) == before


def test_a_damaged_file_in_an_archive_begins_its_target_anew(five: Path, runs: Runs, begin: Begin) -> None:
    begin(five, *PACKED)
    path = runs.output / "packed" / "000001.zip"
    content = path.read_bytes()
    place = content.index(b"t02/features.npz") + 60
    path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    made = runs(five, *PACKED, "--num-seeds", 2)
    assert sorted(made) == ["tiny_seed_0"] + ["tiny_seed_1"] * 5
    assert runs.code == 0
    assert "starts again" in runs.out
    assert directories(runs.output) == ["packed"]


def test_packing_that_fails_stops_nothing(five: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr(packed, "write_zip", full)
        assert len(runs(five, *PACKED)) == 5
    assert runs.code == 0
    assert "could not be packed, so files stay in directories: No space left on device" in runs.err
    assert len(directories(runs.output)) == 6
    assert runs(five, *PACKED) == []
    assert directories(runs.output) == ["packed"]


def test_a_zip_of_each_target_and_archives_exclude_each_other(fasta: Path, runs: Runs) -> None:
    runs(fasta, *PACKED, "--zip")
    assert runs.code == 2
    assert "--zip and --output-format packed cannot be combined" in runs.err
    assert not runs.output.exists()


def test_the_name_of_the_directory_of_archives_is_taken(tmp_path: Path, runs: Runs) -> None:
    (tmp_path / "x.fasta").write_text(">Packed\nMKTAYIAKQR\n")
    runs(tmp_path / "x.fasta")
    assert runs.code == 2
    assert "'Packed': this name is reserved" in runs.err


def test_runs_that_share_a_directory_pack_what_is_finished(five: Path, runs: Runs) -> None:
    runs(five, "--shared")
    before = targets(runs.output)
    assert runs(five, "--shared", *PACKED) == []
    assert directories(runs.output) == ["packed"]
    assert {name: each for name, each in targets(runs.output).items() if ".claims" not in name} == {
        name: each for name, each in before.items() if ".claims" not in name
    }
    shutil.rmtree(runs.output)
    assert len(runs(five, "--shard", "0/2", *PACKED)) == 3
    assert len(runs(five, "--shard", "1/2", *PACKED)) == 2
    assert archives(runs.output) == ["000001.zip", "000002.zip"]
    assert runs(five, "--shared", *PACKED) == []


@pytest.mark.parametrize("options", [(), ("--shared",)])
def test_what_a_run_killed_while_packing_left_is_removed(options: tuple[str, ...], five: Path, runs: Runs) -> None:
    runs(five, *options, *PACKED)
    directory, draft = (runs.output / "packed" / f".{name}.0123abcd.partial" for name in ("t04", "draft"))
    directory.mkdir()
    for path in (directory / "ranked_0.pdb", draft):
        path.touch()
    assert runs(five, *options, *PACKED) == []
    assert not directory.exists()
    assert not draft.exists()


def test_a_target_that_another_run_works_on_is_not_packed(
    five: Path, runs: Runs, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(five)
    monkeypatch.setattr("data_pipeline.io.claims.Claims.work_on", lambda _, name: "held" if name == "t01" else "none")
    assert runs(five, "--shared", *PACKED) == []
    assert directories(runs.output) == ["packed", "t01"]
