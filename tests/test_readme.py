"""The README tells the truth: its Python runs, its links lead somewhere. Its commands are run by .ci/run."""

import re
from pathlib import Path

import pytest

from helixfold.cli.main import main
from tests.data_pipeline.datasets.training_files import write_training_files

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def example(words: str) -> str:
    """The Python example that contains these words."""
    (found,) = (block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if words in block)
    return str(found)


def run(source: str) -> None:
    exec(compile(source, "README.md", "exec"), {})


def test_the_python_example_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    run(example("from helixfold.inference import"))
    assert "[" in capsys.readouterr().out


def test_the_training_example_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_training_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["features", "--structures", "structures", "--output", "training_set", "--workers", "1"]) == 0
    run(example("TrainingDataset("))
    assert "(40, 14, 3)" in capsys.readouterr().out


def test_links_lead_to_files_that_exist() -> None:
    links = re.findall(r"\]\((?!http)([^)]+)\)", README)
    assert len(links) > 5
    assert [link for link in links if not (ROOT / link).exists()] == []
