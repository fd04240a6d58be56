"""The benchmark of layouts measures real steps beside what the planner says of them."""

from typing import Any

import pytest

from helixfold.benchmark import layouts
from helixfold.cli.main import main
from helixfold.parallel.mesh import Mesh
from helixfold.planning.training import PARTS, Pass


def test_a_step_stands_beside_its_prediction(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def alone(count: int, function: Any, *arguments: Any) -> Any:
        assert count == 1
        return function(Mesh.alone(), *arguments)

    monkeypatch.setattr(layouts, "on_ranks", alone)
    monkeypatch.setattr(Pass, "seconds", lambda self: dict.fromkeys(PARTS, 0.02 if self.learns else 0.01))
    sizes = ["--residues", "8", "--rows", "2", "--extra-rows", "2", "--blocks", "1", "--repeats", "1"]
    assert main(["benchmark", "layouts", "--preset", "tiny", "--ranks", "1", *sizes]) == 0
    row = capsys.readouterr().out.splitlines()[-1].split()
    assert row[0] == "dp=1,bp=1,dap=1"
    measured, predicted, ratio = map(float, row[1:4])
    assert measured > 0
    # A pass that learns and one before it, whose six parts were said to take two hundredths of a second and one.
    assert predicted == pytest.approx(6 * (0.02 + 0.01), abs=0.015)  # each of six is rounded
    assert ratio == pytest.approx(predicted / measured, rel=0.5)
