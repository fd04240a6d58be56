"""Progress of a run is a line every half minute without a terminal, and evaluations in a row may end the run."""

import pytest

from helixfold.training import progress
from helixfold.training.config import EvaluationConfig
from helixfold.training.progress import Progress, RunProgress


def test_lines_come_every_half_minute_and_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    shown = Progress(first_step=5, last_step=9)
    for step, seconds in ((5, 1), (6, 28), (7, 1), (8, 1)):
        if step == 7:
            shown.evaluation(6, {"lddt_ca": 0.51234, "loss": 2.0, "tm_score": 0.25, "rmsd": 3.0})
        shown.step(step, 1.23456, 12.345)
        now[0] += seconds
        now[0] += step == 6  # the third step is half a minute after the first
    shown.close()
    assert capsys.readouterr().err.splitlines() == [
        "helixfold: 6 of 9 steps, weighted loss 1.235, 12.3 examples/s",
        "helixfold: held-out chains after 7 steps: weighted loss 2.000, CA-lDDT 0.512, TM-score 0.250",
        "helixfold: 8 of 9 steps, weighted loss 1.235, lDDT 0.512, 12.3 examples/s",
        "helixfold: 9 of 9 steps, weighted loss 1.235, lDDT 0.512, 12.3 examples/s",
    ]


def test_a_terminal_has_a_bar_from_the_first_step_on(monkeypatch: pytest.MonkeyPatch) -> None:
    bars: list[dict[str, object]] = []
    updates: list[float] = []

    class Bar:
        def __init__(self, **options: object) -> None:
            bars.append(options)
            self.n = options["initial"]

        def set_postfix_str(self, text: str, refresh: bool) -> None:
            assert text == "weighted loss 1.000, 2 examples/s"

        def update(self, count: int) -> None:
            updates.append(count)

    monkeypatch.setattr(progress, "tqdm", Bar)
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True)
    Progress(first_step=5, last_step=9).step(5, 1.0, 2.0)
    assert (bars[0]["total"], bars[0]["initial"], updates) == (9, 5, [1])


def test_interfaces_are_shown_of_complexes(capsys: pytest.CaptureFixture[str]) -> None:
    Progress(first_step=0, last_step=1).evaluation(0, {"lddt_ca": 0.5, "chain_lddt_ca": 0.6, "dockq": 0.25})
    said = capsys.readouterr().err
    assert "held-out complexes after 1 step: CA-lDDT 0.500, CA-lDDT within chains 0.600, DockQ 0.250" in said


@pytest.mark.parametrize(
    ("patience", "best_step", "step", "is_settled"),
    [(3, 100, 400, True), (3, 100, 399, False), (None, 100, 10_000, False), (3, None, 10_000, False)],
)
def test_a_run_is_settled_after_so_many_evaluations_that_are_no_better(
    patience: int | None, best_step: int | None, step: int, is_settled: bool
) -> None:
    config = EvaluationConfig(every=100, patience=patience)
    assert RunProgress(step=step, best_step=best_step).is_settled(config) == is_settled
