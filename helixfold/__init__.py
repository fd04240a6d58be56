"""AlphaFold 2 in PyTorch: prediction of protein structures from sequences, and training of models.

`predict`, `load_model` and their types are imported at the first use, because they need PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from helixfold._deprecated import install

if TYPE_CHECKING:
    from helixfold.apps.example_files import example_file
    from helixfold.apps.fetched_inputs import fetch_structure
    from helixfold.folding.api import load_model, predict
    from helixfold.folding.inside import feature_shapes, module_costs, record_attention, run_block
    from helixfold.folding.options import FoldingOptions
    from helixfold.folding.prediction import Prediction
    from helixfold.report.load import load_results

__version__ = "0.3.0"
__all__ = [
    "FoldingOptions",
    "Prediction",
    "example_file",
    "feature_shapes",
    "fetch_structure",
    "load_model",
    "load_results",
    "module_costs",
    "predict",
    "record_attention",
    "run_block",
]
_MODULES = {
    "FoldingOptions": "helixfold.folding.options",
    "Prediction": "helixfold.folding.prediction",
    "example_file": "helixfold.apps.example_files",
    "feature_shapes": "helixfold.folding.inside",
    "fetch_structure": "helixfold.apps.fetched_inputs",
    "load_model": "helixfold.folding.api",
    "load_results": "helixfold.report.load",
    "module_costs": "helixfold.folding.inside",
    "predict": "helixfold.folding.api",
    "record_attention": "helixfold.folding.inside",
    "run_block": "helixfold.folding.inside",
}
install()


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
