"""Views of structures hold the structures and their viewer, and need no network."""

import dataclasses
import json
import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("py3Dmol", reason="needs the packages of the extra 'notebooks'")

from helixfold.folding.prediction import CONFIDENCE_BANDS
from helixfold.report.notebook.structures import show_film, show_structure, show_together
from helixfold.results.pdb import to_pdb
from tests.results.proteins import random_protein
from tests.support import special_complex


def page(view: object) -> str:
    text: str = view._make_html()
    # What the viewer's own code names is not asked for.
    return re.sub(r"atob\('[A-Za-z0-9+/=]{100000,}'\)", "VIEWER", text)


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


def calls(view: object) -> list[tuple[str, list[Any]]]:
    """The calls of the viewer's functions, in order, with their arguments."""
    lines = re.findall(r"^\tviewer_\d+\.(\w+)\((.*)\);$", page(view), re.MULTILINE)
    return [(name, json.loads(f"[{arguments}]")) for name, arguments in lines]


def ribbon(protein: Any) -> list[str]:
    """The lines of atoms that a ribbon is drawn through, without their serial numbers."""
    atoms = [line for line in to_pdb(protein).splitlines() if line.startswith("ATOM")]
    return [line[11:] for line in atoms if line[12:16].strip() in ("N", "CA", "C", "O")]


def atoms(text: str) -> list[str]:
    return [line[11:] for line in text.splitlines() if line.startswith("ATOM")]


def chain_like(moved: float = 0.0) -> Any:
    """The special complex, whose C-alpha atoms are 3.8 Angstrom apart along their chains."""
    return special_complex.protein(moved=moved)


def test_residues_of_every_chain_have_the_colour_of_their_own_plddt() -> None:
    """Chains that are numbered alike, from 0 and from below 0, and pLDDT on both sides of each limit."""
    view = show_structure(chain_like(), side_chains=True)
    asked = calls(view)
    names = dict(zip(special_complex.chain_names(), "ABCD", strict=True))
    colours: dict[tuple[str, int], str] = {}
    styles = [arguments for name, arguments in asked if name == "addStyle"]
    for selection, style in styles[:-1]:
        assert set(selection) == {"chain", "resi"}
        colours[selection["chain"], selection["resi"]] = style["cartoon"]["color"]
    expected = {
        (names[each.chain], each.number): "#0053D6"
        if each.plddt >= 90
        else "#65CBF3"
        if each.plddt >= 70
        else "#FFDB13"
        if each.plddt >= 50
        else "#FF7D45"
        for each in special_complex.residues()
        if each.atoms
    }
    assert {residue: colours[residue] for residue in expected} == expected
    assert len(styles) == 1 + len(special_complex.residues())
    assert list(styles[-1][0]) == ["stick"]
    assert [arguments for name, arguments in asked if name == "addModel"] == [[to_pdb(chain_like()), "pdb"]]
    order = [name for name, _ in asked]
    assert order.index("addModel") < order.index("setStyle") < order.index("addStyle")


@pytest.mark.parametrize("color", ["chain", "rainbow"])
def test_chains_have_a_colour_each_or_the_rainbow(color: Any) -> None:
    asked = calls(show_structure(chain_like(), color=color))
    styles = [arguments for name, arguments in asked if name == "addStyle"]
    assert [selection for selection, _ in styles] == [{"chain": name} for name in "ABCD"]
    colours = [style["cartoon"]["color"] for _, style in styles]
    assert len(set(colours)) == (4 if color == "chain" else 1)
    assert (colours[0] == "spectrum") == (color == "rainbow")


def test_another_colour_is_an_error() -> None:
    with pytest.raises(ValueError, match="color must be one of plddt, chain, rainbow, got 'pLDDT'"):
        show_structure(chain_like(), color="pLDDT")  # type: ignore[arg-type]


def test_a_notebook_stores_a_view_once() -> None:
    html = show_structure(chain_like())._repr_html_()  # py3Dmol's own method publishes it twice, and returns nothing
    assert "ATOM" in html
    assert len(html) < 300_000


def test_structures_together_are_models_of_their_own_colours_and_labels() -> None:
    given = {"true": chain_like(), "predicted": chain_like(moved=3)}
    asked = calls(show_together(given))
    models = [arguments for name, arguments in asked if name == "addModel"]
    assert [atoms(text) for text, _ in models] == [ribbon(protein) for protein in given.values()]
    assert {form for _, form in models} == {"pdb"}
    styles = [arguments for name, arguments in asked if name == "addStyle"]
    labels = [arguments for name, arguments in asked if name == "addLabel"]
    assert [selection for selection, _ in styles] == [{"model": 0}, {"model": 1}]
    assert [text for text, _ in labels] == list(given)
    colours = [style["cartoon"]["color"] for _, style in styles]
    assert len(set(colours)) == 2
    assert colours == [label["fontColor"] for _, label in labels]
    assert labels[0][1]["position"]["y"] < labels[1][1]["position"]["y"]


def test_frames_of_a_film_are_the_structures_in_their_order() -> None:
    frames, truth = [chain_like(moved=float(place)) for place in range(3)], chain_like(moved=9)
    asked = calls(show_film(frames, truth))
    ((text, form),) = [arguments for name, arguments in asked if name == "addModelsAsFrames"]
    assert form == "pdb"
    models = re.findall(r"MODEL +(\d+)\n(.*?)ENDMDL\n", text, re.DOTALL)
    assert [number for number, _ in models] == ["1", "2", "3"]
    for (_, lines), protein in zip(models, frames, strict=True):
        assert atoms(lines) == ribbon(protein)
    ((text, _),) = [arguments for name, arguments in asked if name == "addModel"]
    assert atoms(text) == ribbon(truth)
    assert [arguments[0] for name, arguments in asked if name == "setStyle"] == [{"model": 0}, {"model": 1}]


def test_a_film_has_a_text_for_each_frame_and_balls_only_without_a_chain() -> None:
    frames = [chain_like(moved=float(place)) for place in range(3)]
    asked = calls(show_film(frames, labels=["step 0", "step 25", "step 50"]))
    labels = [arguments for name, arguments in asked if name == "addLabel"]
    assert [(text, style["frame"]) for text, style in labels] == [("step 0", 0), ("step 25", 1), ("step 50", 2)]
    assert not [name for name, _ in asked if name == "addStyle"]
    heap = dataclasses.replace(frames[0], atom_positions=0.1 * frames[0].atom_positions)
    ((_, style),) = [arguments for name, arguments in calls(show_film([heap, *frames])) if name == "addStyle"]
    assert list(style) == ["sphere"]
