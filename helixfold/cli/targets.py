"""What to fold: the proteins in the files that were given, each with its alignments."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.errors import InputError
from data_pipeline.features.schema import Features
from data_pipeline.parse.a3m import read_a3m
from data_pipeline.parse.fasta import check_name, read_fasta
from data_pipeline.pipeline import features_from_sequence
from helixfold.write.results import FAILURES_FILE

A3M_SUFFIXES = (".a3m", ".a3m.gz")


@dataclass(frozen=True, kw_only=True)
class Target:
    """One protein to fold and the alignments that were given for it."""

    name: str
    sequence: str
    alignments: tuple[Path, ...]

    def features(self) -> Features:
        return features_from_sequence(self.name, self.sequence, self.alignments)


def read_targets(inputs: Sequence[Path], msa: Sequence[Path]) -> list[Target]:
    """All targets of FASTA files (each record) and a3m files (the first row, named after the file).

    `msa` holds alignments for the only record there is, or a directory with <name>.a3m for each.
    """
    targets: list[Target] = []
    for path in inputs:
        if path.name.lower().endswith(A3M_SUFFIXES):
            targets.append(_target_of_alignment(path))
        else:
            targets += [Target(name=each.name, sequence=each.sequence, alignments=()) for each in read_fasta(path)]
    seen: set[str] = set()
    for target in targets:
        if target.name == FAILURES_FILE:
            raise InputError(f"the name '{target.name}' is taken by a file of the output directory; choose another")
        if target.name.casefold() in seen:
            raise InputError(f"the name '{target.name}' comes twice in the inputs; give each target its own name")
        seen.add(target.name.casefold())
    if not msa:
        return targets
    return [_with_alignments(target, msa, only=len(targets) == 1) for target in targets]


def _target_of_alignment(path: Path) -> Target:
    name = path.name[: -len(next(suffix for suffix in A3M_SUFFIXES if path.name.lower().endswith(suffix)))]
    problem = check_name(name)
    if problem is not None:
        raise InputError.at(path, f"the target is named after the file, and {problem}")
    return Target(name=name, sequence=read_a3m(path).query, alignments=(path,))


def _with_alignments(target: Target, msa: Sequence[Path], *, only: bool) -> Target:
    """The target with its alignments; they are read here once, so that what is wrong with them is known at once."""
    found: list[Path] = []
    for path in msa:
        if path.is_dir():
            inside = [
                path / f"{target.name}{suffix}"
                for suffix in A3M_SUFFIXES
                if (path / f"{target.name}{suffix}").is_file()
            ]
            if not inside:
                raise InputError(f"{path}: there is no {target.name}.a3m for target '{target.name}' in this directory")
            found += inside
        elif only:
            found.append(path)
        else:
            raise InputError(
                f"{path}: one alignment for several targets; give --msa a directory with <name>.a3m for each"
            )
    for path in found:
        read_a3m(path, target.sequence)
    return Target(name=target.name, sequence=target.sequence, alignments=(*target.alignments, *found))
