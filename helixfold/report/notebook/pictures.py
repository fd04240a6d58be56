"""Draw plots for notebooks: maps of residue pairs, and curves along a chain or a training run."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image
from torch import Tensor

from helixfold.report.plots import heat_maps, to_png

_DOTS_PER_INCH = 110
# Okabe and Ito's colours, which can be distinguished with any kind of colour vision.
_CURVE_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000")


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A PNG image that a notebook shows when it is the last value of a cell."""

    png: bytes = field(repr=False)  # a notebook stores the repr, too

    def _repr_png_(self) -> bytes:
        return self.png


def maps(
    panels: Mapping[str, Float[np.ndarray, "r r"] | Tensor],
    label: str,
    *,
    least: float | None = 0.0,
    most: float | None = None,
    columns: int = 5,
    axes: tuple[str, str] = ("Residue", "Residue"),
) -> Picture:
    """Draw maps of residue pairs, one panel for each title, with a common colour scale labelled `label`.

    The scale goes from `least` to `most`, which is by default the largest absolute value. If `least` is None, the scale
    goes from -`most` to `most` with white at 0, for differences. A row has up to `columns` panels. `axes` has the
    labels of the horizontal and the vertical axis.
    """
    values = {title: np.asarray(panel, dtype=np.float64) for title, panel in panels.items()}
    top = max(float(np.nanmax(np.abs(each))) for each in values.values()) if most is None else most
    bottom, colors = (-top, "RdBu_r") if least is None else (least, "viridis")
    figure = heat_maps(values, label, colors=colors, limits=(bottom, top), columns=columns, axis_labels=axes)
    figure.set_dpi(_DOTS_PER_INCH)
    return _picture(figure, colors)


def lines(
    values: Mapping[str, Sequence[float] | Float[np.ndarray, " n"]],
    label: str,
    *,
    along: Sequence[float] | None = None,
    along_label: str = "Residue",
    most: float | None = None,
) -> Picture:
    """Draw a curve for each name, over residue numbers from 1 or over the values in `along`.

    `label` is the label of the vertical axis, and `along_label` of the horizontal axis. The vertical axis goes from 0
    to `most`, by default as far as the values.
    """
    figure = Figure(figsize=(6.5, 2.8), dpi=_DOTS_PER_INCH, facecolor="white", layout="constrained")
    axes = figure.add_subplot()
    for index, (name, line) in enumerate(values.items()):
        positions = np.arange(1, len(line) + 1) if along is None else along
        axes.plot(
            positions, line, color=_CURVE_COLORS[index % len(_CURVE_COLORS)], label=name, marker="o", markersize=3
        )
    axes.set(ylim=(0, most), xlabel=along_label, ylabel=label)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True, steps=[1, 2, 5, 10]))
    axes.spines[["top", "right"]].set_visible(False)
    if len(values) > 1:
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return Picture(png=to_png(figure))


def _picture(figure: Figure, colors: str) -> Picture:
    """Return a figure with a palette of a colour map and greys, which takes less than half the bytes in a notebook."""
    greys = np.repeat(np.linspace(0, 1, 16)[:, None], 3, 1)
    palette = Image.new("P", (1, 1))
    shades = np.concatenate([greys, colormaps[colors](np.linspace(0, 1, 240))[:, :3]])
    palette.putpalette((255 * shades).round().astype(np.uint8).ravel().tolist())
    image = Image.open(io.BytesIO(to_png(figure))).convert("RGB").quantize(palette=palette, dither=Image.Dither.NONE)
    png = io.BytesIO()
    image.save(png, "PNG", optimize=True)
    return Picture(png=png.getvalue())
