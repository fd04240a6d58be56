"""Words that the style guide avoids do not come back where they have been replaced."""

from collections import defaultdict

import pytest

from scripts.english import NAMES, PHRASES, files, places
from tests.support.sources import ROOT

# Rows of `python scripts/english.py`.
AVOIDED = (
    "those of, that of",
    "fronted What",
    "fronted Of",
    "beside, but for",
    "in place of, anew",
    "One gives",
    "go on, begin anew",
    "refusal",
    "that there is",
    "name: refusal",
)


@pytest.fixture(scope="module")
def hits() -> dict[str, list[str]]:
    """The places of the words in the package and the documentation, by row."""
    places_by_row = defaultdict(list)
    for row, text in places(files([ROOT / "helixfold", ROOT / "docs"])):
        places_by_row[row].append(f"{text.path.relative_to(ROOT)}:{text.line}: {text.text[:100]}")
    return places_by_row


@pytest.mark.parametrize("row", AVOIDED)
def test_avoided_words_do_not_return(row: str, hits: dict[str, list[str]]) -> None:
    assert row in PHRASES or row.removeprefix("name: ") in NAMES
    assert hits.get(row, []) == []
