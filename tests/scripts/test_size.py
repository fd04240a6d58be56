"""Statements, classes and callbacks are counted; docstrings are not."""

from pathlib import Path

import pytest

from scripts import size

SOURCE = '''"""Docstring."""
from dataclasses import dataclass

@dataclass(frozen=True)
class Point:
    """Docstring."""

    x: int

class Other:
    def __init__(self, call: "Callable[[int], int] | None", /, *rest: int, key: Callable[[], int], n: int) -> None:
        """Docstring."""
        "not a docstring"
        self.x = 1; self.y = 2
'''


def test_what_is_counted_of_a_file() -> None:
    # import, class, field, class, function, expression, two assignments
    assert size.size_of(SOURCE) == size.Size(statements=8, classes=2, dataclasses=1, callbacks=2, files=1, lines=14)


def test_packages_and_other_languages_are_added_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("helixfold/a/x.py", "helixfold/a/b/y.py", "helixfold/z.py", "tests/t.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    (tmp_path / "helixfold/a/page.js").write_text("1\n2\n")
    (tmp_path / "helixfold/a/3Dmol-min.js").write_text("1\n" * 99)
    found = size.sizes(tmp_path)
    assert {name: each.files for name, each in found.items()} == {"helixfold/a": 2, "helixfold": 1, "tests": 1}
    assert size.other_lines(tmp_path) == {"JavaScript": {"files": 1, "lines": 2}}
