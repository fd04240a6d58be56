"""Old import paths of the documented Python API work and warn; they lead to the same things, not to copies."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from data_pipeline import _deprecated as old_data_pipeline
from helixfold import _deprecated as old_helixfold

ROOT = Path(__file__).parents[1]
# Names of version 0.2 in pages, notebooks and examples.
DOCUMENTED = json.loads((ROOT / "tests/inventory/names.json").read_text())
TABLES = {**old_data_pipeline.MODULES, **old_helixfold.MODULES}


def is_old(name: str) -> bool:
    module, _, attribute = name.rpartition(".")
    moved = any(name == old or name.startswith(f"{old}.") for old in TABLES)
    return moved or attribute in old_helixfold.NAMES.get(module, ())


def test_documented_names_work_under_their_old_paths_and_warn() -> None:
    names = [name.rpartition(".") for name in DOCUMENTED if is_old(name)]
    lines = [f"from {module} import {attribute} as name; names.append(name)" for module, _, attribute in names]
    program = "\n".join(["names = []", *lines, "print(*(getattr(each, '__module__', '') for each in names))"])
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(names) > 40
    for module, _, attribute in names:
        assert f"{module} is " in done.stderr or f"{module}.{attribute} is " in done.stderr
    assert "<string>:2: DeprecationWarning: " in done.stderr  # it points to the line that imports
    assert not [module for module in done.stdout.split() if is_old(module)]


def test_what_an_old_table_names_exists() -> None:
    for new in [*TABLES.values(), *(each for names in old_helixfold.NAMES.values() for each in names.values())]:
        try:
            import_module(new)
        except ModuleNotFoundError:
            module, _, attribute = new.rpartition(".")
            assert hasattr(import_module(module), attribute), new


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_old_module_is_the_same_module() -> None:
    assert import_module("helixfold.scoring.structures") is import_module("helixfold.apps.score.structures")
    assert import_module("data_pipeline.errors").InputError is import_module("data_pipeline.io.errors").InputError


def test_a_name_that_never_was_is_an_error() -> None:
    with pytest.raises(ImportError, match="read_logs"):
        exec("from helixfold.training.log import read_logs")
