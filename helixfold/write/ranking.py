"""Rank the predictions of a target that lie in its directory, and mark the target as finished.

What is ranked is read back from the files, so that it does not matter which run made them: a target that was
interrupted and finished later has the same files, byte for byte.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Float

from data_pipeline.errors import InputError
from helixfold.write.records import read_json
from helixfold.write.results import RANKING_FILE, remove_ranks_from, to_json, write_file

KINDS: Final = ("cif", "pdb")  # of structure files
_MOST_BYTES = 2**31


@dataclass(frozen=True, kw_only=True)
class FinishedPrediction:
    """One prediction of a target, as its confidence file has it."""

    name: str
    plddt: Float[np.ndarray, "r"]
    ptm: float | None
    ranking_confidence: float
    num_recycles: int
    converged: bool
    notes: tuple[str, ...]


def read_finished(directory: Path, name: str) -> FinishedPrediction | None:
    """A prediction that is there with all its files, whole; else None, and it is to be made again."""
    if not all((directory / f"unrelaxed_{name}.{kind}").is_file() for kind in KINDS):
        return None
    try:
        content = _read_json(directory / f"confidence_{name}.json")
        ptm = content["ptm"]
        found = FinishedPrediction(
            name=name,
            plddt=np.array(content["plddt"], dtype=np.float32),
            ptm=None if ptm is None else float(ptm),
            ranking_confidence=float(content["ranking_confidence"]),
            num_recycles=int(content["num_recycles"]),
            converged=bool(content["converged"]),
            notes=tuple(map(str, content["notes"])),
        )
    except (InputError, KeyError, TypeError, ValueError, OverflowError):
        return None
    sound = found.plddt.ndim == 1 and len(found.plddt) > 0 and ((found.plddt >= 0) & (found.plddt <= 100)).all()
    has_pae = ptm is None or (directory / f"pae_{name}.json").is_file()
    return found if sound and has_pae and math.isfinite(found.ranking_confidence) else None


def ranked(predictions: Sequence[FinishedPrediction]) -> list[FinishedPrediction]:
    """Best first: by mean pLDDT, and equal ones in the order given."""
    names = [prediction.name for prediction in predictions]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"ranking needs one or more predictions of different names, got {names}")
    return sorted(predictions, key=lambda prediction: -prediction.ranking_confidence)


def write_ranked(directory: Path, order: Sequence[FinishedPrediction]) -> None:
    """The structures once more under their ranks, ranked_<n>.pdb and .cif, of which 0 is the best; relaxed or not."""
    for rank, prediction in enumerate(order):
        for kind in KINDS:
            relaxed = directory / f"relaxed_{prediction.name}.{kind}"
            predicted = directory / f"unrelaxed_{prediction.name}.{kind}"
            write_file(directory / f"ranked_{rank}.{kind}", (relaxed if relaxed.is_file() else predicted).read_bytes())
    remove_ranks_from(directory, len(order))


def mark_finished(directory: Path, order: Sequence[FinishedPrediction]) -> None:
    """ranking_debug.json, whose being there says that all else is."""
    content = {
        "plddts": {
            each.name: each.ranking_confidence for each in sorted(order, key=lambda each: natural_key(each.name))
        },
        "order": [each.name for each in order],
        "notes": all_notes(order),
    }
    write_file(directory / RANKING_FILE, to_json(content, indent=4))


def all_notes(order: Sequence[FinishedPrediction]) -> list[str]:
    """What every reader must know, each note once."""
    return list(dict.fromkeys(note for prediction in order for note in prediction.notes))


def read_pae(path: Path) -> tuple[Float[np.ndarray, "r r"], float]:
    """Predicted aligned errors in Angstrom from a file of AlphaFold DB's form, and the largest that they could be."""
    try:
        content = _read_json(path)
        pae = np.array(content["predicted_aligned_error"], dtype=np.float32)
        largest = float(content["max_predicted_aligned_error"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise _damaged(path) from error
    if pae.ndim != 2 or pae.shape[0] != pae.shape[1] or not pae.size or not np.isfinite(pae).all():
        raise _damaged(path)
    return pae, largest


def _read_json(path: Path) -> dict[str, Any]:
    """The table in one of our JSON files, also where it is the only element of a list."""
    try:
        content = read_json(path, _MOST_BYTES)
    except InputError as error:
        raise _damaged(path) from error
    if isinstance(content, list) and len(content) == 1:
        content = content[0]
    if not isinstance(content, dict):
        raise _damaged(path)
    return content


def _damaged(path: Path) -> InputError:
    return InputError.at(path, "is damaged; --overwrite makes it again")


def natural_key(name: str) -> list[tuple[int, str]]:
    """Key to sort names so that seed 10 comes after seed 9, and ranked_10 after ranked_9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
