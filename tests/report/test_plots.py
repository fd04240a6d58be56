"""Plots show the data they are given, at any length and for any number of models."""

import io
import re
from importlib import resources
from pathlib import Path
from typing import Any

import matplotlib.colors
import numpy as np
import pytest
from PIL import Image

from data_pipeline.features.alignment_depth import alignment_depth
from data_pipeline.features.assembly import Chain, complex_features
from data_pipeline.residues import GAP
from helixfold.folding.prediction import CONFIDENCE_BANDS
from helixfold.report import plots
from helixfold.report.maps import LARGEST_ERROR, block_means
from helixfold.report.plot_files import write_alignment, write_coverage, write_plots
from helixfold.report.plots import coverage_plot, heat_maps, pae_plot, plddt_plot
from helixfold.results.prediction import ranked, read_finished, write_prediction
from tests.data_pipeline.sampling.samples import random_features
from tests.support import special_complex
from tests.support.figures import figure_of


def curves(models: int, length: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {f"model_{index + 1}_ptm": random.uniform(5, 99, length) for index in range(models)}


def maps(models: int, length: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {f"model_{index + 1}_ptm": random.uniform(0, 31, (length, length)) for index in range(models)}


def pixels(png: bytes) -> np.ndarray:
    image = Image.open(io.BytesIO(png))
    assert image.format == "PNG"
    assert set(image.info) <= {"dpi"}, "a date or a program's version would differ between machines"
    return np.asarray(image.convert("RGB")).astype(int)


def share_of(image: np.ndarray, color: tuple[float, ...]) -> float:
    return float((np.abs(image - np.array(color)).max(-1) <= 2).mean())


@pytest.mark.integration
@pytest.mark.parametrize(("models", "length"), [(1, 1), (7, 2), (5, 30), (1, 1500)])
def test_any_number_of_models_and_residues_can_be_drawn(models: int, length: int) -> None:
    assert pixels(plddt_plot(curves(models, length))).std() > 10
    assert pixels(pae_plot(maps(models, length), 31.75)).std() > 10


@pytest.mark.integration
def test_bands_have_alphafolds_colors_and_limits() -> None:
    assert [(band.min_plddt, band.color) for band in CONFIDENCE_BANDS] == [
        (90, "#0053D6"),
        (70, "#65CBF3"),
        (50, "#FFDB13"),
        (0, "#FF7D45"),
    ]
    image = pixels(plddt_plot(curves(1, 3)))
    shares = []
    for band in CONFIDENCE_BANDS:
        color = [int(band.color[start : start + 2], 16) for start in (1, 3, 5)]
        shares.append(share_of(image, tuple(255 + 0.28 * (channel - 255) for channel in color)))
    assert np.array(shares) / sum(shares) == pytest.approx([0.1, 0.2, 0.2, 0.5], abs=0.03)


@pytest.mark.integration
def test_small_errors_are_green_and_large_ones_white() -> None:
    pae = np.zeros((8, 8))
    pae[:, 4:] = 31.75
    image = pixels(pae_plot({"model_1_ptm": pae}, 31.75))
    panel = image[:, : int(image.shape[1] * 0.79)]
    dark = (panel.sum(-1) < 200) & (panel[..., 1] > panel[..., 0] + 30)
    rows, columns = np.nonzero(dark)
    assert np.mean(columns < image.shape[1] * 0.47) > 0.99
    assert np.ptp(rows) > 0.6 * image.shape[0]


@pytest.mark.integration
def test_aligned_residues_are_rows() -> None:
    pae = np.full((8, 8), 31.75)
    pae[0] = 0
    image = pixels(pae_plot({"model_1_ptm": pae}, 31.75))
    panel = image[:, : int(image.shape[1] * 0.8)]
    rows, columns = np.nonzero((panel.sum(-1) < 200) & (panel[..., 1] > panel[..., 0] + 30))
    assert np.ptp(columns) > 4 * np.ptp(rows)
    assert rows.max() < 0.3 * image.shape[0]


@pytest.mark.integration
def test_notes_are_printed_under_the_plots() -> None:
    notes = ["untrained $demonstration$ parameters", "x" * 300]
    for plain, noted in (
        (plddt_plot(curves(1, 9)), plddt_plot(curves(1, 9), notes)),
        (pae_plot(maps(1, 9), 31.75), pae_plot(maps(1, 9), 31.75, notes)),
    ):
        below = pixels(noted)[pixels(plain).shape[0] :]
        assert below.shape[0] > 30
        assert (below < 150).any()


@pytest.mark.integration
def test_the_same_data_gives_the_same_bytes() -> None:
    assert plddt_plot(curves(3, 50), ["note"]) == plddt_plot(curves(3, 50), ["note"])
    assert pae_plot(maps(3, 50), 31.75, ["note"]) == pae_plot(maps(3, 50), 31.75, ["note"])


@pytest.mark.parametrize("length", [plots._MAP_PIXELS, plots._MAP_PIXELS + 1, 2 * plots._MAP_PIXELS + 3])
def test_long_maps_are_averaged_over_blocks(length: int) -> None:
    pae = np.random.default_rng(0).uniform(0, 31, (length, length)).astype(np.float32)
    coarse = block_means(pae, plots._MAP_PIXELS)[0]
    block = -(-length // plots._MAP_PIXELS)
    assert len(coarse) == -(-length // block) <= plots._MAP_PIXELS
    assert coarse[0, 1] == pytest.approx(pae[:block, block : 2 * block].mean(), rel=1e-5)
    last = (len(coarse) - 1) * block
    assert coarse[-1, 0] == pytest.approx(pae[last:, :block].mean(), rel=1e-5)


def alignment(rows: int, length: int) -> np.ndarray:
    """Half of the rows cover the first half of the target only."""
    msa = np.random.default_rng(0).integers(0, 20, (rows, length)).astype(np.int8)
    msa[1::2, length // 2 :] = GAP
    return msa


@pytest.mark.integration
@pytest.mark.parametrize(("rows", "length"), [(2, 1), (2, 3), (40, 100), (5000, 60), (3, 4000)])
def test_coverage_of_any_size_can_be_drawn(rows: int, length: int) -> None:
    msa = alignment(rows, length)
    assert pixels(coverage_plot(msa, alignment_depth(msa))).std() > 10


@pytest.mark.integration
def test_a_single_row_has_no_coverage_and_the_picture_says_so() -> None:
    image = pixels(coverage_plot(alignment(1, 76), alignment_depth(alignment(1, 76))))
    assert image.shape[0] < 300
    dark = image.max(-1) < 100
    assert 0.01 < dark.mean() < 0.1
    # Nothing but black words: no colour bar, no line.
    assert np.ptp(image, axis=-1).max() == 0


@pytest.mark.integration
def test_the_page_and_the_picture_have_one_scale_of_errors() -> None:
    text = (resources.files("helixfold.report") / "pages" / "heat_map.js").read_text()
    found = re.search(r"green: \[(.*?)\]", text)
    assert found is not None
    page = [matplotlib.colors.to_rgb(color) for color in re.findall("#[0-9a-f]{6}", found[1])]
    picture = matplotlib.colormaps["Greens_r"](np.linspace(0, 1, len(page)))[:, :3]
    assert page == pytest.approx(picture, abs=2 / 255)
    image = pixels(pae_plot({"m": np.full((4, 4), LARGEST_ERROR / 2)}, LARGEST_ERROR))
    assert share_of(image, tuple(255 * np.array(page[len(page) // 2]))) > 0.3


@pytest.mark.integration
def test_rows_are_sorted_by_identity_and_gaps_are_white() -> None:
    msa = np.zeros((100, 50), np.int8)
    msa[1:, 25:] = GAP
    msa[1:50, :25] = 1
    image = pixels(coverage_plot(msa, alignment_depth(msa)))
    panel = image[120:480, 120:900]
    left, right = panel[:, 40:300], panel[:, 480:740]
    light = (left.min(-1) > 250).mean()
    assert light < 0.2
    assert (right.min(-1) > 250).mean() > 0.9
    # The rows that are like the target stand on top and are darker.
    assert left[40:100].mean() < left[-100:-40].mean() - 20


@pytest.mark.integration
def test_paired_rows_stand_above_a_line_and_chains_end_at_lines() -> None:
    msa = np.zeros((100, 50), np.int8)
    msa[1:40] = 1  # paired rows, which are less like the target than the others are
    depth = alignment_depth(msa)
    image = pixels(coverage_plot(msa, depth, paired=40, chain_ends=[20]))
    red = tuple(255 * np.array(matplotlib.colors.to_rgb(plots._PAIRED_COLOR)))
    near = np.abs(image.astype(float) - red).max(-1) < 12
    line = np.flatnonzero(near.sum(1) > 300)
    assert len(line)
    panel = np.flatnonzero((np.ptp(image, axis=-1) > 60).mean(1) > 0.3)
    assert (line[0] - panel[0]) / np.ptp(panel) == pytest.approx(0.4, abs=0.05)
    above, below = image[line[0] - 60 : line[0] - 20, 200:300], image[line[-1] + 20 : line[-1] + 60, 200:300]
    assert above.mean() > below.mean() + 20
    changed = (image != pixels(coverage_plot(msa, depth, paired=40))).any(-1)
    columns = np.flatnonzero(changed.sum(0) > 200)
    assert 1 <= len(columns) <= 4
    assert not (np.abs(pixels(coverage_plot(msa, depth)).astype(float) - red).max(-1) < 12).any()


@pytest.mark.integration
def test_the_same_alignment_gives_the_same_bytes() -> None:
    msa = alignment(30, 40)
    assert coverage_plot(msa, alignment_depth(msa)) == coverage_plot(msa, alignment_depth(msa))


def test_lines_of_plddt_are_drawn_over_residues_from_1_and_bands_at_their_limits() -> None:
    random = np.random.default_rng(0)
    given = {"best": random.uniform(0, 100, 26), "second": random.uniform(0, 100, 26), "third": np.arange(26.0)}
    (axes,) = figure_of(lambda: plddt_plot(given)).axes
    assert len(axes.lines) == 3
    for line, (name, values) in zip(axes.lines, given.items(), strict=True):
        np.testing.assert_array_equal(line.get_xdata(), range(1, 27))
        np.testing.assert_array_equal(line.get_ydata(), values)
        assert line.get_label() == f"{name} (mean {sum(values) / 26:.1f})"
    heights = [line.get_zorder() for line in axes.lines]
    assert heights == sorted(heights, reverse=True)
    assert (axes.get_xlim(), axes.get_ylim()) == ((0.5, 26.5), (0, 100))
    assert axes.get_yticks().tolist() == [0, 50, 70, 90, 100]
    bands = [(patch.get_y(), patch.get_y() + patch.get_height(), patch.get_facecolor()) for patch in axes.patches]
    limits = [(90, 100, "#0053D6"), (70, 90, "#65CBF3"), (50, 70, "#FFDB13"), (0, 50, "#FF7D45")]
    assert bands == [(low, high, matplotlib.colors.to_rgba(color, 0.28)) for low, high, color in limits]
    words = [(text.get_text(), text.xy[1]) for text in axes.texts]
    names = ("very high", "confident", "low", "very low")
    assert words == [
        (f"{name}\n{low} to {high}", (low + high) / 2) for name, (low, high, _) in zip(names, limits, strict=True)
    ]


def test_maps_of_errors_have_the_aligned_residue_in_rows_from_the_top_and_one_scale() -> None:
    given = {"best": special_complex.pae(), "second": special_complex.pae()[::-1]}
    figure = figure_of(lambda: pae_plot(given, 31.75))
    *panels, bar = figure.axes
    assert [panel.get_title() for panel in panels] == ["best", "second"]
    for panel, pae in zip(panels, given.values(), strict=True):
        (image,) = panel.images
        np.testing.assert_array_equal(image.get_array(), pae)
        assert image.get_clim() == (0, 31.75)
        assert image.get_cmap().name == "Greens_r"
        # Row 0 is the first residue, at the top; left, right, bottom, top.
        assert (image.origin, image.get_extent()) == ("upper", [0.5, 26.5, 26.5, 0.5])
        assert panel.yaxis_inverted()
        assert panel.get_xlabel() == "Scored residue"
    assert panels[0].get_ylabel() == "Aligned residue"
    assert bar.get_ylabel() == "Expected position error (Å)"


def test_chains_of_a_complex_are_named_and_parted_in_every_panel() -> None:
    figure = figure_of(lambda: pae_plot(maps(2, 10), 31.75, (), [("A", 4), ("C", 5), ("D", 1)]))
    for axes in figure.axes[:2]:
        assert [text.get_text().strip() for text in axes.texts] == ["A", "A", "C", "C", "D", "D"]
        assert [text.get_position() for text in axes.texts[::2]] == [(2.5, 0.5), (7.0, 0.5), (10.0, 0.5)]
        assert [text.get_position() for text in axes.texts[1::2]] == [(10.5, 2.5), (10.5, 7.0), (10.5, 10.0)]
        assert [line.get_ydata()[0] for line in axes.lines[::2]] == [4.5, 9.5]
        assert [line.get_xdata()[0] for line in axes.lines[1::2]] == [4.5, 9.5]
    single = figure_of(lambda: pae_plot(maps(1, 10), 31.75, (), [("A", 10)]))
    assert not single.axes[0].texts
    assert not single.axes[0].lines


def test_a_grid_of_maps_has_every_map_at_its_place() -> None:
    given = {f"map {number}": np.full((3, 3), float(number)) for number in range(5)}
    figure = heat_maps(given, "Å", colors="viridis", limits=(-1, 9), columns=2)
    panels = [axes for axes in figure.axes if axes.images]
    assert [(panel.get_title(), panel.images[0].get_array()[0, 0]) for panel in panels] == [
        (f"map {number}", number) for number in range(5)
    ]
    places = [(panel.get_subplotspec().rowspan.start, panel.get_subplotspec().colspan.start) for panel in panels]
    assert places == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]
    assert sum(not axes.get_visible() for axes in figure.axes) == 1


def test_coverage_has_rows_by_identity_gaps_masked_and_the_depth_as_a_line() -> None:
    """Row by row from the letters, with paired rows on top and three chains of unequal lengths."""
    msa = np.array(
        [
            [1, 2, 3, 4, 5, 6, 7],
            [1, 2, 3, 9, 9, 9, 9],  # paired: 3 of 7
            [9, 9, 3, 4, 5, 6, 7],  # paired: 5 of 7
            [GAP, GAP, 3, 4, 5, 6, 7],  # 5 of 7
            [1, 2, GAP, GAP, GAP, GAP, GAP],  # 2 of 7
            [1, 2, 3, 4, 5, 6, GAP],  # 6 of 7
        ],
        np.int8,
    )
    depth = alignment_depth(msa)
    axes, bar = figure_of(lambda: coverage_plot(msa, depth, paired=3, chain_ends=[2, 3])).axes
    (image,) = axes.images
    shown = image.get_array()
    # From the bottom: unpaired rows, then paired ones, each by their identity.
    order, identity = [4, 3, 5, 1, 2, 0], [2, 5, 6, 3, 5, 7]
    np.testing.assert_array_equal(np.ma.getmaskarray(shown), msa[order] == GAP)
    for row, equal in zip(shown, identity, strict=True):
        np.testing.assert_allclose(row.compressed(), equal / 7)
    assert (image.origin, image.get_extent(), image.get_clim()) == ("lower", [0.5, 7.5, 0, 6], (0, 1))
    white, black, *lines = axes.lines
    for line in (white, black):
        np.testing.assert_array_equal(line.get_xdata(), range(1, 8))
        np.testing.assert_array_equal(line.get_ydata(), [5, 5, 5, 5, 5, 5, 4])
        assert line.get_drawstyle() == "steps-mid"
    assert [line.get_xdata()[0] for line in lines[:2]] == [2.5, 3.5]
    assert [line.get_ydata()[0] for line in lines[2:]] == [3]
    assert axes.get_title().startswith("6 sequences (3 paired, above the line), ")
    assert (axes.get_xlim(), axes.get_ylim()) == ((0.5, 7.5), (0, 6.12))
    assert bar.get_ylabel() == "Identity to the target"


def test_the_files_plots_are_of_the_predictions_and_of_the_chains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve predictions, the best ten of which are drawn; chains of 5, 9 and 4 residues."""
    plddt = special_complex.prediction().plddt
    for place in range(3):
        changed = {"plddt": np.roll(plddt, place), "pae": np.roll(special_complex.pae(), place, axis=1)}
        score = [0.3, 0.8, 0.5][place]
        write_prediction(tmp_path, special_complex.prediction(f"m_{place}", ranking_confidence=score, **changed))
    order = ranked([each for place in range(3) if (each := read_finished(tmp_path, f"m_{place}")) is not None])
    monkeypatch.setattr("helixfold.report.plot_files._MAX_DRAWN", 2)
    drawn: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}
    for name in ("plddt", "pae", "coverage"):

        def draw(*arguments: Any, name: str = name, **named: Any) -> bytes:
            drawn[name] = arguments, named
            return b"a plot"

        monkeypatch.setattr(f"helixfold.report.plot_files.{name}_plot", draw)
    write_plots(tmp_path, order)
    (plddts, notes), _ = drawn["plddt"]
    assert notes == []
    assert [(name, values.round(2).tolist()) for name, values in plddts.items()] == [
        (f"m_{place}", np.roll(plddt, place).round(2).tolist()) for place in (1, 2)
    ]
    (paes, largest, _, chains), _ = drawn["pae"]
    assert [name for name, _ in chains] == list(special_complex.chain_names())
    assert sum(residues for _, residues in chains) == len(plddt)
    assert largest == 31.75
    for place in (1, 2):
        np.testing.assert_allclose(paes[f"m_{place}"], np.roll(special_complex.pae(), place, axis=1), atol=1e-5)

    chains = [Chain(name=name, features=random_features(6, length)) for name, length in (("H", 5), ("L", 9), ("x", 4))]
    features = complex_features(chains)
    depth = write_alignment(tmp_path, features)
    write_coverage(tmp_path, features, depth)
    (msa, given), named = drawn["coverage"]
    assert given is depth
    np.testing.assert_array_equal(msa, features.msa)
    assert named == {"paired": features.paired_rows, "chain_ends": [5, 14]}
    assert all((tmp_path / f"{name}.png").read_bytes() == b"a plot" for name in drawn)
    np.testing.assert_array_equal(depth.coverage, [sum(kind != GAP for kind in column) for column in features.msa.T])


def test_notes_stand_under_plots_and_a_single_row_is_told_in_words() -> None:
    notes = ["untrained $demonstration$ parameters", "x " * 90]
    for draw in (lambda: plddt_plot(curves(2, 9), notes), lambda: pae_plot(maps(2, 9), 31.75, notes)):
        figure = figure_of(draw)
        (text,) = (each for each in figure.texts if "demonstration" in each.get_text())
        assert text.get_text().split() == " ".join(notes).split()
        assert not text.get_parse_math()
        assert text.get_position()[1] < min(axes.get_position().y0 for axes in figure.axes)
    colors = [line.get_color() for line in figure_of(lambda: plddt_plot(curves(5, 9))).axes[0].lines]
    assert len(set(colors)) == 5
    plots._no_coverage.cache_clear()
    (alone,) = figure_of(lambda: coverage_plot(alignment(1, 9), alignment_depth(alignment(1, 9)))).texts[-1:]
    assert "one sequence, the target itself" in alone.get_text()
    plots._no_coverage.cache_clear()


def test_a_long_chains_map_has_its_residues_on_the_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "_MAP_PIXELS", 3)
    pae = np.arange(36.0).reshape(6, 6)
    (image,) = figure_of(lambda: pae_plot({"m": pae}, 31.75)).axes[0].images
    expected = [[pae[i : i + 2, j : j + 2].mean() for j in (0, 2, 4)] for i in (0, 2, 4)]
    np.testing.assert_allclose(image.get_array(), expected)
    assert image.get_extent() == [0.5, 6.5, 6.5, 0.5]
