"""The pages of settings and presets have the settings and presets of the code."""

from pathlib import Path

import pytest

from scripts.settings_pages import PAGES, renewed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_is_current(page: Path) -> None:
    text = page.read_text()
    assert renewed(text) == text, "run `python scripts/settings_pages.py`"


def test_settings_and_presets_have_their_values() -> None:
    settings, presets = (page.read_text() for page in PAGES)
    assert "| `c_m` | integer, at least 1, at most 8,192 | `256`; `64` | channels of the MSA stream |" in settings
    assert "| `clip_norm` | number, greater than 0 | `0.1` | max norm |" in settings
    assert "| `model_3`, `model_4` | `model.template=null`," in presets
    assert "| `model_1` | `steps=78000` |" in presets
    assert "| `quick` | model_1_ptm with 1 recycle | `model_1_ptm` |" in presets


def test_a_changed_table_is_replaced_and_the_rest_of_the_page_stays() -> None:
    text = PAGES[1].read_text()
    changed = text.replace("| `quick` |", "| `quickest` |").replace("# Presets", "# All presets")
    assert renewed(changed) == text.replace("# Presets", "# All presets")
