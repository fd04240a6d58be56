"""The report in a real browser: it draws, it answers the mouse, and it asks for nothing."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.protein import Protein
from helixfold.report.target_page import write_report
from tests.report.browser import Browser
from tests.report.reported import (
    HAIRPIN,
    chain_of,
    many_chains,
    write_dimer,
    write_read_templates,
    write_relaxation,
    write_target,
    write_templates,
)
from tests.support.residue_arrays import RESIDUE_ARRAYS

MODELS = ("model_1_ptm", "model_2_ptm")
UNTRAINED = "UNTRAINED: random parameters, no prediction"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("batch") / "hairpin"
    order = write_target(directory, models=MODELS)
    write_templates(directory)
    write_relaxation(directory, *order)
    write_report(directory)
    return directory / "report.html"


# Let go of what is pinned, and draw the first model as at first: from nothing, so that it is seen when it is there.
AS_OPENED = """
    heat.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}));
    if (style.value !== 'cartoon' || model.value !== '0') {
        viewer.viewer.removeAllModels();
        [style.value, model.value] = ['cartoon', '0'];
        model.dispatchEvent(new Event('change'));
    }
"""


@pytest.fixture
def opened(browser: Browser, report: Path) -> Browser:
    """The report as it is when it has been opened, which is done once: it takes longer than all that is tested."""
    if browser.driver.current_url == report.resolve().as_uri() and browser.run("return Boolean(viewer.viewer)"):
        browser.point("h1", 5, 5)
        browser.run(AS_OPENED)
        browser.until(lambda: browser.run("return viewer.viewer.selectedAtoms({}).length > 0"))
    else:
        browser.open(report)
    return browser


def colours(picture: np.ndarray, red: int, green: int, blue: int, within: int = 60) -> int:
    """How many pixels have about this colour."""
    return int((np.abs(picture - [red, green, blue]).sum(-1) < within).sum())


def marked(browser: Browser) -> str:
    return str(browser.run("return document.getElementById('viewer').dataset.marked"))


def place_in_map(browser: Browser, row: int, column: int) -> tuple[float, float]:
    """Where on the page's heat map this pair of residues is, counted from 0, from the map's corner."""
    return tuple(
        browser.run(
            "const width = arguments[0].clientWidth, side = Math.min(width - 60, 640), cell = side / arguments[3];"
            "return [46 + (arguments[2] + 0.5) * cell, 6 + (arguments[1] + 0.5) * cell]",
            browser.find("#heat"),
            row,
            column,
            browser.run("return document.querySelectorAll('#sequence i').length"),
        )
    )


def test_it_loads_without_a_complaint_and_without_the_network(browser: Browser, report: Path) -> None:
    browser.open(report)
    assert browser.complaints() == []
    fetched = [address for address in browser.fetched() if not address.startswith(("data:", "blob:", "about:"))]
    assert fetched == [report.resolve().as_uri()]


def test_the_structure_is_drawn_in_the_colours_of_plddt(opened: Browser) -> None:
    drawn = opened.picture("#viewer")
    assert colours(drawn, 255, 255, 255) < 0.99 * drawn.shape[0] * drawn.shape[1]
    assert colours(drawn, 0x65, 0xCB, 0xF3, within=120) > 200
    opened.run("document.getElementById('reset').click()")


def test_the_structure_is_printed(opened: Browser) -> None:
    opened.run("dispatchEvent(new Event('beforeprint'))")
    coloured = opened.run(
        """
        const copy = document.querySelector('#viewer .printed');
        const pixels = copy.getContext('2d').getImageData(0, 0, copy.width, copy.height).data;
        return pixels.filter((value, at) => at % 4 === 0 && value < 150 && pixels[at + 3] > 0).length;
        """
    )
    assert coloured > 500
    # On the screen it would lie over the structure.
    assert not opened.find("#viewer .printed").is_displayed()


def test_pointing_at_a_pair_in_the_map_marks_that_pair_in_the_structure(opened: Browser) -> None:
    opened.point("#heat", *place_in_map(opened, 4, 20))
    opened.until(lambda: marked(opened) == "A5 A21")
    readout = opened.find("#heat-readout").text
    name = opened.run("return [4, 20].map((at) => document.querySelectorAll('#sequence i')[at].textContent)")
    assert f"{name[1]}21 when aligned on {name[0]}5" in readout
    assert "PAE" in readout
    assert (
        opened.run("return [...document.querySelectorAll('#sequence i')].findIndex((i) => i.matches('.second'))") == 20
    )
    # Where the two spheres and the line between them are, 3Dmol says itself.
    shapes = opened.run(
        "const viewer = document.getElementById('viewer').viewer;"
        "return [5, 21].map((resi) => { const [atom] = viewer.selectedAtoms({atom: 'CA', resi});"
        "return viewer.shapes.some((shape) => shape && Math.hypot(shape.boundingSphere.center.x - atom.x,"
        "shape.boundingSphere.center.y - atom.y, shape.boundingSphere.center.z - atom.z) < 0.1) })"
    )
    assert shapes == [True, True]
    assert colours(opened.picture("#viewer"), 0xE6, 0x00, 0x7E, within=90) > 20


def test_a_clicked_pair_stays_until_it_is_let_go(opened: Browser) -> None:
    opened.point("#heat", *place_in_map(opened, 2, 9), click=True)
    opened.point("h1", 5, 5)
    opened.until(lambda: marked(opened) == "A3 A10")
    opened.find("#heat").send_keys("\ue00c")  # Escape
    opened.until(lambda: marked(opened) == "")


def test_pointing_at_the_structure_marks_the_residue_in_the_plots(opened: Browser) -> None:
    opened.run("style.value = 'spheres'; style.dispatchEvent(new Event('change'))")
    # The atom that is nearest to the reader has nothing before it.
    number, right, down = opened.run(
        "const { viewer: drawn } = viewer, atoms = drawn.selectedAtoms({atom: 'CA'});"
        "const front = atoms.reduce((one, other) => other.z > one.z ? other : one);"
        "const box = viewer.getBoundingClientRect(), at = drawn.modelToScreen({x: front.x, y: front.y, z: front.z});"
        "return [front.resi, at.x - box.left - scrollX, at.y - box.top - scrollY]"
    )
    opened.point("#viewer", right + 1, down + 1)
    opened.until(lambda: marked(opened) != "")
    near = int(marked(opened).removeprefix("A"))
    assert abs(near - number) <= 4  # a side chain of a neighbour may lie over it
    assert opened.find("#plddt-readout").text[1:].startswith(f"{near}:")


def test_a_drag_over_the_map_colours_both_stretches(opened: Browser) -> None:
    before = colours(opened.picture("#viewer"), 0xE6, 0x00, 0x7E, within=120)
    opened.drag("#heat", place_in_map(opened, 1, 14), place_in_map(opened, 9, 22))
    letters = opened.run("return document.querySelectorAll('#sequence i.away').length")
    assert letters == opened.run("return document.querySelectorAll('#sequence i').length") - 18
    assert "mean PAE" in opened.find("#heat-readout").text
    assert colours(opened.picture("#viewer"), 0xE6, 0x00, 0x7E, within=120) > before + 50


def test_keys_move_along_map_plot_and_sequence(opened: Browser) -> None:
    opened.find("#heat").send_keys("\ue015\ue014")  # down, right
    middle = opened.run("return Math.floor(document.querySelectorAll('#sequence i').length / 2)")
    opened.until(lambda: marked(opened) == f"A{middle + 2} A{middle + 2}")
    opened.find("#plddt").send_keys("\ue011")  # home
    opened.until(lambda: marked(opened) == "A1")
    opened.find("#sequence").send_keys("\ue010\ue012")  # end, left
    opened.until(lambda: marked(opened) == f"A{2 * middle - 1}")


def test_another_model_brings_its_own_structure_map_and_line(opened: Browser) -> None:
    atoms = "return document.getElementById('viewer').viewer.selectedAtoms({atom: 'CA'}).map((atom) => atom.b)"
    first, line = opened.run(atoms), opened.run("return document.querySelector('.line.best').getAttribute('points')")
    opened.find("button[data-model='1']").click()
    opened.until(lambda: opened.run(atoms) not in ([], first))
    assert opened.run("return document.querySelector('.line.best').getAttribute('points')") != line
    assert opened.run("return document.getElementById('model').value") == "1"


def test_relaxed_atoms_are_shown_where_there_are_some(opened: Browser) -> None:
    assert opened.find("#kind").get_attribute("value") == "relaxed"
    assert opened.find("#kind-label").is_displayed()
    assert "0.214" in opened.find("main").text
    assert "could not be relaxed and is shown as predicted: atoms lie on each other" in opened.find(".warnings").text
    opened.run("model.value = '1'; model.dispatchEvent(new Event('change'))")
    opened.until(lambda: not opened.find("#kind-label").is_displayed())


def test_maps_of_distances_are_there_too(browser: Browser, report: Path) -> None:
    with browser.without_webgl():
        browser.open(report)
    for number, title, unit in ((1, "Expected distance", "Å"), (2, "Contact probability", "")):
        browser.run(f"map.value = '{number}'; map.dispatchEvent(new Event('change'))")
        browser.until(lambda title=title: browser.find("#map-title").text == title)
        browser.point("#heat", *place_in_map(browser, 3, 8 + number))
        browser.until(lambda title=title: browser.find("#heat-readout").text.startswith(title))
        assert unit in browser.find("#heat-readout").text


def test_without_webgl_the_rest_of_the_page_works(browser: Browser, report: Path) -> None:
    with browser.without_webgl():
        browser.open(report)
    assert "no WebGL" in browser.find("#viewer-message").text
    browser.point("#heat", *place_in_map(browser, 4, 20))
    browser.until(lambda: "when aligned on" in browser.find("#heat-readout").text)


def test_atoms_that_form_no_chain_are_drawn_all_the_same(browser: Browser, tmp_path: Path) -> None:
    protein = chain_of(HAIRPIN)
    apart = protein.atom_positions + 12.0 * np.arange(len(protein.aatype))[:, None, None] * np.array([1.0, 0.3, 0.1])
    write_target(tmp_path / "apart", protein=replace(protein, atom_positions=apart), notes=[UNTRAINED])
    write_report(tmp_path / "apart")
    browser.open(tmp_path / "apart" / "report.html")
    drawn = browser.picture("#viewer")
    assert (np.abs(drawn - 255).sum(-1) > 60).sum() > 500
    assert "Random parameters, no prediction" in browser.find(".banner").text
    assert browser.find(".banner strong").text.lower() == "not a prediction: random parameters."


def test_a_template_is_drawn_over_the_prediction_when_it_is_chosen(browser: Browser, tmp_path: Path) -> None:
    write_target(tmp_path / "it")
    write_read_templates(tmp_path / "it")
    write_report(tmp_path / "it")
    browser.open(tmp_path / "it" / "report.html")
    count = "return viewer.viewer.selectedAtoms({}).length"
    alone = browser.run(count)
    find = "const box = document.getElementById('template');"
    choose = f"{find} box.value = arguments[0]; box.dispatchEvent(new Event('change'))"
    browser.run(choose, "0")
    browser.until(lambda: browser.run(count) > alone + 60)
    browser.run(choose, "")
    browser.until(lambda: browser.run(count) == alone)
    assert browser.complaints() == []


def test_a_long_banner_is_one_line_until_it_is_opened_or_printed(browser: Browser, tmp_path: Path) -> None:
    words = "many more words of caution"
    write_target(tmp_path / "it", notes=[f"{UNTRAINED}, and {words}. " * 3])
    write_report(tmp_path / "it")

    def shown() -> str:
        return str(browser.run("return document.querySelector('.banner').innerText"))

    with browser.without_webgl():
        browser.open(tmp_path / "it" / "report.html")
        assert words not in shown()
        assert browser.find(".banner").size["height"] < 40
        browser.open(tmp_path / "it" / "report.html", width=390)
    assert words not in shown()
    assert "not a prediction" in shown().lower()
    assert browser.find(".banner").size["height"] < 40
    browser.find(".banner summary").click()
    assert words in shown()
    browser.run("document.querySelector('.banner').open = false; dispatchEvent(new Event('beforeprint'))")
    assert words in shown()


def test_a_single_residue_has_a_page_too(browser: Browser, tmp_path: Path) -> None:
    chain = chain_of(HAIRPIN)
    one = Protein(**{name: getattr(chain, name)[:1] for name in RESIDUE_ARRAYS})
    write_target(tmp_path / "one", protein=one, rows=1)
    write_report(tmp_path / "one")
    browser.open(tmp_path / "one" / "report.html")
    assert browser.complaints() == []
    assert len(browser.run("return viewer.viewer.selectedAtoms({})")) > 3


@pytest.mark.long
def test_more_chains_than_pdb_can_name_are_drawn(browser: Browser, tmp_path: Path) -> None:
    write_target(tmp_path / "many", protein=many_chains(63), rows=1)
    write_report(tmp_path / "many")
    browser.open(tmp_path / "many" / "report.html")
    assert browser.complaints() == []
    atoms = browser.run("return viewer.viewer.selectedAtoms({}).map(({chain, place, b}) => [chain, place, b])")
    assert len({chain for chain, _, _ in atoms}) == 63
    assert {place for _, place, _ in atoms} == set(range(63 * 6))
    assert min(b for _, _, b in atoms) > 1


def test_a_page_without_maps_structures_and_alignment_says_so(browser: Browser, tmp_path: Path) -> None:
    write_target(tmp_path / "bare")
    for pattern in ("pae_*", "distances_*", "features.npz", "*.pdb", "*.cif", "timings.json"):
        for path in (tmp_path / "bare").glob(pattern):
            path.unlink()
    write_report(tmp_path / "bare")
    browser.open(tmp_path / "bare" / "report.html", width=390)
    assert browser.complaints() == []
    assert browser.too_wide() == 0
    assert "This page has no structure" in browser.find("#viewer-message").text
    assert browser.driver.find_elements("css selector", "#heat") == []


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)], ids=["desktop, light", "phone, dark"])
def test_nothing_has_to_be_scrolled_sideways(browser: Browser, report: Path, width: int, dark: bool) -> None:
    with browser.without_webgl():
        browser.open(report, width=width, dark=dark)
    assert browser.too_wide() == 0
    paper = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert (int(paper.removeprefix("rgb(").split(",")[0]) < 60) == dark


def test_the_contacts_of_two_chains_are_counted_and_drawn(browser: Browser, tmp_path: Path) -> None:
    contacts = write_dimer(tmp_path / "dimer")
    write_report(tmp_path / "dimer")
    browser.open(tmp_path / "dimer" / "report.html")
    assert browser.run("return viewer.dataset.contacts ?? '0'") == "0"
    browser.find("[data-pair]").click()
    assert browser.run("return viewer.dataset.contacts") == str(contacts)
    readout = browser.run("return document.getElementById('atom-readout').textContent")
    assert readout == f"Contacts between chains, C-beta atoms within 8 Å: {contacts}"
    assert browser.complaints() == []
