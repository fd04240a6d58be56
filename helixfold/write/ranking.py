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
from helixfold.write.confidence import NO_PDB_FILE
from helixfold.write.json_object import AGAIN, JsonObject
from helixfold.write.results import RANKING_FILE, remove_ranks_from, to_json, write_file

KINDS: Final = ("cif", "pdb")  # of structure files
_NUMBER_BYTES = 32  # of the text of one, in any program's file
_DAMAGED = "is damaged; --overwrite makes it again"


@dataclass(frozen=True, kw_only=True)
class FinishedPrediction:
    """One prediction of a target, read from its confidence file.

    `kinds` are the formats of its structure: all of `KINDS`, but for one that a PDB file cannot hold.
    """

    name: str
    plddt: Float[np.ndarray, "r"]
    ptm: float | None
    iptm: float | None
    chain_ids: tuple[str, ...]
    tm_by_chain: Float[np.ndarray, "k k"] | None
    kinds: tuple[str, ...]
    ranking_confidence: float
    num_recycles: int
    converged: bool
    notes: tuple[str, ...]


def read_finished(directory: Path, name: str) -> FinishedPrediction | None:
    """Read a prediction whose files are all present and intact; return None if it must be made again."""
    try:
        content = JsonObject.read(directory / f"confidence_{name}.json")
        kinds = KINDS if content.content.get(NO_PDB_FILE) is None else tuple(kind for kind in KINDS if kind != "pdb")
        if not all(path.is_file() for path in _structures(directory, name, kinds)):
            return None
        chain_ids = tuple(chain.get("chain", str) for chain in content.children("chains"))
        prediction = FinishedPrediction(
            name=name,
            plddt=np.array(content.list_of("plddt", float), dtype=np.float32),
            ptm=content.optional_number("ptm"),
            iptm=content.optional_number("iptm"),
            chain_ids=chain_ids,
            tm_by_chain=_tm_by_chain(content, len(chain_ids)),
            kinds=kinds,
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


def _tm_by_chain(content: JsonObject, chains: int) -> Float[np.ndarray, "k k"] | None:
    """Return the TM-scores of chains and pairs of a complex; raise `InputError` if they are damaged."""
    rows = content.list_of("chain_pair_iptm", list, [])
    if not rows:
        return None
    numbers = [[value for value in row if isinstance(value, float | int)] for row in rows]
    if [len(row) for row in numbers] != [chains] * chains:
        raise InputError.at(content.path, f"chain_pair_iptm must have a number for each pair of {chains} chains")
    return np.array(numbers, np.float64)


def _structures(directory: Path, name: str, kinds: Sequence[str]) -> list[Path]:
    """Return the structure files of a prediction; a slim target, which has no features, has only ranked ones."""
    stem = f"unrelaxed_{name}"
    if not (directory / "features.npz").is_file() and (directory / RANKING_FILE).is_file():
        order = JsonObject.read(directory / RANKING_FILE).list_of("order", str)
        stem = f"ranked_{order.index(name)}" if name in order else stem
    return [directory / f"{stem}.{kind}" for kind in kinds]


def ranked(predictions: Sequence[FinishedPrediction]) -> list[FinishedPrediction]:
    """Sort predictions by their ranking confidence, the best first; equal ones stay in the given order.

    Where only some have one that is made of ipTM, which others cannot be compared with, mean pLDDT counts.
    """
    names = [prediction.name for prediction in predictions]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"ranking needs one or more predictions of different names, got {names}")
    if len({prediction.iptm is None for prediction in predictions}) > 1:
        return sorted(predictions, key=lambda prediction: -float(prediction.plddt.mean(dtype=np.float64)))
    return sorted(predictions, key=lambda prediction: -prediction.ranking_confidence)


def write_ranked(directory: Path, order: Sequence[FinishedPrediction]) -> None:
    """Copy structures, relaxed ones if there are any, to ranked_<n>.pdb and .cif, where 0 is the best."""
    for rank, prediction in enumerate(order):
        if "pdb" not in prediction.kinds:
            (directory / f"ranked_{rank}.pdb").unlink(missing_ok=True)  # of an earlier order
        for kind in prediction.kinds:
            relaxed = directory / f"relaxed_{prediction.name}.{kind}"
            predicted = directory / f"unrelaxed_{prediction.name}.{kind}"
            write_file(directory / f"ranked_{rank}.{kind}", (relaxed if relaxed.is_file() else predicted).read_bytes())
    remove_ranks_from(directory, len(order))


def write_ranking(directory: Path, order: Sequence[FinishedPrediction]) -> None:
    """Write ranking_debug.json, the last file of a target: its presence means that the target is finished.

    As in AlphaFold's, confidences are called plddts, or iptm+ptm if they are made of ipTM.
    """
    confidences = {prediction.name: prediction.ranking_confidence for prediction in order}
    content = {
        "plddts" if order[0].iptm is None else "iptm+ptm": dict(
            sorted(confidences.items(), key=lambda item: natural_key(item[0]))
        ),
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
