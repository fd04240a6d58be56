"""THIRD_PARTY.md names every file of data, each once, and its licences are in the wheel."""

import re
import subprocess
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "THIRD_PARTY.md").read_text()
# What people of this project write by hand; everything else, such as arrays and pictures, comes from somewhere.
WRITTEN = {
    *(".py", ".md", ".ipynb", ".toml", ".yml", ".cff", ".in", ".jinja", ".html", ".css", ".js", ".sh", ".slurm"),
    *(".def", ".typed", ".nf", ""),
}
WRITTEN_FILES = {"constraints.txt", ".gitignore", "examples/helixfold.service"}


def named() -> dict[str, list[str]]:
    """The patterns of files in each table."""
    tables = re.findall(r"## ([^\n]+)\n(?:(?!## ).)*?\n\| file \|[^\n]*\n\|[-|]+\n((?:\|[^\n]*\n)+)", TEXT, re.DOTALL)
    return {
        title: [pattern for row in rows.splitlines() for pattern in re.findall(r"`([^`]+)`", row.split("|")[1])]
        for title, rows in tables
    }


def tracked() -> list[str]:
    found = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip("needs a clone of the repository")
    return [name for name in found.stdout.split("\0") if name]


def test_every_file_of_data_is_named_once() -> None:
    patterns = [pattern for each in named().values() for pattern in each]
    assert len(patterns) > 20
    files = tracked()
    for file in files:
        is_minified = file.endswith("-min.js")
        if (Path(file).suffix in WRITTEN and not is_minified) or file in WRITTEN_FILES:
            continue
        matches = [pattern for pattern in patterns if fnmatchcase(file, pattern)]
        assert len(matches) == 1, (file, matches)
    for pattern in patterns:
        assert any(fnmatchcase(file, pattern) for file in files), pattern


def test_scripts_and_styles_that_others_wrote_say_so() -> None:
    theirs = named()["Files made by others"]
    for file in tracked():
        if Path(file).suffix in (".js", ".css") and not any(fnmatchcase(file, pattern) for pattern in theirs):
            content = (ROOT / file).read_text()
            assert not re.search(r"copyright|licen[cs]e|@preserve", content, re.IGNORECASE), file
            assert max(map(len, content.splitlines())) < 500, f"{file} is not written by hand"


def test_licences_come_with_the_wheel() -> None:
    files = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license-files"]
    assert files == ["LICENSE", "THIRD_PARTY.md", "helixfold/report/pages/3Dmol-LICENSE.txt"]
    assert all((ROOT / file).is_file() for file in files)
    assert "Copyright (c) 2021 Sergey Ovchinnikov" in TEXT
    assert 'THE SOFTWARE IS PROVIDED "AS IS"' in TEXT
