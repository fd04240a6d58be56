"""Pictures for notebooks are PNG images of what they are given."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from helixfold.notebook.pictures import Picture, lines, maps


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
