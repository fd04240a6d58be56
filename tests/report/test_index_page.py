"""The page of a batch in a real browser: it sorts, filters, fits and asks for nothing."""

from pathlib import Path

import pytest

from helixfold.apps.score.score_run import COLUMNS, ScoredLine, write_scores
from helixfold.report.index import write_index
from helixfold.report.target_page import write_report
from tests.report.browser import Browser
from tests.report.reported import write_target

NOISE = {"a1": 1.5, "a2": 0.2, "a10": 3.0}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("batch")
    for name, noise in NOISE.items():
        write_target(output / name, noise=noise)
        write_report(output / name)
    reason = "InputError: sequence with a letter that is no residue, and a very long reason "
    write_index(output, failures={"broken": reason * 3})
    return output / "index.html"


def names(browser: Browser) -> list[str]:
    shown = "[...document.querySelectorAll('tbody tr')].filter((row) => !row.hidden)"
    return browser.run(f"return {shown}.map((row) => row.cells[0].textContent)")


def sort(browser: Browser, column: str) -> list[str]:
    browser.run("[...document.querySelectorAll('.sort')].find((it) => it.textContent === arguments[0]).click()", column)
    return names(browser)


def test_it_loads_without_a_complaint_and_without_the_network(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.complaints() == []
    assert browser.fetched() == [page.resolve().as_uri()]


def test_a_click_on_a_title_sorts_and_another_one_turns_it_round(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert sort(browser, "Target") == ["a1", "a2", "a10", "broken"]
    assert sort(browser, "Target") == ["broken", "a10", "a2", "a1"]
    assert sort(browser, "Mean pLDDT") == ["a2", "a1", "a10", "broken"]
    # What has no value stays at the end.
    assert sort(browser, "Mean pLDDT") == ["a10", "a1", "a2", "broken"]
    assert browser.find("th[aria-sort=ascending]").text.startswith("Mean pLDDT")


def test_the_filter_leaves_what_holds_all_words(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.find("#filter").send_keys("FAILED letter")
    assert names(browser) == ["broken"]
    assert browser.find("#count").text == "1 of 4 targets"


def test_a_link_leads_to_the_report(browser: Browser, page: Path) -> None:
    with browser.without_webgl():
        browser.open(page)
        browser.find("a[href='./a2/report.html']").click()
        browser.until(lambda: browser.run("return document.title") == "a2 · helixfold")


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_has_to_be_scrolled_sideways(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width=width)
    assert browser.too_wide() == 0


@pytest.mark.parametrize("width", [1280, 420])
def test_scores_of_binders_fit_without_scrolling_sideways(browser: Browser, tmp_path: Path, width: int) -> None:
    others = ("own_plddt", "tm_to_native", "lddt_to_native", "output_tm_to_native", "output_lddt_to_native")
    scores = {name: 0.5 for name in COLUMNS if name not in (*others, "output_dockq")} | {"residues": 128, "chains": 2}
    scores |= {"protocol": "binder", "model": "model_1_ptm"}
    lines = [
        ScoredLine(
            target="designs", name=f"binder_{index:03}", rank=None, problem=None, scores=scores, predicted="x.pdb"
        )
        for index in range(3)
    ]
    write_scores(tmp_path, lines, {"num_recycles": 3, "seed": 0}, [])
    browser.open(tmp_path / "scores.html", width=width)
    assert browser.too_wide() == 0
    assert browser.run("const box = document.querySelector('.scroll'); return box.scrollWidth - box.clientWidth") == 0
