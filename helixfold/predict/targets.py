"""Read the proteins to fold from files, each with its alignments and templates."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from data_pipeline.errors import InputError, printable
from data_pipeline.parse.alignment import read_alignment
from data_pipeline.parse.csv_table import read_csv
from data_pipeline.parse.fasta import filesystem_key, nucleic_acid_problem, read_fasta, target_name_problem
from data_pipeline.pipeline import Target
from data_pipeline.templates.from_files import UserTemplateOptions, templates_from_files

A3M_SUFFIXES = (".a3m", ".a3m.gz")
# What is taken from a directory; files that are named themselves may have any name.
FASTA_SUFFIXES = (".fasta", ".fa", ".faa", ".fasta.gz", ".fa.gz", ".faa.gz")
CSV_SUFFIXES = (".csv", ".csv.gz")
# Files that the output directory has, or gets when it is packed: no target may take their place, on any file system.
TAKEN_SUFFIXES = (".json", ".html", ".tsv", ".csv", ".zip", ".png", ".lock", ".partial")
INPUT_SUFFIXES = (*A3M_SUFFIXES, *FASTA_SUFFIXES, *CSV_SUFFIXES)
ALIGNMENT_SUFFIXES = (*A3M_SUFFIXES, ".sto", ".sto.gz", ".aln", ".aln.gz")


def read_targets(inputs: Sequence[Path], msa: Sequence[Path] = (), templates: Sequence[Path] = ()) -> list[Target]:
    """Return the targets of FASTA files (each record), CSV files (`id,sequence`), a3m files (the first row, named after
    the file), and directories of these.

    `msa` holds alignments for a single target, or directories with <name>.a3m for each target. `templates` are
    structure files, or directories of them, for every target. Raise `InputError` for a file that cannot be used.
    """
    targets: list[Target] = []
    sources: list[Path] = []
    for path in _files(inputs):
        if path.name.lower().endswith(A3M_SUFFIXES):
            targets.append(_target_of_alignment(path))
        else:
            records = read_csv(path) if path.name.lower().endswith(CSV_SUFFIXES) else read_fasta(path)
            targets += [Target(name=each.name, sequence=each.sequence) for each in records]
        sources += [path] * (len(targets) - len(sources))
    check_names(zip([target.name for target in targets], sources, strict=True))
    for path in templates:
        if not os.path.exists(path):
            raise InputError.at(path, "there is no such structure file or directory")
    if templates and targets:
        # Read once before anything is written, as alignments are; what is wrong with a file concerns every target.
        templates_from_files(targets[0].sequence, templates, UserTemplateOptions())
    only = len(targets) == 1
    return [
        Target(
            name=target.name,
            sequence=target.sequence,
            alignments=(*target.alignments, *_alignments(target, msa, only=only)),
            templates=tuple(templates),
        )
        for target in targets
    ]


def check_names(named: Iterable[tuple[str, Path]]) -> None:
    """Check names of targets, each given with the file that has it.

    Raise `InputError` if two of them are one name to some file system, or one is that of a file in the output
    directory.
    """
    seen: dict[str, Path] = {}
    for name, path in named:
        key = filesystem_key(name)
        suffix = next((suffix for suffix in TAKEN_SUFFIXES if key.endswith(suffix)), None)
        if suffix is not None:
            problem = f"names that end in '{suffix}' are taken by files of the output directory; choose another"
            raise InputError.at(path, problem, record=name)
        if key in seen:
            where = "this file" if seen[key] == path else printable(str(seen[key]))
            problem = f"a target of this name (upper and lower case count as equal) is in {where} too"
            raise InputError.at(path, f"{problem}; give each target its own", record=name)
        seen[key] = path


def _files(inputs: Sequence[Path]) -> list[Path]:
    files: list[Path] = []
    for path in inputs:
        if not os.path.isdir(path):  # pathlib's own raises where a name is too long
            files.append(path)
            continue
        try:
            inside = sorted(
                each for each in path.iterdir() if each.name.lower().endswith(INPUT_SUFFIXES) and each.is_file()
            )
        except OSError as error:
            raise InputError.at(path, f"cannot be listed: {error.strerror or error}") from error
        if not inside:
            raise InputError.at(path, f"no file in this directory ends in {', '.join(INPUT_SUFFIXES)}")
        files += inside
    return files


def _target_of_alignment(path: Path) -> Target:
    name = path.name[: -len(next(suffix for suffix in A3M_SUFFIXES if path.name.lower().endswith(suffix)))]
    problem = target_name_problem(name)
    if problem is not None:
        raise InputError.at(path, f"the target is named after the file, and {problem}")
    sequence = read_alignment(path).query
    if (problem := nucleic_acid_problem(sequence)) is not None:
        raise InputError.at(path, problem)
    return Target(name=name, sequence=sequence, alignments=(path,))


def _alignments(target: Target, msa: Sequence[Path], *, only: bool) -> list[Path]:
    """Return the paths of a target's alignments, which are read to check them before anything is folded."""
    found: list[Path] = []
    for path in msa:
        if os.path.isdir(path):
            names = (path / f"{target.name}{suffix}" for suffix in ALIGNMENT_SUFFIXES)
            inside = [name for name in names if name.is_file()]
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
        read_alignment(path, target.sequence)
    return found
