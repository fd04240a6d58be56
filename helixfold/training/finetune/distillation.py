"""Select confident predictions as a training set for self-distillation (AlphaFold 2, Suppl. Sec. 1.3)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from data_pipeline.io.errors import InputError
from data_pipeline.io.files import atomic_write, os_errors_as_input_errors
from data_pipeline.parse.structures import read_structure
from data_pipeline.training_sets.clustering import cluster_chains
from data_pipeline.training_sets.source_files import search_results
from helixfold.folding.prediction import Prediction
from helixfold.report.page import counted
from helixfold.results.file_table import RANKING, SEARCHES
from helixfold.results.json_object import JsonObject
from helixfold.results.prediction import best_structure, read_finished
from helixfold.results.writing import write_file

# Directory of the selected predictions in the output directory, and the table of all targets in it.
SELECTED_DIRECTORY, SELECTED_FILE = "selected", "selected.tsv"
_STRUCTURES, _ALIGNMENTS = "structures", "alignments"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """The best prediction of a finished target, and the reason if it is left out of the training set.

    `directory` is the directory of the target, and `structure` the file of the prediction. `plddt` is the mean over the
    residues, 0 to 100. `reason` is empty if the prediction is selected.
    """

    name: str
    directory: Path
    structure: Path
    plddt: float
    sequence: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class SelectedPredictions:
    """Directories with the structures and alignments of selected predictions, and the numbers of targets.

    `alignments` is None if no selected target has any. `selected` and `left_out` are numbers of finished targets.
    """

    structures: Path
    alignments: Path | None
    selected: int
    left_out: int


def select_predictions(predictions: Path, output: Path, min_plddt: float) -> SelectedPredictions:
    """Copy the best structure and the alignments of confident targets of `helixfold predict` into `output`/selected.

    `predictions` is the output directory of `helixfold predict`. Targets must be single chains with a mean pLDDT of at
    least `min_plddt`, by a model with trained parameters. Among similar sequences (40 % identity by MMseqs2, or
    identical without that program), only the most confident one is selected. Residues below a pLDDT of 50 do not count
    in the loss (`example.min_confidence`). `selected.tsv` lists all finished targets, with the reasons for those left
    out. Raise `InputError` if no target is selected, or if `min_plddt` is not from 0 to 100.
    """
    if not 0 <= min_plddt <= 100:
        raise InputError(f"--min-plddt must be from 0 to 100, got {min_plddt:g}")
    with os_errors_as_input_errors(predictions, "cannot be listed"):
        folders = sorted(path for path in predictions.iterdir() if path.is_dir())
    candidates = [candidate for folder in folders if (candidate := _candidate(folder, min_plddt)) is not None]
    candidates = _without_similar(candidates)
    selected = [each for each in candidates if not each.reason]
    if not selected:
        raise InputError.at(
            predictions,
            f"none of {counted(len(candidates), 'finished target')} is a single chain with a mean pLDDT of "
            f"{min_plddt:g} or more",
        )
    directory = output / SELECTED_DIRECTORY
    has_alignments = [_copy(each, directory) for each in selected]
    _write_table(directory / SELECTED_FILE, candidates)
    return SelectedPredictions(
        structures=directory / _STRUCTURES,
        alignments=directory / _ALIGNMENTS if any(has_alignments) else None,
        selected=len(selected),
        left_out=len(candidates) - len(selected),
    )


def _candidate(folder: Path, min_plddt: float) -> Candidate | None:
    """Return a target's best prediction; None if the directory has no finished target."""
    try:
        best = JsonObject.read(RANKING.path(folder)).list_of("order", str)[0]
    except (InputError, IndexError):
        return None
    prediction, structure = read_finished(folder, best), best_structure(folder)
    if prediction is None or structure is None:
        return None
    candidate = Candidate(
        name=folder.name,
        directory=folder,
        structure=structure,
        plddt=float(prediction.plddt.mean()),
        sequence="",
        reason=_reason(prediction, min_plddt),
    )
    if candidate.reason:
        return candidate
    chains = read_structure(candidate.structure).chains
    if len(chains) != 1:
        return replace(candidate, reason=f"it has {len(chains)} chains")
    return replace(candidate, sequence=chains[0].sequence)


def _reason(prediction: Prediction, min_plddt: float) -> str:
    """Return why a prediction is left out; "" if it is not."""
    if len(prediction.chain_ids) > 1:
        return f"it has {len(prediction.chain_ids)} chains"
    if any(note.startswith("UNTRAINED") for note in prediction.notes):
        return "its model has random parameters"
    mean = float(prediction.plddt.mean())
    return "" if mean >= min_plddt else f"its mean pLDDT is {mean:.1f}"


def _without_similar(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Leave out all but the most confident of similar sequences."""
    sequences = {each.name: each.sequence for each in candidates if not each.reason}
    if not sequences:
        return list(candidates)
    clusters = cluster_chains(sequences, None).clusters
    best: dict[str, Candidate] = {}
    for each in sorted(candidates, key=lambda one: (-one.plddt, one.name)):
        if not each.reason:
            best.setdefault(clusters[each.name], each)
    best_names = {each.name for each in best.values()}
    return [
        each
        if each.reason or each.name in best_names
        else replace(each, reason=f"{best[clusters[each.name]].name} is similar and more confident")
        for each in candidates
    ]


def _copy(candidate: Candidate, directory: Path) -> bool:
    """Copy a target's structure and alignments; return whether it has alignments."""
    source = candidate.structure
    chain = f"{candidate.name}_A"  # The feature store expects this name of the single chain of a file.
    structures, alignments = directory / _STRUCTURES, directory / _ALIGNMENTS / chain
    with os_errors_as_input_errors(directory, "cannot be written"):
        structures.mkdir(parents=True, exist_ok=True)
        write_file(structures / f"{chain}{source.suffix}", source.read_bytes())
        results = SEARCHES.path(candidate.directory)
        files = search_results(results).alignments if results.is_dir() else ()
        for file in files:
            alignments.mkdir(parents=True, exist_ok=True)
            write_file(alignments / file.path.name, file.path.read_bytes())
    return bool(files)


def _write_table(path: Path, candidates: Sequence[Candidate]) -> None:
    """Write the table of all candidates, in which the column "taken" is "yes" for selected ones."""
    lines = ["target\tmean_plddt\ttaken\treason\n"]
    lines += [
        f"{each.name}\t{each.plddt:.1f}\t{'no' if each.reason else 'yes'}\t{each.reason}\n" for each in candidates
    ]
    with os_errors_as_input_errors(path, "cannot be written"), atomic_write(path) as temporary:
        temporary.write_text("".join(lines), encoding="utf-8")
