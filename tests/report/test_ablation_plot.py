"""Bars of the picture of techniques end at the ratios that were measured."""

import pytest

from helixfold.report.ablation_plot import Gain, ablation_plot
from tests.support.figures import figure_of


def test_every_bar_ends_at_its_ratio_in_its_own_panel() -> None:
    gains = [
        Gain(panel="one", name="a", faster=2.0, spread=(1.8, 2.2), less_memory=0.5),
        Gain(panel="two", name="b", faster=0.75, spread=(0.7, 0.9), less_memory=4.0),
        Gain(panel="one", name="c", faster=1.5, spread=(1.4, 1.6), less_memory=1.25),
    ]
    first, second = figure_of(lambda: ablation_plot(gains, "title")).axes
    for axes, title, rows in ((first, "one", [gains[0], gains[2]]), (second, "two", [gains[1]])):
        assert axes.get_title(loc="left") == title
        assert [label.get_text() for label in axes.get_yticklabels()] == [gain.name for gain in rows]
        ends = [(bar.get_x() + bar.get_width(), bar.get_y() + bar.get_height() / 2) for bar in axes.patches]
        values = [(value, row) for row, gain in enumerate(rows) for value in (gain.faster, gain.less_memory)]
        assert [end for end, _ in ends] == pytest.approx([value for value, _ in values])
        assert [round(place) for _, place in ends] == [row for _, row in values]
        # Time above memory, on an axis that goes down.
        assert all(ends[n][1] < ends[n + 1][1] for n in range(0, len(ends), 2))
        assert axes.yaxis_inverted()
        assert [text.get_text() for text in axes.texts] == [f"{value:.2f}" for value, _ in values]
        assert [tuple(line.get_xdata()) for line in axes.lines[: len(rows)]] == [gain.spread for gain in rows]
