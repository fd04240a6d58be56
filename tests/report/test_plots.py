"""Plots show the data they are given, at any length and for any number of models."""

import io
import re
import subprocess
import sys
from importlib import resources

import matplotlib.colors
import numpy as np
import pytest
from PIL import Image

from data_pipeline.features.alignment_depth import alignment_depth
from data_pipeline.residues import GAP
from helixfold.prediction import CONFIDENCE_BANDS
from helixfold.report import plots
from helixfold.report.maps import LARGEST_ERROR
from helixfold.report.plots import coverage_plot, pae_plot, plddt_plot


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


@pytest.mark.parametrize(("models", "length"), [(1, 1), (7, 2), (5, 30), (1, 1500)])
def test_any_number_of_models_and_residues_can_be_drawn(models: int, length: int) -> None:
    assert pixels(plddt_plot(curves(models, length))).std() > 10
    assert pixels(pae_plot(maps(models, length), 31.75)).std() > 10


def test_bands_have_alphafolds_colors_and_limits() -> None:
    assert [(band.least, band.color) for band in CONFIDENCE_BANDS] == [
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


def test_small_errors_are_green_and_large_ones_white() -> None:
    pae = np.zeros((8, 8))
    pae[:, 4:] = 31.75
    image = pixels(pae_plot({"model_1_ptm": pae}, 31.75))
    dark = (image.sum(-1) < 200) & (image[..., 1] > image[..., 0] + 30)
    rows, columns = np.nonzero(dark)
    middle = image.shape[1] * 0.45
    assert np.mean(columns < middle) > 0.95
    assert np.ptp(rows) > 0.6 * image.shape[0]


def test_aligned_residues_are_rows() -> None:
    pae = np.full((8, 8), 31.75)
    pae[0] = 0
    image = pixels(pae_plot({"model_1_ptm": pae}, 31.75))
    panel = image[:, : int(image.shape[1] * 0.8)]
    rows, columns = np.nonzero((panel.sum(-1) < 200) & (panel[..., 1] > panel[..., 0] + 30))
    assert np.ptp(columns) > 4 * np.ptp(rows)
    assert rows.max() < 0.3 * image.shape[0]


def test_notes_are_printed_under_the_plots() -> None:
    notes = ["untrained $demonstration$ parameters", "x" * 300]
    for plain, noted in (
        (plddt_plot(curves(1, 9)), plddt_plot(curves(1, 9), notes)),
        (pae_plot(maps(1, 9), 31.75), pae_plot(maps(1, 9), 31.75, notes)),
    ):
        below = pixels(noted)[pixels(plain).shape[0] :]
        assert below.shape[0] > 30
        assert (below < 150).any()


def test_the_same_data_gives_the_same_bytes() -> None:
    assert plddt_plot(curves(3, 50), ["note"]) == plddt_plot(curves(3, 50), ["note"])
    assert pae_plot(maps(3, 50), 31.75, ["note"]) == pae_plot(maps(3, 50), 31.75, ["note"])


@pytest.mark.parametrize("length", [plots._MAP_PIXELS, plots._MAP_PIXELS + 1, 2 * plots._MAP_PIXELS + 3])
def test_long_maps_are_averaged_over_blocks(length: int) -> None:
    pae = np.random.default_rng(0).uniform(0, 31, (length, length)).astype(np.float32)
    coarse = plots._coarse(pae)
    block = -(-length // plots._MAP_PIXELS)
    assert len(coarse) == -(-length // block) <= plots._MAP_PIXELS
    assert coarse[0, 1] == pytest.approx(pae[:block, block : 2 * block].mean(), rel=1e-5)
    last = (len(coarse) - 1) * block
    assert coarse[-1, 0] == pytest.approx(pae[last:, :block].mean(), rel=1e-5)


def test_no_state_of_pyplot_is_touched() -> None:
    code = (
        "import sys, numpy; from helixfold.report.plots import plddt_plot; plddt_plot({'m': numpy.ones(3)});"
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def alignment(rows: int, length: int) -> np.ndarray:
    """Half of the rows cover the first half of the target only."""
    msa = np.random.default_rng(0).integers(0, 20, (rows, length)).astype(np.int8)
    msa[1::2, length // 2 :] = GAP
    return msa


@pytest.mark.parametrize(("rows", "length"), [(2, 1), (2, 3), (40, 100), (5000, 60), (3, 4000)])
def test_coverage_of_any_size_can_be_drawn(rows: int, length: int) -> None:
    msa = alignment(rows, length)
    assert pixels(coverage_plot(msa, alignment_depth(msa))).std() > 10


def test_a_single_row_has_no_coverage_and_the_picture_says_so() -> None:
    image = pixels(coverage_plot(alignment(1, 76), alignment_depth(alignment(1, 76))))
    assert image.shape[0] < 300
    dark = image.max(-1) < 100
    assert 0.01 < dark.mean() < 0.1
    # Nothing but black words: no colour bar, no line.
    assert np.ptp(image, axis=-1).max() == 0


def test_the_page_and_the_picture_have_one_scale_of_errors() -> None:
    text = (resources.files("helixfold.report") / "pages" / "heat_map.js").read_text()
    found = re.search(r"green: \[(.*?)\]", text)
    assert found is not None
    page = [matplotlib.colors.to_rgb(color) for color in re.findall("#[0-9a-f]{6}", found[1])]
    picture = matplotlib.colormaps["Greens_r"](np.linspace(0, 1, len(page)))[:, :3]
    assert page == pytest.approx(picture, abs=2 / 255)
    image = pixels(pae_plot({"m": np.full((4, 4), LARGEST_ERROR / 2)}, LARGEST_ERROR))
    assert share_of(image, tuple(255 * np.array(page[len(page) // 2]))) > 0.3


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


def test_the_same_alignment_gives_the_same_bytes() -> None:
    msa = alignment(30, 40)
    assert coverage_plot(msa, alignment_depth(msa)) == coverage_plot(msa, alignment_depth(msa))
