import sys
from pathlib import Path

import pytest

from scripts.parity.make_cases import main

DATA = Path(__file__).parent / "data"


def test_missing_program_is_named_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "haiku", None)
    monkeypatch.delitem(sys.modules, "tests.parity.deepmind", raising=False)
    assert main(["--output", str(tmp_path / "cases"), "--name", "new"]) == 2
    assert "'haiku'" in (error := capsys.readouterr().err)
    assert "pip install" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "cases").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--name", "new"], "--output"),
        (["--output", "cases"], "--name"),
        (["--output", "cases", "--name", "a/b"], "plain folder name"),
        (["--output", "cases", "--name", ".."], "plain folder name"),
        (["--output", ".", "--name", "taken"], "exists already"),
        (["--output", "cases", "--name", "new", "--model", "model_3", "--templates", "2"], "no template branch"),
        (["--check", "cases"], "meta.json is missing"),
    ],
)
def test_wrong_options_give_one_sentence_and_exit_code_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    assert main(arguments) == 2
    assert message in (error := capsys.readouterr().err)
    assert error.count("\n") == 1


@pytest.mark.parity
@pytest.mark.parametrize("name", ["monomer_ptm_tiny", "monomer_notempl_tiny"])
@pytest.mark.filterwarnings("default")
def test_deepminds_program_gives_the_stored_outputs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("haiku", reason="needs the extra 'parity'")
    assert main(["--check", str(DATA / name)]) == 0
    assert "structure_module/traj" in capsys.readouterr().out
