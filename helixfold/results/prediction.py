"""Rank the predictions of a target, and write them into its directory under AlphaFold's file names.

Every file is written atomically, and no file contains a time or date. `ranking_debug.json` is written last, so a target
that has it is finished. `ITERATIONS` is a key in files of representations.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from data_pipeline.features.alignment_depth import AlignmentDepth
from data_pipeline.io.errors import InputError
from data_pipeline.io.files import atomic_write
from data_pipeline.io.json_files import MAX_JSON_BYTES, MAX_JSON_VALUES, read_json
from data_pipeline.io.npz import npz_names
from data_pipeline.protein import Protein
from data_pipeline.residues import ATOM_ORDER
from data_pipeline.sampling.templates import pseudo_beta
from helixfold import __version__
from helixfold.analysis.metrics import superposition
from helixfold.folding.options import FoldingOptions
from helixfold.folding.prediction import Distances, Prediction
from helixfold.results.chains import split_chains
from helixfold.results.confidence import confidence_content, read_prediction
from helixfold.results.file_table import (
    CONFIDENCE,
    DISTANCES,
    FILES,
    LOGITS,
    MMCIF,
    PAE,
    PAE_PAIRS,
    PDB,
    RANKED,
    RANKING,
    RECYCLES,
    RELAXED,
    REPRESENTATIONS,
    TIMINGS,
    UNRELAXED,
    FileKind,
    is_slim,
)
from helixfold.results.json_object import AGAIN, JsonObject
from helixfold.results.mmcif import PAE_METRIC, ModelOrigin, ModelScores, cif_word, to_mmcif
from helixfold.results.pairwise_errors import pairwise_errors
from helixfold.results.pdb import models_to_pdb, plain_text
from helixfold.results.writing import to_json, write_file
from helixfold.runtime.options import RepresentationFormat

# AlphaFold's own program writes tenths of an Å. AlphaFold DB rounds to whole Å in the same format.
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
    """Write all files of one prediction of target `name`, by default named like its directory.

    Relaxed and ranked structures are written by other functions. The target's ranking_debug.json is removed first. The
    MSA's `depth` is written into the confidence file, and the prediction's `origin` into the mmCIF file. If a PDB file
    cannot hold the structure, only the mmCIF file is written; return the reason, which is also in the confidence file.
    Otherwise return None.
    """
    # An earlier ranking no longer means that the target is finished.
    RANKING.path(directory).unlink(missing_ok=True)
    model, protein, notes = prediction.name, prediction.protein, prediction.notes
    name = name or directory.resolve().name

    def path(kind: FileKind, suffix: str | None = None) -> Path:
        return kind.path(directory, suffix, prediction=model)

    write_file(path(UNRELAXED, MMCIF), mmcif_of(prediction, name, origin))
    pdb, no_pdb_file = None, None
    try:
        pdb = pdb_of(prediction)
    except ValueError as error:
        no_pdb_file = str(error)
    write_file(path(UNRELAXED, PDB), pdb)
    if prediction.pae is not None:
        write_file(path(PAE), pae_json(prediction, prediction.pae))
        chains = split_chains(protein, prediction.chain_ids)
        pairs = pairwise_errors(
            prediction.pae, protein, chains, entry=cif_word(name), metric=PAE_METRIC, notes=list(map(plain_text, notes))
        )
        write_file(path(PAE_PAIRS), pairs)
    if prediction.distances is not None:
        with atomic_write(path(DISTANCES)) as temporary, temporary.open("wb") as archive:
            np.savez_compressed(archive, allow_pickle=False, **_distance_arrays(prediction, prediction.distances))
    if prediction.logits is not None:
        with atomic_write(path(LOGITS)) as temporary, temporary.open("wb") as archive:
            np.savez(archive, allow_pickle=False, **prediction.logits, notes=np.array(notes, dtype=np.str_))
    if prediction.representations is not None:
        write_representations(path(REPRESENTATIONS, f".{representations_format}"), prediction)
    if pdb is not None and prediction.recycling_iterations is not None:
        earlier = [_superposed(each, protein) for each in prediction.recycling_iterations[:-1]]
        write_file(path(RECYCLES), pdb_of(prediction, earlier))
    # The confidence file is last, because it means that all other files of the prediction exist.
    write_file(path(CONFIDENCE), to_json({"target": name, **confidence_content(prediction, depth, no_pdb_file)}))
    return no_pdb_file


def pdb_of(prediction: Prediction, earlier: Sequence[Protein] = ()) -> str:
    """Return the text of a PDB file of a prediction; structures of `earlier` iterations come first, as models."""
    program = f"helixfold {__version__}" if prediction.program == "helixfold" else prediction.program
    remark = f"Predicted by {program}, {prediction.name}. The B-factor column holds pLDDT, 0 to 100."
    return models_to_pdb([*earlier, prediction.protein], [remark, *prediction.notes], chain_ids=prediction.chain_ids)


def mmcif_of(prediction: Prediction, name: str, origin: ModelOrigin | None = None) -> str:
    """Return the text of the mmCIF file of a prediction of target `name`."""
    return to_mmcif(
        prediction.protein,
        name=name,
        model=prediction.name,
        notes=prediction.notes,
        scores=ModelScores(
            plddt=prediction.plddt,
            ptm=prediction.ptm,
            iptm=prediction.iptm,
            tm_by_chain=prediction.tm_by_chain,
            has_pae=prediction.pae is not None,
        ),
        chain_ids=prediction.chain_ids,
        origin=origin,
    )


def _superposed(protein: Protein, onto: Protein) -> Protein:
    """Superpose a structure on another one of the same residues by their C-alpha atoms."""
    alpha = ATOM_ORDER["CA"]
    moved = superposition(protein.atom_positions[:, alpha], onto.atom_positions[:, alpha])
    return replace(protein, atom_positions=moved.apply(protein.atom_positions))


def _distance_arrays(prediction: Prediction, distances: Distances) -> dict[str, np.ndarray]:
    """Return the arrays of distances_<prediction>.npz, with distances in Å between pseudo-beta atoms.

    Pseudo-beta atoms are C-beta, and C-alpha of glycine. For r residues, the arrays are `residue_number` (r), and with
    shape (r r), in half precision, which has steps of at most 0.016 Å below 32 Å:
    - `expected_distance`, the mean of the distogram, whose last bin is open: distances above 21.7 Å count as 21.8 Å;
    - `contact_probability`, the probability of a distance below 8 Å;
    - `structure_distance`, the distance in the predicted coordinates, NaN without them.
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
    """Return distances in Å between the pseudo-beta atoms of a structure; NaN for residues without one."""
    points, mask = pseudo_beta(protein.aatype, protein.atom_positions, protein.atom_mask)
    points[mask < 0.5] = np.nan
    squared = sum(np.square(points[:, None, axis] - points[None, :, axis]) for axis in range(3))
    return np.sqrt(squared)


def write_timings(directory: Path, timings: Mapping[str, object], notes: Sequence[str] = ()) -> None:
    """Write the duration of each stage and other measurements, and any notes, to timings.json."""
    write_file(TIMINGS.path(directory), to_json({**timings, **({"notes": list(notes)} if notes else {})}, indent=4))


def pae_rows(pae: Float[np.ndarray, "r r"], separator: str) -> Iterator[str]:
    """Yield each row of PAE as text: its values, rounded to tenths of an Å, with the `separator` between them."""
    steps = _PAE_STEPS_PER_ANGSTROM
    numbers = [str(step / steps) for step in range(round(float(pae.max()) * steps) + 2)]
    for row in pae:
        yield separator.join([numbers[step] for step in np.rint(row * steps).astype(np.int64).tolist()])


def pae_json(prediction: Prediction, pae: Float[np.ndarray, "r r"]) -> Iterator[bytes]:
    """Yield the content of the PAE file in AlphaFold DB's format, in pieces."""
    yield b'[{"predicted_aligned_error":['
    for index, row in enumerate(pae_rows(pae, ",")):
        yield f"{',' if index else ''}[{row}]".encode()
    rest = {"max_predicted_aligned_error": prediction.max_pae, "notes": list(prediction.notes)}
    yield f"],{to_json(rest)[1:]}]".encode()


_MAX_NUMBER_BYTES = 32  # maximum length of a number's text, in the file of any program
_DAMAGED_PROBLEM = "is damaged; pass --overwrite to predict the target again"


def read_finished(directory: Path, name: str) -> Prediction | None:
    """Read a prediction's scores, without structure and PAE, if all its required files exist.

    Return None if the confidence file is damaged or a required file is missing.
    """
    try:
        prediction = read_prediction(directory, name)
        required = [kind for kind in FILES if kind.is_required and (kind is not PAE or prediction.ptm is not None)]
        has_files = all(path.is_file() for path in _files(directory, prediction, required))
    except InputError:
        return None
    return prediction if has_files else None


def has_requested_files(
    directory: Path,
    prediction: Prediction,
    options: FoldingOptions,
    representations_format: RepresentationFormat,
) -> bool:
    """Return whether a prediction has all files that these options request, with the requested representations."""
    requested = [kind for kind in FILES if kind.option and getattr(options, kind.option)]
    if REPRESENTATIONS in requested:
        requested.remove(REPRESENTATIONS)
        path = REPRESENTATIONS.path(directory, f".{representations_format}", prediction=prediction.name)
        names = {*options.representations, *([ITERATIONS] if options.save_passes else [])}
        if not names <= representation_names(path):
            return False
    return all(path.is_file() for path in _files(directory, prediction, requested))


def _files(directory: Path, prediction: Prediction, kinds: Iterable[FileKind]) -> Iterator[Path]:
    """Yield the paths of a prediction's files of these kinds.

    For a slim target, these are only files that --slim keeps, and ranked structures instead of unrelaxed ones.
    """
    fields: dict[str, str | int] = {"prediction": prediction.name}
    if is_slim(directory):
        order = JsonObject.read(RANKING.path(directory)).list_of("order", str)
        if prediction.name in order:
            kinds = [RANKED if kind is UNRELAXED else kind for kind in kinds if kind.is_slim or kind is UNRELAXED]
            fields["rank"] = order.index(prediction.name)
    for kind in kinds:
        for suffix in kind.suffixes:
            if suffix != PDB or "pdb" in prediction.kinds:
                yield kind.path(directory, suffix, **fields)


def best_structure(directory: Path, rank: int = 0) -> Path | None:
    """Return the PDB file of a target's structure with this rank (0 is the best), or else the mmCIF file, or None."""
    return next(filter(Path.is_file, (RANKED.path(directory, suffix, rank=rank) for suffix in (PDB, MMCIF))), None)


def ranked(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Sort predictions by ranking confidence, the best first; equal ones keep their order.

    Raise `ValueError` if there are none, or if names are repeated. If only some predictions have an ipTM, ranking
    confidences cannot be compared, and mean pLDDT is used.
    """
    names = [prediction.name for prediction in predictions]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"ranking needs one or more predictions with different names, got {names}")
    if len({prediction.iptm is None for prediction in predictions}) > 1:
        return sorted(predictions, key=lambda prediction: -float(prediction.plddt.mean(dtype=np.float64)))
    return sorted(predictions, key=lambda prediction: -prediction.ranking_confidence)


def write_ranked(directory: Path, order: Sequence[Prediction]) -> None:
    """Copy structures, relaxed if possible, to ranked_<n>.pdb and .cif, where 0 is the best.

    Ranked structures of an earlier, longer order are removed.
    """
    for rank, prediction in enumerate(order):
        for suffix in RANKED.suffixes:
            sources = [kind.path(directory, suffix, prediction=prediction.name) for kind in (RELAXED, UNRELAXED)]
            source = next(filter(Path.is_file, sources), None)
            write_file(RANKED.path(directory, suffix, rank=rank), None if source is None else source.read_bytes())
    for path, fields in RANKED.files(directory):
        if int(fields["rank"]) >= len(order):
            path.unlink()


def write_ranking(directory: Path, order: Sequence[Prediction]) -> None:
    """Write ranking_debug.json, the last file of a target: its presence means that the target is finished.

    As in AlphaFold, the key of the confidences is plddts, or iptm+ptm if they are computed from ipTM.
    """
    confidences = {prediction.name: prediction.ranking_confidence for prediction in order}
    content = {
        "plddts" if order[0].iptm is None else "iptm+ptm": dict(
            sorted(confidences.items(), key=lambda item: natural_key(item[0]))
        ),
        "order": [prediction.name for prediction in order],
        "notes": all_notes(order),
    }
    write_file(RANKING.path(directory), to_json(content, indent=4))


def all_notes(order: Sequence[Prediction]) -> list[str]:
    """Return the notes of all predictions, each once."""
    return list(dict.fromkeys(note for prediction in order for note in prediction.notes))


def read_pae(path: Path, residues: int, problem: str = _DAMAGED_PROBLEM) -> tuple[Float[np.ndarray, "r r"], float]:
    """Read predicted aligned errors in Å from a file in AlphaFold DB's format, and the upper limit that it states.

    Raise `InputError` with the message `problem` if the file is damaged or has another number of residues.
    """
    try:
        content = read_pair_json(path, residues)[0]
        with np.errstate(over="ignore"):  # a number too large for float32 is damage, too
            pae = np.array(content["predicted_aligned_error"], dtype=np.float32)
        largest = float(content["max_predicted_aligned_error"])
    except (InputError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise InputError.at(path, problem) from error
    if pae.shape != (residues, residues) or not np.isfinite(pae).all():
        raise InputError.at(path, problem)
    return pae, largest


def read_pair_json(path: Path, residues: int) -> Any:
    """Read a JSON file that may have a number for each pair of `residues` residues, and return its content.

    Raise `InputError` if it is not JSON, or larger than such a file can be.
    """
    pairs = residues * residues
    sizes = {"max_bytes": MAX_JSON_BYTES + _MAX_NUMBER_BYTES * pairs, "max_values": MAX_JSON_VALUES + pairs}
    return read_json(path, AGAIN, **sizes)


def natural_key(name: str) -> list[tuple[int, str]]:
    """Return a sort key that compares numbers in names by value, so that seed_10 comes after seed_9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


# Name of the array with the number of recycling iterations before the last, if a file has their representations.
ITERATIONS = "passes"


def representation_arrays(prediction: Prediction) -> dict[str, np.ndarray]:
    """Return the float32 representations of a prediction by their names in files.

    Representations of the last recycling iteration have plain names, such as `single`. If all iterations were
    requested, pass_0_single is from the first iteration, and `passes` is the number of iterations before the last.
    """
    arrays: dict[str, np.ndarray] = {str(name): each for name, each in (prediction.representations or {}).items()}
    for index, earlier in enumerate(prediction.pass_representations):
        arrays |= {f"pass_{index}_{name}": value for name, value in earlier.items()}
    if prediction.recycling_iterations is not None:
        arrays[ITERATIONS] = np.array(len(prediction.pass_representations), np.int32)
    return arrays


def write_representations(path: Path, prediction: Prediction) -> None:
    """Write the representations of a prediction and its notes; a .safetensors file has the notes in its metadata."""
    arrays = representation_arrays(prediction)
    with atomic_write(path) as temporary:
        if path.suffix == ".npz":
            notes = np.array(prediction.notes, dtype=np.str_)
            with temporary.open("wb") as archive:
                np.savez(archive, allow_pickle=False, **arrays, notes=notes)
        else:
            # safetensors is imported here, because it loads slowly.
            from safetensors.numpy import save_file  # noqa: PLC0415

            contiguous = {name: np.ascontiguousarray(each) for name, each in arrays.items()}
            save_file(contiguous, temporary, metadata={"notes": "\n".join(prediction.notes)})


def representation_names(path: Path) -> Set[str]:
    """Return the names of the arrays in a .npz or .safetensors file of representations.

    The set is empty if the file is missing or damaged.
    """
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
