"""Find structure files, and match predictions with references by name or by sequence."""

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
# Minimum fraction of the reference's residues in a match by sequence, and minimum identity of these.
_MIN_COVERAGE, _MIN_IDENTITY = 0.5, 0.9
_MAX_LISTED = 5


@dataclass(frozen=True, kw_only=True)
class StructureFile:
    """A structure file to compare, with the name of its target and its rank among the target's predictions, from 0.

    For a reference, the name is the file name without its suffix.
    """

    name: str
    path: Path
    rank: int = 0


@dataclass(frozen=True, kw_only=True)
class Match:
    """A reference for a prediction.

    `chain` is the chain of the reference that the prediction's name contains, if any. `by_sequence` is whether the
    sequence, not the name, determined the reference.
    """

    reference: StructureFile
    chain: str | None = None  # the chain of the reference that the prediction's name contains, if any
    by_sequence: bool = False


def find_references(path: Path) -> list[StructureFile]:
    """Return all structure files of a directory sorted by name, or the file `path`.

    Raise `InputError` if there are no structure files, or if two have the same name without suffix, ignoring case.
    """
    files = structure_files(path)
    if not files:
        raise InputError.at(path, f"has no structures; expected files that end in {', '.join(STRUCTURE_SUFFIXES)}")
    names: dict[str, Path] = {}
    for each in files:
        if each.name.casefold() in names:
            raise InputError.at(
                each.path, f"{names[each.name.casefold()].name} has the same name; keep one of them in the directory"
            )
        names[each.name.casefold()] = each.path
    return files


def structure_files(path: Path) -> list[StructureFile]:
    """Return the structure files of a directory sorted by name, which may be none, or the file `path`.

    Subdirectories are not searched. Raise `InputError` if `path` does not exist.
    """
    if not path.is_dir():
        return [_named_file(path)]
    return [
        StructureFile(name=without_suffix(each, STRUCTURE_SUFFIXES), path=each)
        for each in sorted(path.iterdir())
        if each.name.lower().endswith(STRUCTURE_SUFFIXES) and each.is_file()
    ]


def by_name(prediction: str, references: Sequence[StructureFile]) -> list[Match]:
    """Return the references that match a prediction by name, or an empty list.

    The first rule with a result is used: references of the same name; references whose names continue it (T1031:
    T1031-D1 and T1031-D2); the reference whose name it continues (1abc_A: chain A of 1abc). Case is ignored.
    """
    name = prediction.casefold()
    same = [Match(reference=each) for each in references if each.name.casefold() == name]
    if same:
        return same
    parts = [Match(reference=each) for each in references if _continues(each.name.casefold(), name)]
    if parts:
        return parts
    wholes = [each for each in references if _continues(name, each.name.casefold())]
    if not wholes:
        return []
    whole = max(wholes, key=lambda each: len(each.name))
    return [Match(reference=whole, chain=prediction[len(whole.name) + 1 :])]


def by_sequence(prediction: Structure, references: Sequence[tuple[StructureFile, Structure]]) -> list[Match]:
    """Return one match, with the reference whose sequence is most similar to the prediction's.

    At least half of the reference's residues must be in the prediction, and 90 % of these must be equal. Raise
    `ComparisonError` if no reference fits, or if several fit equally well.
    """
    fitting: list[tuple[int, StructureFile]] = []
    for file, structure in references:
        try:
            pairing = best_pairing(prediction.chains, structure.chains)
        except ComparisonError:
            continue
        coverage = pairing.both.sum() / max(1, pairing.observed.sum())
        if coverage >= _MIN_COVERAGE and pairing.identity >= _MIN_IDENTITY:
            fitting.append((pairing.equal, file))
    if not fitting:
        raise ComparisonError(
            f"none of {len(references)} references has its name or a similar sequence; give the reference's file the "
            "name of the prediction"
        )
    max_equal = max(equal for equal, _ in fitting)
    best = [file for equal, file in fitting if equal == max_equal]
    if len(best) > 1:
        names = ", ".join(printable(file.path.name) for file in best[:_MAX_LISTED])
        more = ", ..." if len(best) > _MAX_LISTED else ""
        raise ComparisonError(
            f"{len(best)} references have its sequence ({names}{more}); give one of them the name of the prediction"
        )
    return [Match(reference=best[0], by_sequence=True)]


def _named_file(path: Path) -> StructureFile:
    if not path.is_file():
        raise InputError.at(path, "no such file or directory")
    return StructureFile(name=without_suffix(path, STRUCTURE_SUFFIXES), path=path)


def _continues(longer: str, shorter: str) -> bool:
    """Return whether the longer name is the shorter one, then a separator and at least one character."""
    return len(longer) > len(shorter) + 1 and longer.startswith(shorter) and longer[len(shorter)] in _SEPARATORS


__getattr__ = moved_names(__name__)
