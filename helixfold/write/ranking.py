"""Rank the predictions in a target's directory, and write the ranking, which marks the target as finished.

Predictions are read back from their files, so it does not matter which run made them: a target that was interrupted
and finished later has the same files, byte for byte.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Float

from data_pipeline.errors import InputError
from data_pipeline.json_files import MAX_JSON_BYTES, MAX_JSON_VALUES, read_json
from helixfold.write.json_object import AGAIN, JsonObject
from helixfold.write.results import RANKING_FILE, remove_ranks_from, to_json, write_file

KINDS: Final = ("cif", "pdb")  # of structure files
_NUMBER_BYTES = 32  # of the text of one, in any program's file
_DAMAGED = "is damaged; --overwrite makes it again"


@dataclass(frozen=True, kw_only=True)
class FinishedPrediction:
    """One prediction of a target, read from its confidence file."""

    name: str
    plddt: Float[np.ndarray, "r"]
    ptm: float | None
    iptm: float | None
    chain_ids: tuple[str, ...]
    ranking_confidence: float
    num_recycles: int
    converged: bool
    notes: tuple[str, ...]


def read_finished(directory: Path, name: str) -> FinishedPrediction | None:
    """Read a prediction whose files are all present and intact; return None if it must be made again."""
    try:
        if not all(path.is_file() for path in _structures(directory, name)):
            return None
        content = JsonObject.read(directory / f"confidence_{name}.json")
        prediction = FinishedPrediction(
            name=name,
            plddt=np.array(content.list_of("plddt", float), dtype=np.float32),
            ptm=content.optional_number("ptm"),
            iptm=content.optional_number("iptm"),
            chain_ids=tuple(chain.get("chain", str) for chain in content.children("chains")),
            ranking_confidence=content.get("ranking_confidence", float),
            num_recycles=content.get("num_recycles", int),
            converged=content.get("converged", bool),
            notes=content.list_of("notes", str),
        )
    except InputError:
        return None
    has_plddt = prediction.plddt.size > 0 and ((prediction.plddt >= 0) & (prediction.plddt <= 100)).all()
    has_pae = prediction.ptm is None or (directory / f"pae_{name}.json").is_file()
    return prediction if has_plddt and has_pae else None


def _structures(directory: Path, name: str) -> list[Path]:
    """Return the structure files of a prediction; a slim target, which has no features, has only ranked ones."""
    stem = f"unrelaxed_{name}"
    if not (directory / "features.npz").is_file() and (directory / RANKING_FILE).is_file():
        order = JsonObject.read(directory / RANKING_FILE).list_of("order", str)
        stem = f"ranked_{order.index(name)}" if name in order else stem
    return [directory / f"{stem}.{kind}" for kind in KINDS]


def ranked(predictions: Sequence[FinishedPrediction]) -> list[FinishedPrediction]:
    """Sort predictions by mean pLDDT, the best first; equal ones stay in the given order."""
    names = [prediction.name for prediction in predictions]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"ranking needs one or more predictions of different names, got {names}")
    return sorted(predictions, key=lambda prediction: -prediction.ranking_confidence)


def write_ranked(directory: Path, order: Sequence[FinishedPrediction]) -> None:
    """Copy structures, relaxed ones if there are any, to ranked_<n>.pdb and .cif, where 0 is the best."""
    for rank, prediction in enumerate(order):
        for kind in KINDS:
            relaxed = directory / f"relaxed_{prediction.name}.{kind}"
            predicted = directory / f"unrelaxed_{prediction.name}.{kind}"
            write_file(directory / f"ranked_{rank}.{kind}", (relaxed if relaxed.is_file() else predicted).read_bytes())
    remove_ranks_from(directory, len(order))


def write_ranking(directory: Path, order: Sequence[FinishedPrediction]) -> None:
    """Write ranking_debug.json, the last file of a target: its presence means that the target is finished."""
    confidences = {prediction.name: prediction.ranking_confidence for prediction in order}
    content = {
        "plddts": {name: confidences[name] for name in sorted(confidences, key=natural_key)},
        "order": [prediction.name for prediction in order],
        "notes": all_notes(order),
    }
    write_file(directory / RANKING_FILE, to_json(content, indent=4))


def all_notes(order: Sequence[FinishedPrediction]) -> list[str]:
    """Return the notes of all predictions, each once."""
    return list(dict.fromkeys(note for prediction in order for note in prediction.notes))


def read_pae(path: Path, residues: int) -> tuple[Float[np.ndarray, "r r"], float]:
    """Read predicted aligned errors in Angstrom, and their upper limit, from a file in AlphaFold DB's format.

    Raise `InputError` if it is damaged, or is not that of a chain of `residues`.
    """
    pairs = residues * residues
    sizes = {"max_bytes": MAX_JSON_BYTES + _NUMBER_BYTES * pairs, "max_values": MAX_JSON_VALUES + pairs}
    try:
        content: Any = read_json(path, AGAIN, **sizes)
        pae = np.array(content[0]["predicted_aligned_error"], dtype=np.float32)
        largest = float(content[0]["max_predicted_aligned_error"])
    except (InputError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise InputError.at(path, _DAMAGED) from error
    if pae.shape != (residues, residues) or not np.isfinite(pae).all():
        raise InputError.at(path, _DAMAGED)
    return pae, largest


def natural_key(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts names by the numbers in them, so that seed_10 comes after seed_9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
