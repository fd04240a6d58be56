"""The plot of the alignment's coverage is drawn before a long prediction, and otherwise after all of them."""

import threading
from pathlib import Path
from typing import Any

import pytest

from helixfold.apps.predict import lot
from helixfold.cli.main import main
from helixfold.report import plot_files

pytestmark = pytest.mark.usefixtures("quick")


@pytest.mark.parametrize(
    ("longest_short", "options", "expected"),
    [(10, [], ["folded", "coverage"]), (9, [], ["coverage", "folded"]), (10, ["--slim"], ["folded"])],
)
def test_coverage_is_drawn_when_it_delays_nobody(
    longest_short: int, options: list[str], expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    imported = threading.Event()
    fold = lot.fold_planned

    def folded(*given: Any, **named: Any) -> Any:
        prediction = fold(*given, **named)
        seen.append("folded")
        return prediction

    monkeypatch.setattr(lot, "_LONG_RESIDUES", longest_short)
    monkeypatch.setattr(lot, "write_alignment", plot_files.write_alignment)
    monkeypatch.setattr(lot, "write_coverage", lambda *_: seen.append("coverage"))
    monkeypatch.setattr(lot, "import_matplotlib", imported.set)
    monkeypatch.setattr(lot, "fold_planned", folded)
    command = ["predict", "MKTAYIAKQR", "--models", "tiny", "--num-recycles", "0", "--device", "cpu"]
    assert main([*command, "--output", str(tmp_path), *options]) == 0
    assert seen == expected
    assert imported.wait(60 if expected[-1:] == ["coverage"] else 0) == (expected[-1:] == ["coverage"])
