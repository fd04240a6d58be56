"""Views of structures hold the structures and their viewer, and need no network."""

import dataclasses
import re

import numpy as np
import pytest

pytest.importorskip("py3Dmol", reason="needs the packages of the extra 'notebooks'")

from helixfold.notebook.structures import show_film, show_structure, show_together
from helixfold.prediction import CONFIDENCE_BANDS
from tests.write.proteins import random_protein


def page(view: object) -> str:
    text: str = view._make_html()
    # What the viewer's own code names is not asked for.
    return re.sub(r"data:text/javascript;base64,[A-Za-z0-9+/=]{100000,}", "VIEWER", text)


def test_one_structure_is_coloured_by_plddt_and_nothing_comes_from_elsewhere() -> None:
    protein = random_protein(12)
    plddt = np.repeat([95.0, 80.0, 60.0, 30.0], 3)
    html = page(show_structure(dataclasses.replace(protein, b_factors=plddt[:, None] * protein.atom_mask)))
    for band in CONFIDENCE_BANDS:
        assert html.count(band.color) == 3
    assert "VIEWER" in html
    assert "http" not in html


def test_what_is_no_chain_is_drawn_as_balls() -> None:
    straight = random_protein(6)
    places = np.zeros((6, 37, 3), np.float32)
    places[..., 0] = 3.8 * np.arange(6)[:, None]
    chain = dataclasses.replace(straight, atom_positions=places)
    heap = dataclasses.replace(straight, atom_positions=0.1 * places)
    for protein, style in ((chain, "cartoon"), (heap, "sphere")):
        html = page(show_together({"one": protein}))
        assert (style in html) == (style in page(show_structure(protein)))
        assert style in html
    assert "cartoon" not in page(show_structure(heap))


def test_several_structures_have_a_colour_and_a_name_each() -> None:
    html = page(show_together({"true": random_protein(5), "predicted": random_protein(5, seed=1)}))
    assert html.count("addModel(") == 2
    assert '"true"' in html
    assert '"predicted"' in html


def test_a_film_has_a_frame_for_each_structure() -> None:
    html = page(show_film([random_protein(4, seed=seed) for seed in range(3)], random_protein(4)))
    assert html.count("MODEL  ") >= 3
    assert "animate(" in html
