"""The curves of a training run show what its log says."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from helixfold.report.training_curves import plot_curves, smoothed
from helixfold.results.training_log import EvaluationRecord, StepRecord, TrainingHistory
from tests.support.figures import figure_of

BLUE, ORANGE = (0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)


def step(number: int, loss: float, **changes: Any) -> StepRecord:
    values: dict[str, Any] = {
        "step": number,
        "examples_seen": number + 1,
        "losses": {"weighted": loss},
        "learning_rate": 1e-3,
        "gradient_norm": 0.1,
        "clipped": 0.0,
        "skipped": False,
        "passes": 1,
        "seconds": 1.0,
        "data_seconds": 0.0,
        "examples_per_second": 1.0,
        "memory_gib": 1.0,
        "names": ("1abc_A",),
    }
    return StepRecord(**{**values, **changes})


def history(losses: list[float], evaluations: dict[int, dict[str, float]] | None = None) -> TrainingHistory:
    return TrainingHistory(
        steps=tuple(step(number, loss) for number, loss in enumerate(losses)),
        evaluations=tuple(
            EvaluationRecord(step=number, summary=summary, chains=()) for number, summary in (evaluations or {}).items()
        ),
    )


def drawn(given: TrainingHistory, path: Path) -> np.ndarray:
    plot_curves(given, path)
    image = Image.open(path)
    assert image.format == "PNG"
    assert set(image.info) <= {"dpi"}, "a date or a program's version would differ between machines"
    return np.asarray(image.convert("RGB")).astype(int)


def rows_of(image: np.ndarray, color: tuple[int, int, int]) -> np.ndarray:
    """How high in the panel of losses (top left) a colour stands, by column; NaN where it is not."""
    panel = image[: image.shape[0] // 2, : image.shape[1] // 2]
    found = np.abs(panel - np.array(color)).max(-1) <= 3
    rows = np.where(found, np.arange(len(panel))[:, None], np.nan)
    present = found.any(0)
    heights = np.full(panel.shape[1], np.nan)
    heights[present] = np.nanmean(rows[:, present], 0)
    return heights


@pytest.mark.integration
@pytest.mark.parametrize(
    "given",
    [
        pytest.param(history([]), id="nothing"),
        pytest.param(history([math.nan] * 5), id="nan"),
        pytest.param(history([], {9: {"loss": 1.0, "lddt_ca": 0.5}}), id="evaluation"),
        pytest.param(
            history([2.0, math.nan, 1.0], {1: {}, 2: {"loss": math.nan, "lddt_ca": math.nan, "tm_score": 0.3}}),
            id="holes",
        ),
        pytest.param(history([3.0]), id="one", marks=pytest.mark.long),
        pytest.param(history([3.0, 3.0]), id="constant", marks=pytest.mark.long),
        pytest.param(
            TrainingHistory(steps=(step(0, 1.0, gradient_norm=0.0, learning_rate=0.0, skipped=True),), evaluations=()),
            id="zeros",
            marks=pytest.mark.long,
        ),
        pytest.param(
            TrainingHistory(steps=(step(10**6, -1.0, losses={}),), evaluations=()), id="late", marks=pytest.mark.long
        ),
    ],
)
def test_any_history_can_be_drawn(given: TrainingHistory, tmp_path: Path) -> None:
    assert drawn(given, tmp_path / "curves.png").std() > 5


@pytest.mark.integration
def test_a_falling_loss_falls_and_the_held_out_one_stands_above(tmp_path: Path) -> None:
    losses = list(np.linspace(10, 2, 200))
    image = drawn(
        history(losses, {place: {"loss": losses[place] + 4} for place in range(9, 200, 10)}), tmp_path / "curves.png"
    )
    training, held_out = rows_of(image, BLUE), rows_of(image, ORANGE)
    both = np.flatnonzero(np.isfinite(training) & np.isfinite(held_out))
    both = both[both < len(training) // 2]  # the legend is on the right
    assert len(both) > 100
    assert (held_out[both] < training[both]).all()
    assert training[both[-1]] > training[both[0]] + 50


@pytest.mark.integration
def test_scores_are_on_a_scale_from_0_to_1(tmp_path: Path) -> None:
    def height(score: float) -> float:
        given = history([1.0] * 9, {place: {"lddt_ca": score} for place in range(9)})
        image = drawn(given, tmp_path / "curves.png")
        panel = image[: image.shape[0] // 2, image.shape[1] // 2 :]
        return float(np.argmax((np.abs(panel - np.array(ORANGE)).max(-1) <= 3).sum(1)))

    assert height(0.25) - height(0.75) > 100


@pytest.mark.integration
def test_a_few_wild_steps_do_not_press_the_curve_flat(tmp_path: Path) -> None:
    losses = list(np.linspace(10, 2, 400))
    losses[200] = 1e4
    rows = rows_of(drawn(history(losses), tmp_path / "curves.png"), BLUE)
    rows = rows[np.isfinite(rows)]
    assert rows[-1] - rows[0] > 200


@pytest.mark.integration
def test_skipped_steps_are_marked(tmp_path: Path) -> None:
    steps = [step(number, 1.0, skipped=number == 5) for number in range(10)]
    marked = drawn(TrainingHistory(steps=tuple(steps), evaluations=()), tmp_path / "c.png")
    panel = marked[marked.shape[0] // 2 :, : marked.shape[1] // 2]
    assert (np.abs(panel - np.array(ORANGE)).max(-1) <= 3).sum() > 10


@pytest.mark.parametrize("window", [1, 2, 5, 100])
def test_smoothing_keeps_a_constant_and_leaves_holes_out(window: int) -> None:
    values = np.full(11, 2.0)
    values[[0, 4]] = np.nan
    smooth = smoothed(values, window)
    np.testing.assert_allclose(smooth[np.isfinite(smooth)], 2.0)
    assert np.isnan(smooth).sum() == (2 if window == 1 else 0)


def test_smoothing_is_a_plain_mean_around_each_place() -> None:
    values = np.random.default_rng(0).normal(size=30)
    expected = [values[max(place - 3, 0) : place + 4].mean() for place in range(30)]
    np.testing.assert_allclose(smoothed(values, 7), expected)
    assert smoothed(np.zeros(0), 5).shape == (0,)


@pytest.mark.integration
def test_the_same_history_gives_the_same_bytes_in_place_of_the_old(tmp_path: Path) -> None:
    path = tmp_path / "curves.png"
    contents = []
    for _ in range(2):
        plot_curves(history([3.0, 2.0]), path)
        contents.append(path.read_bytes())
    assert contents[0] == contents[1]
    assert [entry.name for entry in tmp_path.iterdir()] == ["curves.png"]


def test_every_panel_has_the_values_of_its_steps(tmp_path: Path) -> None:
    """Read back from the axes: steps from 1, the held-out scores by their names, and skipped steps."""
    steps = tuple(
        step(
            number, 9 - number, gradient_norm=0.5 + number, learning_rate=1e-3 * (number + 1), skipped=number in (2, 5)
        )
        for number in range(7)
    )
    scores = {"lddt_ca": 0.1, "tm_score": 0.2, "interface_lddt": 0.3, "dockq": 0.4}
    evaluations = tuple(
        EvaluationRecord(
            step=number, summary={"loss": 20.0 + number, **{k: v + number / 100 for k, v in scores.items()}}, chains=()
        )
        for number in (1, 6)
    )
    given = TrainingHistory(steps=steps, evaluations=evaluations)
    losses, held_out, norms, rates = figure_of(lambda: plot_curves(given, tmp_path / "curves.png")).axes
    every = list(range(1, 8))

    def data(line: Any) -> tuple[list[float], list[float]]:
        return list(line.get_xdata()), list(line.get_ydata())

    training = (every, [9 - number for number in range(7)])
    assert [data(line) for line in losses.lines] == [training, training, ([2, 7], [21, 26])]
    assert [line.get_label() for line in losses.lines[1:]] == ["training", "held-out"]
    names = ("CA-lDDT", "TM-score", "interface lDDT", "DockQ")
    assert [(line.get_label(), *data(line)) for line in held_out.lines] == [
        (f"{name}, last {value + 0.06:.3f}", [2, 7], [value + 0.01, value + 0.06])
        for name, value in zip(names, scores.values(), strict=True)
    ]
    assert held_out.get_ylim() == (0, 1)
    assert norms.get_yscale() == "log"
    assert data(norms.lines[0]) == (every, [0.5 + number for number in range(7)])
    assert data(norms.lines[-1])[0] == [3, 6]
    assert norms.lines[-1].get_label() == "skipped steps (2)"
    assert data(rates.lines[0]) == (every, [1e-3 * number for number in every])
    assert {axes.get_xlim() for axes in (losses, held_out, norms, rates)} == {(0, 7)}
