"""Draw confidence: pLDDT along the chain, predicted aligned error (PAE), the alignment's coverage.

What ends in `_plot` returns a PNG image, uses no pyplot, needs no display, and the same data gives the same bytes. What
begins with `draw_` draws into axes.
"""

import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int8

from data_pipeline.features.alignment_depth import AlignmentDepth, alignment_depth
from data_pipeline.features.assembly import ComplexFeatures
from data_pipeline.features.schema import Features
from data_pipeline.residues import GAP
from helixfold.folding.prediction import CONFIDENCE_BANDS
from helixfold.report.maps import block_means
from helixfold.results.pdb import plain_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from matplotlib.ticker import MaxNLocator

# Dark enough to be distinguished on every band; the first is for the best model.
_LINE_COLORS = ("#1B1B1B", "#B0128B", "#00695C", "#B71C1C", "#6D4C41")
_DOTS_PER_INCH = 150
# More values than a panel has pixels only cost memory.
_MAP_PIXELS = 800
_COVERAGE_PIXELS = (800, 1600)  # rows and columns
_PAIRED_COLOR = "#C2185B"
_IDENTITY_LABEL = "Identity to the target"
_PAE_LABEL, _PAE_COLORS, _PAE_AXES = "Expected position error (Å)", "Greens_r", ("Scored residue", "Aligned residue")


def plddt_plot(plddts: Mapping[str, Float[np.ndarray, "r"]], notes: Sequence[str] = ()) -> bytes:
    """Return a PNG with a line of pLDDT (0 to 100) for each prediction, over the confidence bands.

    `plddts` has the predictions by name, the best first; `notes` are small print under the plot.
    """
    legend_columns = min(3, len(plddts))
    legend_height = 0.22 * math.ceil(len(plddts) / legend_columns)
    margins = Margins(left=0.62, right=0.85, bottom=0.55, top=0.2 + legend_height)
    figure = new_figure(8.0, 3.6 + legend_height, notes, margins)
    draw_plddt(figure.add_subplot(), plddts)
    figure.legend(loc="upper center", ncols=legend_columns, frameon=False, fontsize=8.5)
    return to_png(figure)


def draw_plddt(axes: "Axes", plddts: Mapping[str, Float[np.ndarray, "r"]]) -> None:
    """Draw a line of pLDDT for each prediction over the confidence bands; `plddts` has the best prediction first."""
    top = 100.0
    for band in CONFIDENCE_BANDS:
        axes.axhspan(band.min_plddt, top, color=band.color, alpha=0.28, linewidth=0)
        axes.annotate(
            f"{band.name}\n{band.min_plddt:.0f} to {top:.0f}",
            xy=(1.01, (band.min_plddt + top) / 2),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=7.5,
            linespacing=1.1,
        )
        top = band.min_plddt

    for rank, (model, values) in enumerate(plddts.items()):
        axes.plot(
            np.arange(1, len(values) + 1),
            values,
            color=_LINE_COLORS[rank % len(_LINE_COLORS)],
            linewidth=1.4 if rank == 0 else 0.9,
            marker="o" if len(values) == 1 else None,
            markersize=3,
            # The best model is drawn last, on top of the others.
            zorder=3 + 1 / (1 + rank),
            label=f"{model} (mean {np.mean(values):.1f})",
        )
    axes.set(
        xlim=(1 - 0.5, max(map(len, plddts.values())) + 0.5),
        ylim=(0, 100),
        yticks=[0, 50, 70, 90, 100],
        xlabel="Residue",
        ylabel="pLDDT",
    )
    axes.xaxis.set_major_locator(_round_numbers(10))
    axes.spines[["top", "right"]].set_visible(False)


def pae_plot(
    paes: Mapping[str, Float[np.ndarray, "r r"]],
    max_pae: float,
    notes: Sequence[str] = (),
    chains: Sequence[tuple[str, int]] = (),
) -> bytes:
    """Return a PNG with a heat map of PAE in Angstrom for each prediction, green where the error is small.

    `paes` has the predictions by name, the best first; `notes` are small print under the plot. `max_pae` is the end of
    the colour scale. `chains` are the names of a complex's chains and their numbers of residues, in order.
    """
    panels = heat_maps(
        paes,
        _PAE_LABEL,
        colors=_PAE_COLORS,
        limits=(0, max_pae),
        side=4.2 if len(paes) == 1 else 2.4,
        axis_labels=_PAE_AXES,
        notes=notes,
    )
    if len(chains) > 1:
        for axes in panels.axes[: len(paes)]:
            _mark_chains(axes, chains)
    return to_png(panels)


def draw_pae(
    axes: "Axes", title: str, pae: Float[np.ndarray, "r r"], max_pae: float, chains: Sequence[tuple[str, int]]
) -> None:
    """Draw a heat map of PAE with its colour bar; see `pae_plot`."""
    image = _draw_map(axes, title, pae, _PAE_COLORS, (0, max_pae))
    axes.set(xlabel=_PAE_AXES[0], ylabel=_PAE_AXES[1])
    if len(chains) > 1:
        _mark_chains(axes, chains)
    axes.figure.colorbar(image, ax=axes, label=_PAE_LABEL)


def _mark_chains(axes: "Axes", chains: Sequence[tuple[str, int]]) -> None:
    """Draw lines between the chains of a complex on a map of residue pairs, and name the chains at its edges."""
    axes.set_title(axes.get_title(), fontsize=9, pad=14)
    ends = np.cumsum([residues for _, residues in chains])
    for end in ends[:-1]:
        axes.axhline(end + 0.5, color="black", linewidth=0.6)
        axes.axvline(end + 0.5, color="black", linewidth=0.6)
    for (name, residues), end in zip(chains, ends, strict=True):
        middle = end - residues / 2 + 0.5
        place: dict[str, Any] = {"fontsize": 7, "clip_on": False, "color": "black"}
        axes.text(middle, 0.5, name, ha="center", va="bottom", **place)
        axes.text(ends[-1] + 0.5, middle, f" {name}", ha="left", va="center", **place)


def heat_maps(
    maps: Mapping[str, Float[np.ndarray, "r r"]],
    label: str,
    *,
    colors: str,
    limits: tuple[float, float],
    columns: int = 5,
    side: float = 2.4,
    axis_labels: tuple[str, str] = ("", ""),
    notes: Sequence[str] = (),
) -> "Figure":
    """Return a figure with a map of residue pairs for each title, all on one colour scale, which `label` names.

    `colors` is a colour map of matplotlib, and `side` the size of a panel in inches.
    """
    columns = min(columns, len(maps))
    rows = math.ceil(len(maps) / columns)
    margins = Margins(left=0.7, right=1.1, bottom=0.55, top=0.3)
    # Beside a panel there is room for a space, above it for its title, and under it for its label.
    between = {"wspace": 0.12, "hspace": (0.55 if axis_labels[0] else 0.45) / (side - 0.3)}
    figure = new_figure(columns * side + 1.3, rows * (side + 0.25) + 0.5, notes, margins)
    panels = figure.subplots(rows, columns, squeeze=False, gridspec_kw=between).ravel()
    for place, (axes, (title, values)) in enumerate(zip(panels, maps.items(), strict=False)):
        image = _draw_map(axes, title, values, colors, limits)
        axes.tick_params(labelsize=8, labelleft=place % columns == 0)
        axes.set_xlabel(axis_labels[0], fontsize=9)
        if place % columns == 0:
            axes.set_ylabel(axis_labels[1], fontsize=9)
    for unused in panels[len(maps) :]:
        unused.set_visible(False)
    bar = figure.colorbar(image, cax=_beside(figure, margins))
    bar.set_label(label, fontsize=9)
    bar.ax.tick_params(labelsize=8)
    return figure


def _draw_map(
    axes: "Axes", title: str, values: Float[np.ndarray, "r r"], colors: str, limits: tuple[float, float]
) -> "AxesImage":
    length = len(values)
    image = axes.imshow(
        block_means(values, _MAP_PIXELS)[0],
        cmap=colors,
        vmin=limits[0],
        vmax=limits[1],
        extent=(0.5, length + 0.5, length + 0.5, 0.5),
        interpolation="nearest",
    )
    axes.set_title(title, fontsize=9)
    axes.xaxis.set_major_locator(_round_numbers(4))
    axes.yaxis.set_major_locator(_round_numbers(4))
    return image


def coverage_plot(
    msa: Int8[np.ndarray, "n r"], depth: AlignmentDepth, *, paired: int = 0, chain_ends: Sequence[int] = ()
) -> bytes:
    """Return a PNG of an alignment's rows, coloured by identity to the target, and a line of the rows per residue.

    Rows are sorted by identity, gaps are white. Identity is the share of all the target's residues, so that short rows
    are low. A single row has no coverage: the picture then says so.

    Of a complex, the first `paired` rows are those of several chains; they are above all others, and a line parts
    them. `chain_ends` are the numbers of the last residues of all chains but the last one.
    """
    if len(msa) == 1:
        return _no_coverage()
    margins = Margins(left=0.85, right=0.95, bottom=0.5, top=0.35)
    figure = new_figure(8.0, 4.2, margins=margins)
    image = draw_coverage(figure.add_subplot(), msa, depth, paired=paired, chain_ends=chain_ends)
    bar = figure.colorbar(image, cax=_beside(figure, margins))
    bar.set_label(_IDENTITY_LABEL, fontsize=9)
    bar.ax.tick_params(labelsize=8)
    return to_png(figure)


def draw_coverage(
    axes: "Axes",
    msa: Int8[np.ndarray, "n r"],
    depth: AlignmentDepth,
    *,
    paired: int = 0,
    chain_ends: Sequence[int] = (),
) -> "AxesImage":
    """Draw an alignment's rows, coloured by identity, and the rows per residue; see `coverage_plot`."""
    n, r = msa.shape
    identity = (msa == msa[0]).mean(1, dtype=np.float64)
    rows, columns = (
        np.linspace(0, size - 1, min(size, most)).round().astype(int)
        for size, most in zip((n, r), _COVERAGE_PIXELS, strict=True)
    )
    rows = np.lexsort((identity, np.arange(n) < paired))[rows]
    shown = np.ma.masked_where(msa[np.ix_(rows, columns)] == GAP, np.repeat(identity[rows, None], len(columns), 1))

    # Light where rows are distant, as most are: the line is seen on them.
    image = axes.imshow(
        shown,
        cmap="viridis_r",
        vmin=0,
        vmax=1,
        extent=(0.5, r + 0.5, 0, n),
        origin="lower",
        aspect="auto",
        interpolation="nearest",
    )
    positions = np.arange(1, r + 1)
    for color, width in (("white", 3.0), ("black", 1.3)):
        axes.step(positions, depth.coverage, where="mid", color=color, linewidth=width)
    for end in chain_ends:
        axes.axvline(end + 0.5, color="#555555", linewidth=0.8)
    if 1 < paired < n:
        axes.axhline(n - paired, color=_PAIRED_COLOR, linewidth=1.2)
    axes.set(xlim=(0.5, r + 0.5), ylim=(0, n * 1.02), xlabel="Residue", ylabel="Sequences, most similar on top")
    axes.xaxis.set_major_locator(_round_numbers(10))
    axes.yaxis.set_major_locator(_round_numbers(6))
    pairs = f" ({paired:,} paired, above the line)" if 1 < paired < n else ""
    axes.set_title(f"{n:,} sequences{pairs}, {depth.effective_rows:,.1f} independent at 80 % identity", fontsize=9)
    return image


def draw_features_coverage(axes: "Axes", features: Features | ComplexFeatures) -> None:
    """Draw the coverage of a target's alignment with its colour bar; see `coverage_plot`."""
    rows, ends = paired_rows_and_ends(features)
    image = draw_coverage(axes, features.msa, alignment_depth(features.msa), paired=rows, chain_ends=ends)
    axes.figure.colorbar(image, ax=axes, label=_IDENTITY_LABEL)


def paired_rows_and_ends(features: Features | ComplexFeatures) -> tuple[int, list[int]]:
    """Return how many rows of an alignment are paired, and the last residues of all chains but the last one."""
    if isinstance(features, Features):
        return 0, []
    return features.paired_rows, np.cumsum(np.bincount(features.asym_id)[1:])[:-1].tolist()


def new_axes(width: float, height: float) -> "Axes":
    """Return axes in a new figure of pyplot, which notebooks show; sizes are in inches."""
    # Takes long to import, and only notebooks use it.
    from matplotlib import pyplot  # noqa: PLC0415

    return pyplot.figure(figsize=(width, height), layout="constrained").add_subplot()


@cache
def _no_coverage() -> bytes:
    figure = new_figure(8.0, 1.2)
    text = "The alignment has one sequence, the target itself: there is no coverage to draw."
    figure.text(0.5, 0.5, text, ha="center", va="center", fontsize=11)
    return to_png(figure)


def _beside(figure: "Figure", margins: "Margins") -> "Axes":
    """Return new axes for a colour bar at the right of the panels, which leave the margins free."""
    width, area = figure.get_figwidth(), figure.subplotpars
    return figure.add_axes(((width - margins.right + 0.15) / width, area.bottom, 0.16 / width, area.top - area.bottom))


def _round_numbers(most: int) -> "MaxNLocator":
    """Return a locator that places at most `most` tick marks, at round numbers."""
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    return MaxNLocator(nbins=most, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1)


def import_matplotlib() -> None:
    """Import what draws, which takes most of a second, so that a thread can do it before the first plot."""
    import matplotlib.backends.backend_agg  # noqa: PLC0415
    import matplotlib.figure  # noqa: F401, PLC0415


@dataclass(frozen=True, kw_only=True)
class Margins:
    """Inches that a figure's panels leave free for labels."""

    left: float
    right: float
    bottom: float
    top: float


def new_figure(width: float, height: float, notes: Sequence[str] = (), margins: Margins | None = None) -> "Figure":
    """Return an empty figure, with sizes in inches, and the notes as small print under it.

    Without margins, matplotlib finds them, for which it draws the figure once more.
    """
    # Takes long to import, and only drawing needs it.
    from matplotlib.figure import Figure  # noqa: PLC0415

    lines = [line for note in notes for line in textwrap.wrap(plain_text(note), int(width * 17))]
    print_height = 0.13 * len(lines) + (0.1 if lines else 0)
    height += print_height
    figure = Figure(figsize=(width, height), dpi=_DOTS_PER_INCH, facecolor="white")
    if margins is None:
        figure.set_layout_engine(
            "constrained", rect=(0, print_height / height, 1, 1 - print_height / height), w_pad=0.08, h_pad=0.06
        )
    else:
        figure.subplots_adjust(
            left=margins.left / width,
            right=1 - margins.right / width,
            bottom=(margins.bottom + print_height) / height,
            top=1 - margins.top / height,
        )
    # Dollar signs would otherwise be read as mathematics.
    text = "\n".join(lines)
    figure.text(0.5, 0.05 / height, text, ha="center", va="bottom", fontsize=7, color="#555555", parse_math=False)
    return figure


def to_png(figure: "Figure") -> bytes:
    """Return the figure as a PNG in its own resolution, the same bytes for the same figure."""
    buffer = io.BytesIO()
    # Without this, matplotlib writes its own version into the file.
    figure.savefig(buffer, format="png", dpi="figure", metadata={"Software": None})
    return buffer.getvalue()
