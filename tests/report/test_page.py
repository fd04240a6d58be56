"""Pages hold all that they need, and say numbers and names in words that are safe and short."""

import base64
import tomllib
import zlib
from pathlib import Path

import pytest
from PIL import Image

from helixfold.folding.prediction import CONFIDENCE_BANDS
from helixfold.report.page import asset, duration, packed, page

REPOSITORY = Path(__file__).parents[2]


def shown(template: str, **content: object) -> str:
    """What a template makes of its content, through a page of the package."""
    text = page("index.html", styles=(), scripts=(), **{**EMPTY, **content})
    return text.partition(f"<{template}>")[2].partition(f"</{template.split(maxsplit=1)[0]}>")[0]


EMPTY = {
    **{"title": "t", "lines": [], "finished": 0, "failed": 0, "residues": 0, "seconds": 0.0},
    **{
        "mean": None,
        "untrained": 0,
        "demonstrations": 0,
        "has_complexes": False,
        "bands": [],
        "band": None,
        "width": 1,
    },
}


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        *((0.001, "under 0.01 s"), (0.25, "0.25 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1 min 0 s")),
        *((200, "3 min 20 s"), (3599.7, "1 h 0 min"), (7500, "2 h 5 min")),
    ],
)
def test_times_are_said_as_people_say_them(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_a_title_is_text_wherever_it_stands() -> None:
    assert shown("title", title="</title><script>") == "&lt;/title&gt;&lt;script&gt; · helixfold"


def test_packed_bytes_come_back() -> None:
    assert zlib.decompress(base64.b64decode(packed(bytes(range(256)) * 9))) == bytes(range(256)) * 9


def test_the_package_brings_what_its_pages_are_made_of() -> None:
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    assert settings["tool"]["setuptools"]["package-data"]["helixfold.report"] == ["pages/*"]
    for path in (REPOSITORY / "helixfold/report/pages").iterdir():
        assert asset(path.name)


def test_no_page_of_ours_names_a_place_outside() -> None:
    for path in (REPOSITORY / "helixfold/report/pages").iterdir():
        if not path.name.startswith("3Dmol"):
            assert "://" not in path.read_text().replace("http://www.w3.org/2000/svg", ""), path.name


def test_the_picture_of_a_report_has_true_colours_and_is_small() -> None:
    path = REPOSITORY / "docs" / "images" / "report.png"
    with Image.open(path) as opened:
        picture = opened.copy()
    assert picture.mode == "RGB"
    colors = {color for _, color in picture.getcolors(2**24) or []}
    for band in CONFIDENCE_BANDS:
        assert tuple(int(band.color[start : start + 2], 16) for start in (1, 3, 5)) in colors
    assert path.stat().st_size <= 300_000
