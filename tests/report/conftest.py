"""A real browser for the pages that are written."""

import shutil
from collections.abc import Iterator

import pytest

from tests.report.browser import Browser


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A headless Chromium with an empty profile."""
    programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in programs:
        pytest.skip("needs a browser (packages chromium and chromium-driver)")
    opened = Browser(*programs, tmp_path_factory.mktemp("browser"))
    yield opened
    opened.driver.quit()
