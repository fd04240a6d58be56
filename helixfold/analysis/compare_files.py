"""Compare files of predictions with files of known structures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tqdm import tqdm

from data_pipeline.io.errors import InputError, printable
from data_pipeline.parse.structures import read_structure
from data_pipeline.structure import Structure
from helixfold.analysis.complexes import compare_complexes
from helixfold.analysis.evaluation import Evaluated
from helixfold.analysis.matching import Match, StructureFile, by_name, by_sequence, find_references
from helixfold.analysis.residues import best_pairing
from helixfold.analysis.scores import compared


@dataclass(frozen=True, kw_only=True)
class Comparisons:
    """Results of comparing predictions with references, and the reasons of failures.

    `count` is the number of predictions, and `results` has one entry for each pair of prediction and reference that
    could be compared. `failures` has reasons by target or file name. `unused` has the names of references without a
    prediction.
    """

    count: int  # predictions
    results: list[Evaluated]
    failures: dict[str, str]  # reasons, by file name
    unused: list[str]  # names of references without a prediction


def compare_files(files: Sequence[StructureFile], references: Path) -> Comparisons:
    """Compare each prediction with its references in the file or directory `references`, by name or else by sequence.

    A progress bar is shown. Raise `InputError` if there are no references. Files that cannot be compared are in
    `Comparisons.failures`.
    """
    all_references = find_references(references)
    results: list[Evaluated] = []
    failures: dict[str, str] = {}
    used: set[str] = set()
    read = cache(read_structure)
    for file in tqdm(files, desc="comparing", unit="prediction", leave=False, disable=None):
        try:
            predicted = read_structure(file.path)
            matches = by_name(file.name, all_references) or by_sequence(
                predicted, _readable(all_references, read, failures)
            )
        except InputError as error:
            rank = f", rank {file.rank}" if file.rank else ""
            failures[printable(f"{file.name}{rank}")] = str(error)
            continue
        for match in matches:
            used.add(match.reference.name)
            try:
                results.append(compare(file, predicted, match, read(match.reference.path)))
            except InputError as error:
                failures[printable(f"{file.path} and {match.reference.path}", 500)] = str(error)
    unused = [reference.name for reference in all_references if reference.name not in used]
    return Comparisons(count=len(files), results=results, failures=failures, unused=unused)


def compare(file: StructureFile, predicted: Structure, match: Match, reference: Structure) -> Evaluated:
    """Return the scores of a prediction against the reference that it is matched with; both have been read before.

    `file` is the prediction's file. Without a chain in `match`, complexes are compared too. Raise `ComparisonError` if
    they cannot be compared.
    """
    scores, residues = compared(best_pairing(predicted.chains, reference.chains, match.chain))
    return Evaluated(
        target=file.name,
        rank=file.rank,
        reference=match.reference.name,
        by_sequence=match.by_sequence,
        scores=scores,
        residues=residues,
        complex=None if match.chain is not None else compare_complexes(predicted.chains, reference.chains),
    )


def _readable(
    references: Sequence[StructureFile], read: Callable[[Path], Structure], failures: dict[str, str]
) -> list[tuple[StructureFile, Structure]]:
    """Return the references that can be read; add the reasons for the others to `failures`."""
    readable = []
    for file in references:
        try:
            readable.append((file, read(file.path)))
        except InputError as error:
            failures[printable(file.path.name)] = str(error)
    return readable
