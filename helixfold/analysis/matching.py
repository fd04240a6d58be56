"""Find structure files, and match predictions with references by their names, else by their sequences."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.files import without_suffix
from data_pipeline.structure import Structure
from data_pipeline.templates.structure_directory import STRUCTURE_SUFFIXES
from helixfold._deprecated import moved_names
from helixfold.analysis.residues import ComparisonError, best_pairing

_SEPARATORS = "-_. "
# Shares of the reference's residues that a match by sequence must cover, and of the covered ones that must be equal.
_LEAST_COVERAGE, _LEAST_IDENTITY = 0.5, 0.9
_MOST_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class StructureFile:
    """A structure file to compare, with its target's name and its rank among the target's predictions from 0."""

    name: str
    path: Path
    rank: int = 0


@dataclass(frozen=True, kw_only=True)
class Match:
    """A reference that a prediction is compared with."""

    reference: StructureFile
    chain: str | None = None  # the chain that the prediction's name asks for, if it names one
    by_sequence: bool = False


def find_references(path: Path) -> list[StructureFile]:
    """Return every structure file of a directory, or the one file that `path` is; sorted by name.

    Raise `InputError` if there is none, or if two have the same name.
    """
    found = structure_files(path)
    if not found:
        raise InputError.at(path, f"it has no structures: no file ends in {', '.join(STRUCTURE_SUFFIXES)}")
    names: dict[str, Path] = {}
    for each in found:
        if each.name.casefold() in names:
            raise InputError.at(
                each.path, f"{names[each.name.casefold()].name} has the same name; keep one of them in the directory"
            )
        names[each.name.casefold()] = each.path
    return found


def structure_files(path: Path) -> list[StructureFile]:
    """Return the structure files of a directory, sorted by name, or the one file that `path` is.

    Raise `InputError` if there is nothing of this name.
    """
    if not path.is_dir():
        return [_named_file(path)]
    return [
        StructureFile(name=without_suffix(each, STRUCTURE_SUFFIXES), path=each)
        for each in sorted(path.iterdir())
        if each.name.lower().endswith(STRUCTURE_SUFFIXES) and each.is_file()
    ]


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


def _named_file(path: Path) -> StructureFile:
    if not path.is_file():
        raise InputError.at(path, "there is no such file or directory")
    return StructureFile(name=without_suffix(path, STRUCTURE_SUFFIXES), path=path)


def _goes_on(longer: str, shorter: str) -> bool:
    return len(longer) > len(shorter) + 1 and longer.startswith(shorter) and longer[len(shorter)] in _SEPARATORS


__getattr__ = moved_names(__name__)
