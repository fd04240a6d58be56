"""Compare files of predictions with files of known structures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

from tqdm import tqdm

from data_pipeline.errors import InputError, printable
from data_pipeline.parse.structures import read_structure
from data_pipeline.structure import Structure
from helixfold.analysis.evaluation import Evaluated
from helixfold.analysis.matching import Match, by_name, by_sequence
from helixfold.analysis.residues import ComparisonError, best_pairing
from helixfold.analysis.scores import compared
from helixfold.analysis.structure_files import StructureFile, find_predictions, find_references


def compare_files(predictions: Path, references: Path, *, all_ranks: bool = False) -> "Comparisons":
    """Compare each prediction with its reference; of each target only the best prediction, or all with `all_ranks`.

    Raise `InputError` if either path has nothing to compare. A single file that cannot be compared is in
    `Comparisons.failures`.
    """
    comparisons = Comparisons(references=find_references(references))
    files = find_predictions(predictions, all_ranks=all_ranks)
    for file in tqdm(files, desc="comparing", unit="prediction", leave=False, disable=None):
        comparisons.add(file)
    return comparisons


@dataclass(kw_only=True)
class Comparisons:
    """Results of comparing predictions with references, and the reasons why some could not be compared."""

    references: Sequence[StructureFile]
    count: int = 0  # predictions added so far
    results: list[Evaluated] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)  # reasons by the names of files
    read: Callable[[Path], Structure] = field(default_factory=lambda: cache(read_structure))
    _used: set[str] = field(default_factory=set)

    @property
    def unused(self) -> list[str]:
        """Names of the references that no prediction was compared with."""
        return [reference.name for reference in self.references if reference.name not in self._used]

    def add(self, file: StructureFile) -> None:
        """Compare one prediction with all its references, and add the results or the reason why this failed."""
        self.count += 1
        try:
            predicted = read_structure(file.path)
            matches = by_name(file.name, self.references)
            if not matches:
                matches = by_sequence(predicted, self._readable)
        except (InputError, ComparisonError) as error:
            rank = f", rank {file.rank}" if file.rank else ""
            self.failures[printable(f"{file.name}{rank}")] = str(error)
            return
        for match in matches:
            self._used.add(match.reference.name)
            try:
                self.results.append(self._compared(file, predicted, match))
            except (InputError, ComparisonError) as error:
                self.failures[printable(f"{file.path} and {match.reference.path}", 500)] = str(error)

    def _compared(self, file: StructureFile, predicted: Structure, match: Match) -> Evaluated:
        reference = self.read(match.reference.path)
        scores, residues = compared(best_pairing(predicted.chains, reference.chains, match.chain))
        return Evaluated(
            target=file.name,
            rank=file.rank,
            reference=match.reference.name,
            by_sequence=match.by_sequence,
            scores=scores,
            residues=residues,
        )

    @cached_property
    def _readable(self) -> list[tuple[StructureFile, Structure]]:
        found = []
        for file in self.references:
            try:
                found.append((file, self.read(file.path)))
            except InputError as error:
                self.failures[printable(file.path.name)] = str(error)
        return found
