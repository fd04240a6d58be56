"""Match predictions with references: by their names, else by their sequences."""

from collections.abc import Sequence
from dataclasses import dataclass

from data_pipeline.errors import printable
from data_pipeline.structure import Structure
from helixfold.analysis.residues import ComparisonError, best_pairing
from helixfold.analysis.structure_files import StructureFile

_SEPARATORS = "-_. "
# Shares of the reference's residues that a match by sequence must cover, and of the covered ones that must be equal.
_LEAST_COVERAGE, _LEAST_IDENTITY = 0.5, 0.9
_MOST_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class Match:
    """A reference that a prediction is compared with."""

    reference: StructureFile
    chain: str | None = None  # the chain that the prediction's name asks for, if it names one
    by_sequence: bool = False


def by_name(prediction: str, references: Sequence[StructureFile]) -> list[Match]:
    """Return the references that belong to a prediction by its name; an empty list if none does.

    The first rule with a result counts: references of the same name; references whose names continue it (T1031:
    T1031-D1 and T1031-D2); the reference whose name it continues (1abc_A: chain A of 1abc). Upper and lower case are
    equal.
    """
    name = prediction.casefold()
    same = [Match(reference=each) for each in references if each.name.casefold() == name]
    if same:
        return same
    parts = [Match(reference=each) for each in references if _goes_on(each.name.casefold(), name)]
    if parts:
        return parts
    wholes = [each for each in references if _goes_on(name, each.name.casefold())]
    if not wholes:
        return []
    whole = max(wholes, key=lambda each: len(each.name))
    return [Match(reference=whole, chain=prediction[len(whole.name) + 1 :])]


def by_sequence(prediction: Structure, references: Sequence[tuple[StructureFile, Structure]]) -> list[Match]:
    """Return the one reference whose sequence is nearly that of the prediction.

    At least half of its residues must be in the prediction, and 90 % of these equal. Raise `ComparisonError` if no
    reference fits, or if several fit equally well.
    """
    fitting: list[tuple[int, StructureFile]] = []
    for file, structure in references:
        try:
            pairing = best_pairing(prediction.chains, structure.chains)
        except ComparisonError:
            continue
        coverage = pairing.both.sum() / max(1, pairing.observed.sum())
        if coverage >= _LEAST_COVERAGE and pairing.identity >= _LEAST_IDENTITY:
            fitting.append((pairing.equal, file))
    if not fitting:
        raise ComparisonError(
            f"none of {len(references)} references has its name, or nearly its sequence; name the reference's file "
            "after the prediction"
        )
    most = max(equal for equal, _ in fitting)
    best = [file for equal, file in fitting if equal == most]
    if len(best) > 1:
        names = ", ".join(printable(file.path.name) for file in best[:_MOST_NAMED])
        more = ", ..." if len(best) > _MOST_NAMED else ""
        raise ComparisonError(
            f"{len(best)} references have its sequence ({names}{more}); name the one to take after the prediction"
        )
    return [Match(reference=best[0], by_sequence=True)]


def _goes_on(longer: str, shorter: str) -> bool:
    return len(longer) > len(shorter) + 1 and longer.startswith(shorter) and longer[len(shorter)] in _SEPARATORS
