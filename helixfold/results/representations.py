"""Write the representations of a prediction, as NumPy's .npz or as .safetensors, and tell which ones a file holds."""

from collections.abc import Set
from pathlib import Path

import numpy as np

from data_pipeline.errors import InputError
from data_pipeline.files import atomic_write
from data_pipeline.npz import npz_names
from helixfold.folding.prediction import Prediction

# The array that says how many passes came before the last, in a file that has their representations.
PASSES = "passes"


def representation_arrays(prediction: Prediction) -> dict[str, np.ndarray]:
    """Return the representations of a prediction under the names that files have for them, float32.

    Those of the last pass have their own names, such as `single`. If those of all passes were asked for, pass_0_single
    is that of the first pass, and `passes` counts the passes before the last.
    """
    arrays: dict[str, np.ndarray] = {}
    arrays |= {str(name): value for name, value in (prediction.representations or {}).items()}
    for number, earlier in enumerate(prediction.pass_representations):
        arrays |= {f"pass_{number}_{name}": value for name, value in earlier.items()}
    if prediction.passes is not None:
        arrays[PASSES] = np.array(len(prediction.pass_representations), np.int32)
    return arrays


def write_representations(path: Path, prediction: Prediction) -> None:
    """Write the representations of a prediction and its notes, which .safetensors holds in its metadata."""
    arrays = representation_arrays(prediction)
    with atomic_write(path) as temporary:
        if path.suffix == ".npz":
            notes = np.array(prediction.notes, dtype=np.str_)
            with temporary.open("wb") as archive:
                np.savez(archive, allow_pickle=False, **arrays, notes=notes)
        else:
            # Takes a while to import.
            from safetensors.numpy import save_file  # noqa: PLC0415

            contiguous = {name: np.ascontiguousarray(each) for name, each in arrays.items()}
            save_file(contiguous, temporary, metadata={"notes": "\n".join(prediction.notes)})


def representation_names(path: Path) -> Set[str]:
    """Return the names of the arrays in a file of representations; none if it is missing or damaged."""
    if path.suffix == ".npz":
        try:
            return npz_names(path)
        except InputError:
            return set()
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415

    try:
        with safe_open(path, "np") as file:
            return set(file.keys())
    except (OSError, SafetensorError):
        return set()
