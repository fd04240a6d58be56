"""The plot of the alignment's coverage is drawn before a long prediction, and otherwise after all of them."""

import threading
from pathlib import Path
from typing import Any

import pytest

from helixfold.cli.main import main
from helixfold.predict import target, together
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
    fold = together.fold_request

    def folded(*given: Any) -> Any:
        answer = fold(*given)
        seen.append("folded")
        return answer

    monkeypatch.setattr(target, "_LONG", longest_short)
    monkeypatch.setattr(target, "write_alignment", plot_files.write_alignment)
    monkeypatch.setattr(target, "write_coverage", lambda *_: seen.append("coverage"))
    monkeypatch.setattr(target, "import_matplotlib", imported.set)
    monkeypatch.setattr(together, "fold_request", folded)
    command = ["predict", "MKTAYIAKQR", "--models", "tiny", "--num-recycles", "0", "--device", "cpu"]
    assert main([*command, "--output", str(tmp_path), *options]) == 0
    assert seen == expected
    assert imported.wait(60 if expected[-1:] == ["coverage"] else 0) == (expected[-1:] == ["coverage"])
