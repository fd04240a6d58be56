"""Paths and Python names in the README and the documentation exist, and pages that other files name do, too."""

import importlib
import re
from functools import reduce
from pathlib import Path

import pytest

from tests.support.sources import ROOT

# Pages that name what is there. docs/migration.md names what is gone; tests/test_release.py checks its new names.
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted({*(ROOT / "docs").rglob("*.md")} - {ROOT / "docs" / "migration.md"}),
]
_PATH = re.compile(
    r"(?<![\w/.-])(?:helixfold|data_pipeline|tests|scripts|examples|docs|notebooks|containers|\.ci|\.github)/[\w./*-]*\w"
)
_NAME = re.compile(r"(?<![\w/.])(?:helixfold|data_pipeline|tests)(?:\.[A-Za-z_]\w*)+")


def exists(name: str) -> bool:
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        try:
            reduce(getattr, parts[count:], module)
        except AttributeError:
            return False
        return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_paths_exist(page: Path) -> None:
    assert [path for path in _PATH.findall(page.read_text()) if not list(ROOT.glob(path))] == []


def named_pages(text: str) -> list[str]:
    """Return the pages of the documentation that a text names."""
    return re.findall(r"(?<![\w/.-])docs/[\w/-]+\.md\b", text)


def test_pages_that_code_and_examples_name_exist() -> None:
    places = ["helixfold", "data_pipeline", "scripts", "examples", "notebooks", "containers", "tests", ".ci", ".github"]
    paths = [*ROOT.glob("*.*"), *(path for place in places for path in (ROOT / place).rglob("*"))]
    files = [path for path in paths if path.is_file() and path.suffix != ".pyc"]
    texts = {path: path.read_bytes().decode(errors="ignore") for path in files}
    named = [(path.relative_to(ROOT), page) for path, text in texts.items() for page in named_pages(text)]
    assert len(named) > 20
    assert [(path, page) for path, page in named if not (ROOT / page).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_names_exist(page: Path) -> None:
    files = re.compile(r"\.(sif|def|toml|py|fasta|json)$")
    assert [name for name in _NAME.findall(page.read_text()) if not files.search(name) and not exists(name)] == []


@pytest.mark.parametrize("name", ["helixfold.cli.turns", "helixfold.folding.api.Nothing"])
def test_names_that_are_gone_are_noticed(name: str) -> None:
    assert not exists(name)
