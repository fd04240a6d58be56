"""Rank the predictions of one target, and write them into its directory, under AlphaFold's file names.

Every file is written atomically, and none has a time or a date. `ranking_debug.json` is written last, so a target that
has it is finished.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Float

from data_pipeline.errors import InputError
from data_pipeline.features.alignment_depth import AlignmentDepth
from data_pipeline.files import atomic_write
from data_pipeline.json_files import MAX_JSON_BYTES, MAX_JSON_VALUES, read_json
from data_pipeline.protein import Protein
from data_pipeline.residues import ATOM_ORDER
from data_pipeline.transforms.templates import pseudo_beta
from helixfold import __version__
from helixfold.analysis.metrics import superposition
from helixfold.folding.prediction import Distances, Prediction
from helixfold.options import RepresentationFormat
from helixfold.results.chains import split_chains
from helixfold.results.confidence import confidence_content, read_prediction
from helixfold.results.json_object import AGAIN, JsonObject
from helixfold.results.mmcif import entry_id, to_mmcif
from helixfold.results.model_scores import PAE_METRIC, ModelScores
from helixfold.results.origin import ModelOrigin
from helixfold.results.pairwise_errors import pairwise_errors
from helixfold.results.pdb import models_to_pdb, plain_text, to_pdb
from helixfold.results.representations import write_representations

RANKING_FILE: Final = "ranking_debug.json"
TIMINGS_FILE: Final = "timings.json"
FAILURES_FILE: Final = "failures.json"
# AlphaFold's own program writes tenths of an Angstrom; AlphaFold DB rounds to whole ones, in the same layout.
_PAE_STEPS_PER_ANGSTROM = 10


def write_prediction(
    directory: Path,
    prediction: Prediction,
    depth: AlignmentDepth | None = None,
    name: str | None = None,
    origin: ModelOrigin | None = None,
    *,
    representations_format: RepresentationFormat = "npz",
) -> str | None:
    """Write one model's structure (PDB and mmCIF) and confidences of target `name`, if None that of its directory.

    Files are unrelaxed_<model>.pdb and .cif, which tells the model's `origin`, confidence_<model>.json with the
    alignment's `depth`, and, for what else the prediction has, pae_<model>.json and .bcif.gz, distances_<model>.npz,
    logits_<model>.npz, representations_<model>.npz (or .safetensors) and recycles_<model>.pdb. A structure that a PDB
    file cannot hold is in the mmCIF file only; return the sentence that says why, which is also in the confidence
    file, and else None.
    """
    # A ranking made before this prediction no longer says that the target is finished.
    (directory / RANKING_FILE).unlink(missing_ok=True)
    model, protein, notes = prediction.name, prediction.protein, prediction.notes
    name = name or directory.resolve().name
    write_file(
        directory / f"unrelaxed_{model}.cif",
        to_mmcif(
            protein,
            name=name,
            model=model,
            notes=notes,
            scores=ModelScores(
                plddt=prediction.plddt,
                ptm=prediction.ptm,
                iptm=prediction.iptm,
                tm_by_chain=prediction.tm_by_chain,
                has_pae=prediction.pae is not None,
            ),
            chain_ids=prediction.chain_ids,
            origin=origin,
        ),
    )
    remark = f"Predicted by helixfold {__version__}, {model}. The B-factor column holds pLDDT, 0 to 100."
    pdb, no_pdb_file = None, None
    try:
        pdb = to_pdb(protein, [remark, *notes], chain_ids=prediction.chain_ids)
    except ValueError as error:
        no_pdb_file = str(error)
    content = {"target": name, **confidence_content(prediction, depth, no_pdb_file)}
    write_file(directory / f"confidence_{model}.json", to_json(content))
    if prediction.pae is not None:
        write_file(directory / f"pae_{model}.json", _pae_json(prediction, prediction.pae))
        chains = split_chains(protein, prediction.chain_ids)
        pairs = pairwise_errors(
            prediction.pae, protein, chains, entry=entry_id(name), metric=PAE_METRIC, notes=list(map(plain_text, notes))
        )
        write_file(directory / f"pae_{model}.bcif.gz", pairs)
    if prediction.distances is not None:
        with atomic_write(directory / f"distances_{model}.npz") as temporary, temporary.open("wb") as archive:
            np.savez_compressed(archive, allow_pickle=False, **_distance_arrays(prediction, prediction.distances))
    if prediction.logits is not None:
        with atomic_write(directory / f"logits_{model}.npz") as temporary, temporary.open("wb") as archive:
            np.savez(archive, allow_pickle=False, **prediction.logits, notes=np.array(notes, dtype=np.str_))
    if prediction.representations is not None:
        write_representations(directory, prediction, representations_format)
    if pdb is not None and prediction.passes is not None:
        passes = [_superposed(each, protein) for each in prediction.passes]
        text = models_to_pdb([*passes, protein], [remark, *notes], chain_ids=prediction.chain_ids)
        write_file(directory / f"recycles_{model}.pdb", text)
    write_file(directory / f"unrelaxed_{model}.pdb", pdb)
    return no_pdb_file


def _superposed(protein: Protein, onto: Protein) -> Protein:
    """Return a structure whose C-alpha atoms are superposed on those of another one of the same residues."""
    alpha = ATOM_ORDER["CA"]
    moved = superposition(protein.atom_positions[:, alpha], onto.atom_positions[:, alpha])
    return replace(protein, atom_positions=moved.apply(protein.atom_positions))


def _distance_arrays(prediction: Prediction, distances: Distances) -> dict[str, np.ndarray]:
    """Return the arrays of distances_<prediction>.npz, with distances in Angstrom between pseudo-beta atoms.

    Pseudo-beta atoms are C-beta, and C-alpha of glycine. For r residues, the arrays are:

    `residue_number` (r), and (r r) in half precision, which has steps of at most 0.016 Angstrom below 32:
    `expected_distance`, the mean of the distogram, whose last bin is open: what is further apart than 21.7 has 21.8;
    `contact_probability` of less than 8 Angstrom; `structure_distance` in the predicted coordinates, NaN without them.
    `notes` (n) are strings.
    """
    return {
        "residue_number": prediction.protein.residue_index.astype(np.int32),
        "expected_distance": distances.expected.astype(np.float16),
        "contact_probability": distances.contact.astype(np.float16),
        "structure_distance": structure_distances(prediction.protein).astype(np.float16),
        "notes": np.array(prediction.notes, dtype=np.str_),
    }


def structure_distances(protein: Protein) -> Float[np.ndarray, "r r"]:
    """Return distances in Angstrom between pseudo-beta atoms; NaN for residues without one."""
    points, mask = pseudo_beta(protein.aatype, protein.atom_positions, protein.atom_mask)
    points[mask < 0.5] = np.nan
    squared = sum(np.square(points[:, None, axis] - points[None, :, axis]) for axis in range(3))
    return np.sqrt(squared)


def write_timings(directory: Path, timings: Mapping[str, object], notes: Sequence[str] = ()) -> None:
    """Write the duration of each stage, and other measurements, to timings.json."""
    write_file(directory / TIMINGS_FILE, to_json({**timings, **({"notes": list(notes)} if notes else {})}, indent=4))


def write_failures(directory: Path, failures: Mapping[str, str], file: str = FAILURES_FILE) -> None:
    """Write the reasons of failures by target name to failures.json; delete the file if there are none."""
    write_file(directory / file, to_json(failures, indent=4) if failures else None)


def pae_rows(pae: Float[np.ndarray, "r r"], separator: str) -> Iterator[str]:
    """Yield each row as text, rounded to tenths of an Angstrom."""
    steps = _PAE_STEPS_PER_ANGSTROM
    numbers = [str(step / steps) for step in range(round(float(pae.max()) * steps) + 2)]
    for row in pae:
        yield separator.join([numbers[step] for step in np.rint(row * steps).astype(np.int64).tolist()])


def _pae_json(prediction: Prediction, pae: Float[np.ndarray, "r r"]) -> Iterator[bytes]:
    """Yield the PAE file in AlphaFold DB's format in pieces."""
    yield b'[{"predicted_aligned_error":['
    for index, row in enumerate(pae_rows(pae, ",")):
        yield f"{',' if index else ''}[{row}]".encode()
    rest = {"max_predicted_aligned_error": prediction.max_pae, "notes": list(prediction.notes)}
    yield f"],{to_json(rest)[1:]}]".encode()


def to_json(content: Mapping[str, object], indent: int | None = None) -> str:
    """Return content as JSON, compact unless indented. Raise ValueError for NaN and infinity."""
    return json.dumps(content, indent=indent, separators=(",", ":") if indent is None else None, allow_nan=False)


def remove_ranks_from(directory: Path, first: int) -> None:
    """Remove structures of rank `first` and lower, which an earlier run with more models wrote."""
    for path in directory.glob("ranked_*.*"):
        match = re.fullmatch(r"ranked_(\d+)\.(pdb|cif)", path.name)
        if match and int(match[1]) >= first:
            path.unlink()


def write_file(path: Path, content: str | bytes | Iterator[bytes] | None) -> None:
    """Write a file atomically, from its content or from pieces of it; with None, remove the file if there is one."""
    if content is None:
        path.unlink(missing_ok=True)
        return
    if isinstance(content, str):
        # Names of files may have bytes that are not UTF-8, which Python holds as halves of characters.
        content = content.encode(errors="backslashreplace")
    pieces = content if isinstance(content, Iterator) else [content]
    with atomic_write(path) as temporary, temporary.open("wb") as stream:
        stream.writelines(pieces)


_NUMBER_BYTES = 32  # of the text of one, in any program's file
_DAMAGED = "is damaged; --overwrite makes it again"


def read_finished(directory: Path, name: str) -> Prediction | None:
    """Read a prediction whose files are all present and intact; return None if it must be made again."""
    try:
        prediction = read_prediction(directory, name)
        if not all(path.is_file() for path in _structures(directory, name, prediction.kinds)):
            return None
    except InputError:
        return None
    has_pae = prediction.ptm is None or (directory / f"pae_{name}.json").is_file()
    return prediction if has_pae else None


def _structures(directory: Path, name: str, kinds: Sequence[str]) -> list[Path]:
    """Return the structure files of a prediction; a slim target, which has no features, has only ranked ones."""
    stem = f"unrelaxed_{name}"
    if not (directory / "features.npz").is_file() and (directory / RANKING_FILE).is_file():
        order = JsonObject.read(directory / RANKING_FILE).list_of("order", str)
        stem = f"ranked_{order.index(name)}" if name in order else stem
    return [directory / f"{stem}.{kind}" for kind in kinds]


def ranked(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Sort predictions by their ranking confidence, the best first; equal ones stay in the given order.

    Where only some have one that is made of ipTM, which others cannot be compared with, mean pLDDT counts.
    """
    names = [prediction.name for prediction in predictions]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"ranking needs one or more predictions of different names, got {names}")
    if len({prediction.iptm is None for prediction in predictions}) > 1:
        return sorted(predictions, key=lambda prediction: -float(prediction.plddt.mean(dtype=np.float64)))
    return sorted(predictions, key=lambda prediction: -prediction.ranking_confidence)


def write_ranked(directory: Path, order: Sequence[Prediction]) -> None:
    """Copy structures, relaxed ones if there are any, to ranked_<n>.pdb and .cif, where 0 is the best."""
    for rank, prediction in enumerate(order):
        if "pdb" not in prediction.kinds:
            (directory / f"ranked_{rank}.pdb").unlink(missing_ok=True)  # of an earlier order
        for kind in prediction.kinds:
            relaxed = directory / f"relaxed_{prediction.name}.{kind}"
            predicted = directory / f"unrelaxed_{prediction.name}.{kind}"
            write_file(directory / f"ranked_{rank}.{kind}", (relaxed if relaxed.is_file() else predicted).read_bytes())
    remove_ranks_from(directory, len(order))


def write_ranking(directory: Path, order: Sequence[Prediction]) -> None:
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


def all_notes(order: Sequence[Prediction]) -> list[str]:
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
