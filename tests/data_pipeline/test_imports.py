"""The feature pipeline runs on machines without torch."""

import subprocess
import sys
from pathlib import Path

WITHOUT_TORCH = """
import importlib, pkgutil, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "helixfold"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
import data_pipeline
names = [module.name for module in pkgutil.walk_packages(data_pipeline.__path__, "data_pipeline.")]
for name in names:
    importlib.import_module(name)
print(len(names))
"""


def test_every_module_imports_without_torch() -> None:
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 15
