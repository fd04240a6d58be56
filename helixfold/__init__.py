"""AlphaFold 2 in PyTorch: prediction of protein structures from sequences, and training of models.

`predict`, `load_model` and their types are imported at the first use, because they need PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from helixfold._deprecated import install

if TYPE_CHECKING:
    from helixfold.folding.api import load_model, predict
    from helixfold.folding.options import FoldingOptions
    from helixfold.folding.prediction import Prediction

__version__ = "0.2.0"
__all__ = ["FoldingOptions", "Prediction", "load_model", "predict"]
_MODULES = {
    "FoldingOptions": "helixfold.folding.options",
    "Prediction": "helixfold.folding.prediction",
    "load_model": "helixfold.folding.api",
    "predict": "helixfold.folding.api",
}
install()


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
