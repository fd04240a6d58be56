"""`helixfold report` makes pages anew, of one target or of all, and says what is damaged."""

from pathlib import Path

import pytest

from helixfold.cli.main import main
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
