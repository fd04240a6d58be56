"""Plot pLDDT along the chain, predicted aligned errors (PAE), and the coverage of an alignment.

Functions that end in `_plot` return a PNG image, which is the same for the same data; they need no pyplot and no
display. Functions that begin with `draw_` draw into matplotlib axes.
"""

import io
import math
import textwrap
from collections.abc import Mapping, Sequence
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

# These colours are dark enough to be visible on every band; the first is for the best model.
_LINE_COLORS = ("#1B1B1B", "#B0128B", "#00695C", "#B71C1C", "#6D4C41")
_DOTS_PER_INCH = 150
# Maps are reduced to the pixels of a panel, because more values only cost memory.
_MAP_PIXELS = 800
_MAX_COVERAGE_PIXELS = (800, 1600)  # rows and columns
_PAIRED_COLOR = "#C2185B"
_IDENTITY_LABEL = "Identity to the target"
_PAE_LABEL, _PAE_COLORS, _PAE_AXES = "Expected position error (Å)", "Greens_r", ("Scored residue", "Aligned residue")


def plddt_plot(plddts: Mapping[str, Float[np.ndarray, "r"]], notes: Sequence[str] = ()) -> bytes:
    """Return a PNG with a curve of pLDDT (0 to 100) for each prediction, over the confidence bands.

    `plddts` has the values of each prediction by name, the best first. `notes` are printed in small type under the
    plot.
    """
    legend_columns = min(3, len(plddts))
    legend_height = 0.22 * math.ceil(len(plddts) / legend_columns)
    margins = {"left": 0.62, "right": 0.85, "bottom": 0.55, "top": 0.2 + legend_height}
    figure = new_figure(8.0, 3.6 + legend_height, notes, margins)
    draw_plddt(figure.add_subplot(), plddts)
    figure.legend(loc="upper center", ncols=legend_columns, frameon=False, fontsize=8.5)
    return to_png(figure)


def draw_plddt(axes: "Axes", plddts: Mapping[str, Float[np.ndarray, "r"]]) -> None:
    """Draw a curve of pLDDT for each prediction over the confidence bands; see `plddt_plot`."""
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
    """Return a PNG with a heat map of PAE in Å for each prediction, green where the error is small.

    `paes` has the predictions by name, the best first. `notes` are printed in small type under the plot. `max_pae` is
    the end of the colour scale. `chains` has the names of a complex's chains and their numbers of residues, in order.
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
    """Draw a heat map of one prediction's PAE with its colour bar into axes; see `pae_plot`."""
    image = _draw_map(axes, title, pae, _PAE_COLORS, (0, max_pae))
    axes.set(xlabel=_PAE_AXES[0], ylabel=_PAE_AXES[1])
    if len(chains) > 1:
        _mark_chains(axes, chains)
    axes.figure.colorbar(image, ax=axes, label=_PAE_LABEL)


def _mark_chains(axes: "Axes", chains: Sequence[tuple[str, int]]) -> None:
    """Draw lines between the chains of a complex on a map of residue pairs, and the chain names at its edges."""
    axes.set_title(axes.get_title(), fontsize=9, pad=14)
    ends = np.cumsum([residues for _, residues in chains])
    for end in ends[:-1]:
        axes.axhline(end + 0.5, color="black", linewidth=0.6)
        axes.axvline(end + 0.5, color="black", linewidth=0.6)
    for (name, residues), end in zip(chains, ends, strict=True):
        middle = end - residues / 2 + 0.5
        style: dict[str, Any] = {"fontsize": 7, "clip_on": False, "color": "black"}
        axes.text(middle, 0.5, name, ha="center", va="bottom", **style)
        axes.text(ends[-1] + 0.5, middle, f" {name}", ha="left", va="center", **style)


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
    """Return a figure with a map of residue pairs for each title, with a common colour scale labelled `label`.

    `colors` is a colour map of matplotlib, `limits` the ends of the scale, and `side` the size of a panel in inches.
    `axis_labels` are the labels of the horizontal and the vertical axis. Maps are in rows of `columns` panels.
    """
    columns = min(columns, len(maps))
    rows = math.ceil(len(maps) / columns)
    margins = {"left": 0.7, "right": 1.1, "bottom": 0.55, "top": 0.3}
    # The gaps leave room for the title above a panel and the label under it.
    between = {"wspace": 0.12, "hspace": (0.55 if axis_labels[0] else 0.45) / (side - 0.3)}
    # A panel and its title are as wide as they are high; several have a space between them instead.
    width = columns * side + (1.7 if columns == 1 else 1.3)
    figure = new_figure(width, rows * (side + 0.25) + 0.5, notes, margins)
    panels = figure.subplots(rows, columns, squeeze=False, gridspec_kw=between).ravel()
    for index, (axes, (title, values)) in enumerate(zip(panels, maps.items(), strict=False)):
        image = _draw_map(axes, title, values, colors, limits)
        axes.tick_params(labelsize=8, labelleft=index % columns == 0)
        axes.set_xlabel(axis_labels[0], fontsize=9)
        if index % columns == 0:
            axes.set_ylabel(axis_labels[1], fontsize=9)
    for unused in panels[len(maps) :]:
        unused.set_visible(False)
    _add_color_bar(figure, image, label)
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
    """Return a PNG of an alignment's rows, coloured by identity to the target, with a curve of the rows per residue.

    Rows are sorted by identity, and gaps are white. Identity is the fraction of all residues of the target, so it is
    low for short rows. For an alignment of a single row, the picture is a message.

    For a complex, the first `paired` rows are paired rows; they are drawn above all others, separated by a line.
    `chain_ends` are the numbers of the last residues of all chains except the last one.
    """
    if len(msa) == 1:
        return _no_coverage()
    figure = new_figure(8.0, 4.2, margins={"left": 0.85, "right": 0.95, "bottom": 0.5, "top": 0.35})
    image = draw_coverage(figure.add_subplot(), msa, depth, paired=paired, chain_ends=chain_ends)
    _add_color_bar(figure, image, _IDENTITY_LABEL)
    return to_png(figure)


def draw_coverage(
    axes: "Axes",
    msa: Int8[np.ndarray, "n r"],
    depth: AlignmentDepth,
    *,
    paired: int = 0,
    chain_ends: Sequence[int] = (),
) -> "AxesImage":
    """Draw an alignment's rows, coloured by identity, and the number of rows per residue; see `coverage_plot`.

    The image is returned, for a colour bar.
    """
    n, r = msa.shape
    identity = (msa == msa[0]).mean(1, dtype=np.float64)
    rows, columns = (
        np.linspace(0, size - 1, min(size, pixels)).round().astype(int)
        for size, pixels in zip((n, r), _MAX_COVERAGE_PIXELS, strict=True)
    )
    rows = np.lexsort((identity, np.arange(n) < paired))[rows]
    picture = np.ma.masked_where(msa[np.ix_(rows, columns)] == GAP, np.repeat(identity[rows, None], len(columns), 1))

    # The colour map is light for distant rows, which are the majority, so that the curve is visible.
    image = axes.imshow(
        picture,
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
    """Return the number of paired rows of an alignment, and the numbers of the last residues of all chains but one.

    Residues are numbered from 1 over all chains, and the last chain is left out. A single chain gives 0 and [].
    """
    if isinstance(features, Features):
        return 0, []
    return features.paired_rows, np.cumsum(np.bincount(features.asym_id)[1:])[:-1].tolist()


def new_axes(width: float, height: float) -> "Axes":
    """Return empty axes in a new pyplot figure, which notebooks display; sizes are in inches."""
    # pyplot is imported here, because it loads slowly and only notebooks need it.
    from matplotlib import pyplot  # noqa: PLC0415

    return pyplot.figure(figsize=(width, height), layout="constrained").add_subplot()


@cache
def _no_coverage() -> bytes:
    figure = new_figure(8.0, 1.2)
    text = "The alignment has only one sequence, the target itself, so its coverage is not drawn."
    figure.text(0.5, 0.5, text, ha="center", va="center", fontsize=11)
    return to_png(figure)


def _add_color_bar(figure: "Figure", image: "AxesImage", label: str) -> None:
    """Draw the colour bar of an image in the margin at the right of the panels."""
    width, area = figure.get_figwidth(), figure.subplotpars
    place = (area.right + 0.15 / width, area.bottom, 0.16 / width, area.top - area.bottom)
    bar = figure.colorbar(image, cax=figure.add_axes(place))
    bar.set_label(label, fontsize=9)
    bar.ax.tick_params(labelsize=8)


def draw_grid(axes: "Axes") -> None:
    """Draw a light grid behind the data, and remove the frame at the top and the right."""
    axes.grid(color="#E5E5E5", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _round_numbers(max_ticks: int) -> "MaxNLocator":
    """Return a locator that places at most `max_ticks` tick marks, at round numbers."""
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    return MaxNLocator(nbins=max_ticks, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1)


def import_matplotlib() -> None:
    """Import matplotlib, which takes most of a second, so that a thread can do it before the first plot."""
    import matplotlib.backends.backend_agg  # noqa: PLC0415
    import matplotlib.figure  # noqa: F401, PLC0415


def new_figure(
    width: float, height: float, notes: Sequence[str] = (), margins: Mapping[str, float] | None = None
) -> "Figure":
    """Return a figure without axes, with sizes in inches, and the notes in small type under it.

    The notes make the figure higher than `height`. `margins` are the margins of the panels for labels: left, right,
    bottom and top. Without them, matplotlib computes margins, which takes time because it draws the figure twice.
    """
    # matplotlib is imported here, because it loads slowly and only drawing needs it.
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
            left=margins["left"] / width,
            right=1 - margins["right"] / width,
            bottom=(margins["bottom"] + print_height) / height,
            top=1 - margins["top"] / height,
        )
    # `parse_math` is off, because dollar signs would be read as mathematics.
    text = "\n".join(lines)
    figure.text(0.5, 0.05 / height, text, ha="center", va="bottom", fontsize=7, color="#555555", parse_math=False)
    return figure


def to_png(figure: "Figure") -> bytes:
    """Return the figure as a PNG in its own resolution; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    # The metadata are set, because matplotlib would write its version into the file.
    figure.savefig(buffer, format="png", dpi="figure", metadata={"Software": None})
    return buffer.getvalue()
