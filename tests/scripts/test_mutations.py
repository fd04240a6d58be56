"""Mistakes in a made-up repository are caught by the nearest tests; the lists fit the code (long)."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.mistaken_copy import ImportingTests
from scripts.mutations import ROOT, main, table

FILES = {
    "pyproject.toml": '[tool.pytest.ini_options]\naddopts = "-m unit"\nmarkers = ["unit", "integration", "long"]\n',
    "helixfold/__init__.py": "",  # without it, an installed helixfold that PYTHONPATH names would come first
    "helixfold/sums.py": """
def add(x, y):
    return x + y

def twice(x):
    return 2 * x

def half(x):
    return x / 2

def third(x):
    return x / 3

def wait(x):
    while x < 0:
        x = x + 1
    return x
""",
    "helixfold/users.py": "from helixfold.sums import twice\n\ndef four_times(x):\n    return twice(twice(x))\n",
    "tests/test_sums.py": """
import pytest
from helixfold.sums import add

def test_that_always_fails():
    assert add(1, 1) == 3

@pytest.mark.integration
def test_add():
    assert add(1, 2) == 3

@pytest.mark.long
def test_nothing():
    from helixfold.sums import third
    assert third(3) == 1
""",
    "tests/test_users.py": """
from helixfold.users import four_times

def test_four_times():
    assert four_times(1) == 4
""",
    "tests/test_all.py": """
from importlib import import_module

def test_half():
    assert import_module(".".join(["helixfold", "sums"])).half(2) == 1
""",
    "list.toml": """
[[mistake]]
about = "a difference"
module = "helixfold/sums.py"
function = "add"
find = "_1 + _2"
replace = "_1 - _2"

[[mistake]]
about = "three times"
module = "helixfold/sums.py"
function = "twice"
find = "2 * _1"
replace = "3 * _1"

[[mistake]]
about = "a quarter"
module = "helixfold/sums.py"
function = "half"
find = "_1 / 2"
replace = "_1 / 4"

[[mistake]]
about = "a fourth"
module = "helixfold/sums.py"
function = "third"
find = "_1 / 3"
replace = "_1 / 4"

[[mistake]]
about = "not there"
module = "helixfold/sums.py"
function = "third"
find = "_1 / 5"
replace = "_1 / 4"
""",
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "scripts").mkdir()
    for name in ("mistaken_copy.py", "mistakes.py", "mutations.py"):
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts" / name)
    # The tests of this repository need none of the large libraries that are loaded beforehand.
    script = tmp_path / "scripts" / "mutations.py"
    text, count = re.subn(r"(?m)^PRELOADED = .*$", 'PRELOADED = ("pytest",)', script.read_text())
    assert count == 1
    script.write_text(text)
    return tmp_path


def test_each_mistake_is_caught_by_the_nearest_tests(repository: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=repository, check=True)
    command = [sys.executable, "scripts/mutations.py", "list.toml", "--whole", "--json", "results.json"]
    # The other plugins that are installed here take longer to load than these tests take to run.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}
    run = subprocess.run(
        [*command, "--required", "0.61"],
        cwd=repository,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1, run.stderr
    results = json.loads((repository / "results.json").read_text())
    assert results["share"] == pytest.approx(0.6), run.stdout
    assert {entry["about"]: entry["result"] for entry in results["mistakes"]} == {
        "a difference": "direct",
        "three times": "nearby",
        "a quarter": "whole",
        "a fourth": "survived",
        "not there": "invalid",
    }
    assert {entry.get("test") for entry in results["mistakes"]} == {
        "tests/test_sums.py::test_add",
        "tests/test_users.py::test_four_times",
        "tests/test_all.py::test_half",
        None,
    }
    assert results["left_out"] == ["tests/test_sums.py::test_that_always_fails"]
    assert "'_1 / 5' does not occur in third of helixfold/sums.py" in run.stdout
    assert (repository / "helixfold" / "sums.py").read_text() == FILES["helixfold/sums.py"]


def test_tests_are_chosen_by_imports(repository: Path) -> None:
    tests = ImportingTests(repository)
    assert tests.direct("helixfold/sums.py") == ["tests/test_sums.py"]
    assert tests.nearby("helixfold/sums.py") == ["tests/test_users.py"]
    assert tests.direct("helixfold/users.py") == ["tests/test_users.py"]
    assert not tests.nearby("helixfold/users.py")


def test_the_test_of_the_same_name_comes_first(repository: Path) -> None:
    (repository / "tests" / "test_a.py").write_text("import helixfold.sums\n")
    (repository / "tests" / "test_both.py").write_text("import helixfold.sums\nimport helixfold.users\n")
    assert ImportingTests(repository).direct("helixfold/sums.py") == [
        "tests/test_sums.py",
        "tests/test_a.py",
        "tests/test_both.py",
    ]


def test_the_table_counts_by_list_and_package() -> None:
    results = [
        {"list": "losses", "package": "helixfold/losses", "result": "direct"},
        {"list": "losses", "package": "helixfold/losses", "result": "survived"},
        {"list": "search", "package": "data_pipeline/search", "result": "invalid"},
    ]
    rows = [line.split() for line in table(results).splitlines()]
    assert rows == [
        ["list", "package", "direct", "nearby", "whole", "survived", "invalid"],
        ["losses", "helixfold/losses", "1", "0", "0", "1", "0"],
        ["search", "data_pipeline/search", "0", "0", "0", "0", "1"],
        ["all", "1", "0", "0", "1", "1"],
    ]


@pytest.mark.long
def test_every_listed_mistake_fits_the_code(capsys: pytest.CaptureFixture[str]) -> None:
    """Takes seconds; a change of the code may move a pattern's place, so it is not in the other tiers."""
    assert main(["--check"]) == 0, capsys.readouterr().out


@pytest.mark.long
def test_the_tests_catch_random_mistakes() -> None:
    """Takes about 20 minutes of CPU time: 24 mistakes in losses, geometry and the model."""
    modules = ["helixfold/losses/*.py", "helixfold/model/geometry/*.py", "helixfold/model/*.py"]
    command = [sys.executable, "scripts/mutations.py", "--modules", *modules, "--count", "24", "--required", "0.7"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
