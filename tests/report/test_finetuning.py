"""Pages of fine-tunings have what they are given, and their curves the numbers of the logs."""

import base64
from pathlib import Path

import numpy as np

from helixfold.report.finetuning import PageTable, compared_curves, write_finetuning_page
from helixfold.results.training_log import EvaluationRecord, TrainingHistory
from tests.report.test_training_curves import step
from tests.support.figures import figure_of


def history(*losses: float, scores: dict[int, float]) -> TrainingHistory:
    return TrainingHistory(
        steps=tuple(step(number, loss) for number, loss in enumerate(losses)),
        evaluations=(
            *(EvaluationRecord(step=place, summary={"lddt_ca": score}, chains=()) for place, score in scores.items()),
            EvaluationRecord(step=99, summary={"loss": 1.0}, chains=()),
        ),
    )


def test_curves_of_runs_are_over_their_steps_and_told_apart() -> None:
    losses = list(np.random.default_rng(0).uniform(1, 5, 60))
    given = {
        "first $run$": history(*losses, scores={9: 0.25, 19: 0.5}),
        "a name of more than twenty-four letters": history(3.0, 2.0, scores={}),
        **{f"run {number}": history(1.0, scores={}) for number in range(6)},
    }
    left, right = figure_of(lambda: compared_curves(given)).axes
    np.testing.assert_array_equal(left.lines[0].get_xdata(), range(1, 61))
    # Means over three neighbours: a twentieth of 60 steps.
    expected = [np.mean(losses[max(0, place - 1) : place + 2]) for place in range(60)]
    np.testing.assert_allclose(left.lines[0].get_ydata(), expected)
    assert left.lines[1].get_ydata().tolist() == [3.0, 2.0]
    assert (right.lines[0].get_xdata().tolist(), right.lines[0].get_ydata().tolist()) == ([10, 20], [0.25, 0.5])
    for axes in (left, right):
        styles = [(line.get_color(), line.get_linestyle()) for line in axes.lines]
        assert len(set(styles)) == len(given)
        assert styles[0][1] == styles[6][1] == "-"
    names = [text.get_text() for text in right.get_legend().get_texts()]
    assert names[:2] == [r"first \$run\$", "a name of more than twe…"]
    assert "loss" in left.get_ylabel()
    assert "lDDT" in right.get_ylabel()


def test_the_page_has_its_figures_tables_facts_and_picture(tmp_path: Path) -> None:
    tables = [
        PageTable(title="Scores", columns=("target", "before"), rows=[("1abc", "0.51")], note="a note"),
        PageTable(title="Nothing", columns=("x",), rows=[]),
    ]
    given = {"kind": "Fine-tuning", "title": "mine", "figures": {"lDDT after": "0.77"}, "tables": tables}
    write_finetuning_page(tmp_path / "page.html", **given, facts={"rank": "8"}, picture=b"a picture")
    page = (tmp_path / "page.html").read_text()
    for word in ("Fine-tuning", "mine", "0.77", "lDDT after", "Scores", "before", "1abc", "0.51", "a note", "rank"):
        assert word in page
    assert f"data:image/png;base64,{base64.b64encode(b'a picture').decode()}" in page
    assert "Nothing" not in page
    write_finetuning_page(tmp_path / "bare.html", **given)
    assert "base64" not in (tmp_path / "bare.html").read_text().partition("<body>")[2]
