"""Draw what each technique saves, as bars: time and memory without it, beside those with it."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from helixfold.report.plots import new_figure, to_png

# Okabe and Ito's blue and orange, which can be distinguished with any kind of colour vision.
_TIME, _MEMORY = "#0072B2", "#E69F00"
_BAR = 0.38


@dataclass(frozen=True, kw_only=True)
class Gain:
    """Savings by a technique: time and memory without it as multiples of those with it, and the range of the former.

    `panel` is the title of the panel in which it is drawn.
    """

    panel: str
    name: str
    faster: float
    spread: tuple[float, float]
    less_memory: float


def ablation_plot(gains: Sequence[Gain], title: str) -> bytes:
    """Return a PNG with a panel of bars for each title, below each other; a bar that ends right of 1 is a saving."""
    panels: dict[str, list[Gain]] = {}
    for gain in gains:
        panels.setdefault(gain.panel, []).append(gain)
    heights = [0.9 + 0.42 * len(each) for each in panels.values()]
    figure = new_figure(8.2, 1.2 + sum(heights))
    figure.suptitle(title, fontsize=9.5)
    axes = figure.subplots(len(panels), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    for panel, (name, shown) in zip(axes, panels.items(), strict=True):
        _draw(panel, name, shown)
    axes[-1].set_xlabel("without the technique, as a multiple of what it takes with it", fontsize=9)
    handles = [Patch(color=_TIME, label="time (line: range over rounds)"), Patch(color=_MEMORY, label="peak memory")]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    return to_png(figure)


def _draw(axes: Axes, name: str, gains: Sequence[Gain]) -> None:
    axes.set_title(name, fontsize=9.5, loc="left")
    for row, gain in enumerate(gains):
        for value, offset, color in ((gain.faster, -_BAR / 2, _TIME), (gain.less_memory, _BAR / 2, _MEMORY)):
            axes.barh(row + offset, value - 1, left=1, height=_BAR, color=color)
            side, ends = (1, max) if value >= 1 else (-1, min)
            edge = ends(value, *gain.spread) if color == _TIME else value
            axes.annotate(
                f"{value:.2f}",
                xy=(edge, row + offset),
                xytext=(3 * side, 0),
                textcoords="offset points",
                va="center",
                ha="left" if side > 0 else "right",
                fontsize=7,
            )
        axes.plot(gain.spread, [row - _BAR / 2] * 2, color="black", linewidth=1)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(gains)), [gain.name for gain in gains])
    axes.invert_yaxis()
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.margins(x=0.15)
    axes.tick_params(labelsize=8)
    axes.grid(axis="x", color="#E5E5E5", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
