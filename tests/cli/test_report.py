"""`helixfold report` makes pages anew, of one target or of all, and says what is damaged."""

from pathlib import Path

import pytest

from data_pipeline.io.errors import InputError
from helixfold.cli.main import main
from helixfold.report.index import line_entry
from helixfold.results.packed import PackedResults, pack_targets
from tests.report.reported import write_target


@pytest.fixture
def output(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        write_target(tmp_path / "out" / name)
    return tmp_path / "out"


def test_a_target_has_its_page_made_anew(output: Path) -> None:
    assert main(["report", str(output / "one")]) == 0
    assert [path.parent.name for path in output.glob("*/report.html")] == ["one"]
    assert not (output / "index.html").exists()


def test_a_batch_has_all_its_pages_made_anew(output: Path) -> None:
    assert main(["report", str(output)]) == 0
    assert sorted(path.parent.name for path in output.glob("*/report.html")) == ["one", "two"]
    assert "./two/report.html" in (output / "index.html").read_text()


def test_a_damaged_target_stops_no_other(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (output / "one" / "timings.json").write_text("{")
    assert main(["report", str(output)]) == 1
    assert (output / "two" / "report.html").is_file()
    said = capsys.readouterr()
    assert "one: no report:" in said.err
    assert "1 of 2 reports written" in said.out


@pytest.mark.parametrize("name", ["nowhere", "empty"])
def test_a_directory_without_targets_is_wrong_input(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["report", str(tmp_path / name)]) == 2
    assert name in capsys.readouterr().err


def packed(output: Path, *names: str) -> None:
    assert pack_targets(output, names, lambda directory: {"line": line_entry(directory)}) == {}


def test_packed_targets_are_in_the_page_of_the_batch(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed(output, "one")
    assert main(["report", str(output)]) == 0
    advice = f"1 of 1 report written; 1 target packed; name one, such as {output / 'one'}, to unpack it"
    assert advice in capsys.readouterr().out
    page = (output / "index.html").read_text()
    assert "packed in packed/000001.zip" in page
    assert "./two/report.html" in page
    packed(output, "two")
    assert main(["report", str(output)]) == 0
    assert [path.name for path in output.iterdir() if path.is_dir()] == ["packed"]


def test_a_packed_target_is_unpacked_for_its_report(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path.name: path.read_bytes() for path in (output / "one").iterdir()}
    packed(output, "one", "two")
    assert main(["report", str(output / "one")]) == 0
    said = capsys.readouterr()
    assert f"{output / 'one'}: unpacked from {output / 'packed' / '000001.zip'}" in said.err
    assert str(output / "one" / "report.html") in said.out
    after = {path.name: path.read_bytes() for path in (output / "one").iterdir()}
    assert after.keys() - before.keys() == {"report.html"}
    assert {name: after[name] for name in before} == before
    assert PackedResults(output).names() == ["two"]


def test_all_packed_targets_are_unpacked_for_their_reports_if_asked(
    output: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    packed(output, "one", "two")
    restore = PackedResults.restore

    def damaged(results: PackedResults, name: str) -> Path:
        if name == "one":
            raise InputError("its archive is damaged")
        return restore(results, name)

    with monkeypatch.context() as patch:
        patch.setattr(PackedResults, "restore", damaged)
        assert main(["report", str(output), "--unpack"]) == 1
    said = capsys.readouterr()
    assert "one: not unpacked: its archive is damaged" in said.err
    assert "1 of 1 report written; 1 target packed" in said.out
    assert main(["report", str(output), "--unpack"]) == 0
    assert "2 of 2 reports written" in capsys.readouterr().out
    assert sorted(path.parent.name for path in output.glob("*/report.html")) == ["one", "two"]


def test_a_damaged_archive_stops_no_report(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed(output, "one")
    (output / "packed" / "000001.zip").write_text("")
    assert main(["report", str(output)]) == 0
    assert capsys.readouterr().err.count("000001.zip") == 1
    assert main(["report", str(output / "one")]) == 2
