"""The scripts that make and judge the small model, which import each other as a user's shell would find them."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

DIRECTORY = Path(__file__).parents[3] / "examples" / "small"


def small_script(name: str) -> ModuleType:
    if str(DIRECTORY) not in sys.path:
        sys.path.append(str(DIRECTORY))
    return importlib.import_module(name)
