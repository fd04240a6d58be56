"""Pictures for notebooks are PNG images of what they are given."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from helixfold.report.notebook.pictures import Picture, lines, maps
from tests.support.figures import figure_of


def pixels(picture: Picture) -> np.ndarray:
    image = Image.open(io.BytesIO(picture._repr_png_()))
    assert image.format == "PNG"
    return np.asarray(image.convert("RGB")).astype(int)


@pytest.mark.parametrize("panels", [1, 3, 7])
def test_any_number_of_maps_stand_side_by_side(panels: int) -> None:
    random = np.random.default_rng(0)
    given = {f"map {number}": random.uniform(0, 20, (9, 9)) for number in range(panels)}
    assert pixels(maps(given, "Å", columns=4)).std() > 10


def test_tensors_and_gaps_are_drawn_too() -> None:
    given = torch.rand(5, 5)
    given[0] = float("nan")
    assert pixels(maps({"one": given}, "Å")).std() > 10


def test_differences_are_white_at_nothing_red_above_and_blue_below() -> None:
    image = pixels(maps({"one": np.array([[5.0, 0.0], [0.0, -5.0]])}, "Å", least=None))
    panel = image[:, : int(image.shape[1] * 0.75)]
    red = (panel[..., 0] - panel[..., 2] > 60).mean()
    blue = (panel[..., 2] - panel[..., 0] > 60).mean()
    assert red == pytest.approx(blue, rel=0.4)
    assert red > 0.1


def test_lines_are_drawn_over_residues_or_steps() -> None:
    assert pixels(lines({"one": [1, 2, 3], "two": np.array([3.0, 2.0, 1.0])}, "pLDDT", most=4)).std() > 5
    assert pixels(lines({"loss": [float("nan"), 2.0]}, "loss", along=[0, 25], along_label="step")).std() > 5


def test_the_same_values_give_the_same_bytes() -> None:
    assert lines({"one": [1, 2]}, "x").png == lines({"one": [1, 2]}, "x").png


def test_maps_are_drawn_with_their_values_on_one_scale() -> None:
    first, second = np.arange(9.0).reshape(3, 3), torch.arange(9.0).reshape(3, 3).T - 11
    figure = figure_of(lambda: maps({"one": first, "two": second}, "Å"))
    *panels, bar = figure.axes
    assert [panel.get_title() for panel in panels] == ["one", "two"]
    for panel, values in zip(panels, (first, second.numpy()), strict=True):
        (image,) = panel.images
        np.testing.assert_array_equal(image.get_array(), values)
        assert (image.get_clim(), image.get_extent()) == ((0, 11), [0.5, 3.5, 3.5, 0.5])
    assert bar.get_ylabel() == "Å"
    figure = figure_of(lambda: maps({"one": first, "two": second}, "Å", least=None))
    assert [panel.images[0].get_clim() for panel in figure.axes[:2]] == [(-11, 11)] * 2
    figure = figure_of(lambda: maps({"one": first}, "Å", least=2, most=5))
    assert figure.axes[0].images[0].get_clim() == (2, 5)


def test_lines_have_their_values_over_residues_from_1_or_the_given_places() -> None:
    (axes,) = figure_of(lambda: lines({"one": [7, 8, 6], "two": np.array([3.0, 2.0])}, "pLDDT", most=100)).axes
    assert [(list(each.get_xdata()), list(each.get_ydata()), each.get_label()) for each in axes.lines] == [
        ([1, 2, 3], [7, 8, 6], "one"),
        ([1, 2], [3, 2], "two"),
    ]
    assert (axes.get_ylim(), axes.get_xlabel(), axes.get_ylabel()) == ((0, 100), "Residue", "pLDDT")
    (axes,) = figure_of(lambda: lines({"loss": [5.0, 2.0]}, "loss", along=[0, 25], along_label="step")).axes
    assert (list(axes.lines[0].get_xdata()), axes.get_xlabel(), axes.get_ylim()[0]) == ([0, 25], "step", 0)


def test_axes_of_maps_have_labels() -> None:
    *panels, _ = figure_of(lambda: maps({"one": np.eye(3), "two": np.eye(3)}, "Å")).axes
    assert [(each.get_xlabel(), each.get_ylabel()) for each in panels] == [("Residue", "Residue"), ("Residue", "")]
    panel, _ = figure_of(lambda: maps({"one": np.eye(3)}, "weight", axes=("Key", "Query"))).axes
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("Key", "Query")


def test_a_notebook_does_not_store_the_bytes_as_text_too() -> None:
    assert len(repr(maps({"one": np.eye(30)}, "Å"))) < 50


def test_the_colours_of_the_scale_survive_the_palette() -> None:
    shown = pixels(maps({"one": np.arange(400.0).reshape(20, 20)}, "Å"))
    for color in ((68, 1, 84), (33, 145, 140), (253, 231, 37)):  # viridis at 0, 0.5 and 1
        assert np.abs(shown - color).max(-1).min() < 12
