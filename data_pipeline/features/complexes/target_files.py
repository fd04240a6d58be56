"""Read proteins and complexes to predict from files, with their alignments and templates.

`INPUT_SUFFIXES` are the suffixes of files that are read from a directory of inputs; files with `JSON_SUFFIX` are only
read if they are passed themselves. Target names must not end in one of `TAKEN_SUFFIXES` or be one of `TAKEN_NAMES`,
because the output directory has such files and directories.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from data_pipeline.features.complexes.alignment_files import (
    A3M_SUFFIXES,
    FILE_OF_CHAIN,
    FILE_OF_TARGET,
    complex_of_a3m,
    is_complex_a3m,
    require_directories,
    with_alignments,
)
from data_pipeline.features.complexes.alignments import PairMode
from data_pipeline.features.complexes.alphafold3_json import read_alphafold3_targets
from data_pipeline.features.complexes.chain_ids import ONLY_CHAIN
from data_pipeline.features.complexes.chain_sequences import CHAIN_SEPARATOR, ChainSequenceError, split_chains
from data_pipeline.features.complexes.complex_input import AnyTarget, ChainAlignmentFiles, ComplexInput
from data_pipeline.features.complexes.result_directory import (
    ALIGNMENT_SUFFIXES,
    RESULTS_DIRECTORY,
    alignments_of_single_chain,
)
from data_pipeline.features.complexes.sequence_files import (
    read_complex_of_records,
    read_fasta_targets,
    read_table_targets,
)
from data_pipeline.features.complexes.target import ComplexTarget
from data_pipeline.io.errors import InputError, InputProblems, input_problems, printable
from data_pipeline.parse.alignment import read_alignment
from data_pipeline.parse.fasta import (
    FastaRecord,
    directory_name,
    file_name_problem,
    file_names,
    filesystem_key,
    find_invalid_letter,
    kind_problem,
    sequence_problem,
    target_name_problem,
    unknown_residues_problem,
)
from data_pipeline.pipeline import Target
from data_pipeline.templates.from_files import UserTemplateOptions, templates_from_files

# Suffixes of files that are read from directories; files passed by the user may have any name.
FASTA_SUFFIXES = (".fasta", ".fa", ".faa", ".fasta.gz", ".fa.gz", ".faa.gz")
CSV_SUFFIXES, TSV_SUFFIXES = (".csv", ".csv.gz"), (".tsv", ".tsv.gz")
JSON_SUFFIX = ".json"  # AlphaFold 3's; directories may have other JSON files, so that they are not read from these
# Suffixes of files in the output directory, or in archives of it; target names must not clash with them.
TAKEN_SUFFIXES = (".json", ".html", ".tsv", ".csv", ".zip", ".png", ".lock", ".partial", ".txt", ".bibtex")
TAKEN_NAMES = ("packed",)  # of the directory for archives of many targets
_MIN_TYPED = 10  # residues of a sequence without separators; shorter words may be names
INPUT_SUFFIXES = (*A3M_SUFFIXES, *FASTA_SUFFIXES, *CSV_SUFFIXES, *TSV_SUFFIXES)


def read_targets(
    inputs: Sequence[Path],
    msa: Sequence[Path] = (),
    templates: Sequence[Path] = (),
    *,
    as_protein: bool = False,
    records_as_chains: bool = False,
    chain_ids: Sequence[str] = (),
    pair_mode: PairMode = "unpaired_paired",
    problems: InputProblems | None = None,
) -> list[AnyTarget]:
    """Return the targets in `inputs`.

    An input is a FASTA file (each record is a target), a CSV or TSV file (`id,sequence`), an a3m file (the first row,
    named after the file), a directory of these, an input of AlphaFold 3 (.json), or a sequence instead of a file. A
    sequence with colons, or ColabFold's a3m of several chains, is a complex; with `records_as_chains`, the records of a
    FASTA file are the chains of one complex. `chain_ids` are the IDs of the chains of a single complex, and `pair_mode`
    selects the paired and unpaired rows. See `with_search_files` for `msa` and `templates`. Raise `InputError` for a
    file that cannot be used and, unless `as_protein`, for a sequence that looks like DNA, RNA or three-letter codes.
    These errors are raised together; errors of single targets and files are added to `problems` instead if it is
    passed.
    """
    with input_problems(problems) as collection:
        targets: list[AnyTarget] = []
        names, problems_before = TargetNames(), len(collection)
        for path in _files(inputs, collection):
            new_targets: Sequence[AnyTarget] = ()
            with collection.collected(str(path)):
                new_targets = _targets_in(path, collection, as_protein=as_protein, records_as_chains=records_as_chains)
            for target in new_targets:
                with collection.collected(target.name):
                    names.add(target.name, path)
                    _check_residues(target, path, as_protein=as_protein)
                    targets.append(replace(target, as_protein=as_protein))
        # Files for a single target do not apply to the last valid one of several targets.
        only = len(targets) + len(collection) - problems_before == 1
        targets = [_with_chains(target, chain_ids, pair_mode, only=only) for target in targets]
        return with_search_files(targets, msa, templates, collection, only=only)


def _targets_in(
    path: Path, problems: InputProblems, *, as_protein: bool, records_as_chains: bool
) -> Sequence[AnyTarget]:
    """Return the targets of one input; errors of its records are added to `problems`."""
    if is_sequence(path):
        return [typed_target(str(path), as_protein=as_protein)]
    require_typed_length(path)
    file = path.name.lower()
    if file.endswith(A3M_SUFFIXES):
        return [_target_of_alignment(path)]
    table = "," if file.endswith(CSV_SUFFIXES) else "\t" if file.endswith(TSV_SUFFIXES) else None
    records: Sequence[FastaRecord | ComplexTarget]
    if table is not None:
        records = read_table_targets(path, table, problems=problems)
    elif file.endswith(JSON_SUFFIX):
        records = read_alphafold3_targets(path, problems)
    elif records_as_chains:
        records = [read_complex_of_records(path)]
    else:
        records = read_fasta_targets(path, problems)
    return [target_of(record) for record in records]


def _check_residues(target: AnyTarget, path: Path, *, as_protein: bool) -> None:
    """Raise `InputError` if no residue is known, or, unless `as_protein`, if the target looks like a nucleic acid."""
    problem = unknown_residues_problem(target.sequence.replace(CHAIN_SEPARATOR, ""))
    if problem is None and not as_protein:
        problem = _kind_problem(target)
    if problem is not None:
        raise InputError.at(path, problem, record=target.name)


def target_of(record: FastaRecord | ComplexTarget) -> AnyTarget:
    """Return a record as a target; a complex of one chain with the default ID A becomes a single chain."""
    if isinstance(record, FastaRecord):
        return Target(
            name=record.name, sequence=record.sequence, description=record.description, fragment=record.fragment
        )
    if record.chain_ids == (ONLY_CHAIN,):
        return Target(
            name=record.name,
            sequence=record.sequences[0],
            description=record.description,
            fragment="".join(record.fragments),
        )
    return ComplexInput(target=record)


def _with_chains(target: AnyTarget, ids: Sequence[str], pair_mode: PairMode, *, only: bool) -> AnyTarget:
    """Return a target with chain IDs, unless `ids` is empty, and a pair mode."""
    if ids and not only:
        raise InputError("--chain-ids requires a single target, got several; set the chain IDs in the files")
    if isinstance(target, Target):
        if not ids or ids == (ONLY_CHAIN,):
            return target
        complex_target = ComplexTarget.of(target.name, (target.sequence,), ids, target.description)
        files = (ChainAlignmentFiles(unpaired=target.alignments),)
        complex_target = complex_target.with_fragments([target.fragment])
        return ComplexInput(target=complex_target, files=files, pair_mode=pair_mode)
    ids = ids or target.target.chain_ids
    return replace(target, target=replace(target.target, chain_ids=tuple(ids)), pair_mode=pair_mode)


def _kind_problem(target: AnyTarget) -> str | None:
    """Return a message if a chain of a target does not look like residues, or None; see `kind_problem`."""
    chains = target.sequence.split(CHAIN_SEPARATOR)
    for chain_number, chain in enumerate(chains, start=1):
        if (problem := kind_problem(chain)) is not None:
            return problem if len(chains) == 1 else f"chain {chain_number}: {problem}"
    return None


def single_chains(targets: Sequence[AnyTarget]) -> list[Target]:
    """Return `targets` as a list, which must all be single chains; raise `InputError` if one is a `ComplexInput`."""
    chains = [target for target in targets if isinstance(target, Target)]
    if len(chains) < len(targets):
        name = next(target.name for target in targets if not isinstance(target, Target))
        raise InputError(f"'{printable(name)}' is a complex, but this command only supports single chains")
    return chains


def with_search_files(
    targets: Sequence[AnyTarget],
    msa: Sequence[Path],
    templates: Sequence[Path],
    problems: InputProblems | None = None,
    *,
    only: bool | None = None,
) -> list[AnyTarget]:
    """Return targets with the alignments and templates of a command's options.

    `msa` has alignments for a single target, or directories with <name>.a3m or AlphaFold's results for each target.
    `only` is whether there is a single target, by default from `targets`; pass False if others were removed from these;
    see `alignments_of_single_chain` and, for complexes, `with_alignments`. `templates` are structure files, or
    directories of these, for all targets without their own. Raise `InputError` for a file that cannot be used and,
    unless a target is `as_protein`, for a sequence that looks like DNA, RNA or three-letter codes; errors of single
    targets are added to `problems` if it is passed.
    """
    results: list[AnyTarget] = []
    with input_problems(problems) as collection:
        usable = []
        for target in targets:
            with collection.collected(target.name):
                if not target.as_protein and (problem := _kind_problem(target)) is not None:
                    raise InputError(f"'{printable(target.name)}' cannot be predicted: {problem}")
                usable.append(target)
        _check_templates(usable, templates)
        is_only = len(targets) == 1 if only is None else only
        if usable and not is_only:
            require_directories(msa, FILE_OF_CHAIN if isinstance(usable[0], ComplexInput) else FILE_OF_TARGET)
        for target in usable:
            with collection.collected(target.name):
                results.append(_with_files(target, msa, templates, only=is_only))
    return results


def _check_templates(targets: Sequence[AnyTarget], paths: Sequence[Path]) -> None:
    """Read the templates before anything is written, and raise all errors together, because they affect all targets."""
    with input_problems() as problems:
        existing_paths = [path for path in paths if os.path.exists(path)]
        for path in paths:
            if path not in existing_paths:
                problems.add(InputError.at(path, "no such structure file or directory"))
        if existing_paths and targets:
            templates_from_files(targets[0].sequence.split(CHAIN_SEPARATOR)[0], existing_paths, UserTemplateOptions())


def _with_files(target: AnyTarget, msa: Sequence[Path], templates: Sequence[Path], *, only: bool) -> AnyTarget:
    """Return the target with alignments from `msa` added, and with `templates` unless it has its own.

    With `only`, it is the only target of the run.
    """
    templates = target.templates or tuple(templates)
    if isinstance(target, ComplexInput):
        return replace(with_alignments(target, msa, only=only), templates=templates)
    return replace(target, alignments=(*target.alignments, *alignments_of(target, msa, only=only)), templates=templates)


def directory_in(output: Path, name: str) -> Path:
    """Return the directory of a target in an output directory, or the directory of an earlier version if it exists.

    In version 0.1, the directory had the target's unchanged name, in which '/' was not allowed.
    """
    directory = output / directory_name(name)
    if file_name_problem(name) is not None or os.path.exists(directory):
        return directory
    return output / name if os.path.isdir(output / name) else directory


class TargetNames:
    """The target names added so far, no two of which may map to the same directory."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, Path]] = {}  # by `filesystem_key`

    def add(self, name: str, path: Path) -> None:
        """Add the name of a target in the file `path`.

        Raise `InputError` if its directory may be the same as for an earlier name, if the name is reserved for the
        output directory, or if the locale cannot encode it.
        """
        try:
            os.fsencode(directory_name(name))
        except UnicodeEncodeError as error:
            problem = f"file names can only have {error.encoding} characters in this locale; set LC_ALL=C.UTF-8"
            raise InputError.at(path, problem, record=name) from error
        key = filesystem_key(name)
        suffix = next((suffix for suffix in TAKEN_SUFFIXES if key.endswith(suffix)), None)
        if suffix is not None:
            problem = f"names that end in '{suffix}' are reserved for files of the output directory; choose another"
            raise InputError.at(path, problem, record=name)
        if key in TAKEN_NAMES:
            raise InputError.at(path, "this name is reserved for a directory of archives; choose another", record=name)
        if key in self._seen:
            other, file = self._seen[key]
            where = "this file" if file == path else printable(str(file))
            problem = f"another target in {where} has this name (upper and lower case count as equal)"
            if name.casefold() != other.casefold():
                problem = f"its directory, {directory_name(name)}, is the same as for '{printable(other)}' in {where}"
            raise InputError.at(path, f"{problem}; give each target its own name", record=name)
        self._seen[key] = name, path


def _files(inputs: Sequence[Path], problems: InputProblems) -> Iterator[Path]:
    """Yield each path that is not a directory, and the input files of each directory at its place."""
    for path in inputs:
        if not os.path.isdir(path):  # Path.is_dir raises if a name is too long
            yield path
            continue
        with problems.collected(str(path)):
            yield from _files_in(path)


def _files_in(directory: Path) -> list[Path]:
    """Return the files of a directory whose names end like input files, sorted; without one, raise `InputError`."""
    try:
        inside = sorted(
            each for each in directory.iterdir() if each.name.lower().endswith(INPUT_SUFFIXES) and each.is_file()
        )
    except OSError as error:
        raise InputError.at(directory, f"cannot be listed: {error.strerror or error}") from error
    if not inside:
        raise InputError.at(directory, f"no file in this directory ends in {', '.join(INPUT_SUFFIXES)}")
    return inside


def is_sequence(path: Path) -> bool:
    """Return whether an input is not a file but looks like a sequence, perhaps with typing errors.

    It looks like a sequence if it has at least ten capitals, or a capital and a separator of chains or copies.
    """
    text, like = str(path), rf"[A-Z]{{{_MIN_TYPED}}}|:.*[A-Z]|[A-Z].*(:|\*[0-9])"
    is_written_so = re.fullmatch(r"[A-Z0-9*:_-]+", text) and re.search(like, text)
    return bool(is_written_so) and not os.path.exists(path)


def require_typed_length(path: Path) -> None:
    """Raise `InputError` if an input is not a file but may be a sequence that `is_sequence` does not accept.

    That is a word of residue letters that is too short or in lower case.
    """
    if re.fullmatch("[ACDEFGHIKLMNPQRSTVWYX]+", str(path).upper()) and not os.path.exists(path):
        advice = f"write a sequence with at least {_MIN_TYPED} capital letters here, or put it into a FASTA file"
        raise InputError.at(path, f"no such file; {advice}")


def typed_target(text: str, *, as_protein: bool = False) -> AnyTarget:
    """Return the target of a sequence in the command line, with a name from the hash of the sequence.

    Text with colons or numbers of copies is a complex. Raise `InputError` for text that is not a sequence or has the
    letters B, J, O, U or Z in a chain. Unless `as_protein`, text that looks like DNA, RNA or three-letter codes is an
    error too.
    """
    problem_start = f"'{text[:20]}{'...' * (len(text) > 20)}': there is no such file"
    if CHAIN_SEPARATOR not in text and not re.search(r"\*\d", text):
        sequence = _checked(text.removesuffix("*"), problem_start, as_protein=as_protein)
        return Target(name=_typed_name(sequence), sequence=sequence)
    try:
        chains = split_chains(text)
    except ChainSequenceError as error:
        raise InputError(f"{problem_start}, and as a complex, letter {error.index + 1}: {error}") from error
    for chain in set(chains):
        _checked(chain, problem_start, as_protein=as_protein)
    return target_of(ComplexTarget.of(_typed_name(CHAIN_SEPARATOR.join(chains)), chains))


def _typed_name(sequence: str) -> str:
    """Return the name of a sequence that was given on the command line, from its SHA-256."""
    return f"sequence_{hashlib.sha256(sequence.encode()).hexdigest()[:8]}"


def _checked(sequence: str, shown: str, *, as_protein: bool) -> str:
    """Return a sequence; raise `InputError` if it is not a sequence, or may be a word in capitals."""
    if (invalid := find_invalid_letter(sequence)) is not None:
        raise InputError(f"{shown}, and as a sequence, residue {invalid[0] + 1}: {invalid[1]}")
    if not as_protein and (problem := kind_problem(sequence)) is not None:
        raise InputError(f"{shown}, and as a sequence, {problem}")
    if rare := sorted(set(sequence) & set("BJOUZ")):  # it may be a word in capitals
        raise InputError(f"{shown}; pass a sequence with {', '.join(rare)} in a FASTA file")
    if (problem := sequence_problem(sequence)) is not None:
        raise InputError(f"{shown}, and as a sequence, {problem}")
    return sequence


def _target_of_alignment(path: Path) -> AnyTarget:
    """Return the target of an A3M file, which is named after the file and has its first sequence."""
    name = path.name[: -len(next(suffix for suffix in A3M_SUFFIXES if path.name.lower().endswith(suffix)))]
    problem = target_name_problem(name)
    if problem is not None:
        raise InputError.at(path, f"the target is named after the file, but {problem}")
    if is_complex_a3m(path):
        return complex_of_a3m(path, name, ())
    return Target(name=name, sequence=read_alignment(path).query, alignments=(path,))


def alignments_of(target: Target, msa: Sequence[Path], *, only: bool) -> list[Path]:
    """Return the paths of a single chain's alignments in the files and directories `msa`, which are read to check them.

    `only` is whether it is the only target. Raise `InputError` for a directory without alignments of the target, for an
    invalid alignment and, with other targets, for a file instead of a directory.
    """
    if not only:
        require_directories(msa, FILE_OF_TARGET)
    alignments: list[Path] = []
    for path in msa:
        if os.path.isdir(path):
            stems = file_names(target.name)
            names = (path / f"{stem}{suffix}" for suffix in ALIGNMENT_SUFFIXES for stem in stems)
            inside = [name for name in names if name.is_file()]
            inside = inside or [*alignments_of_single_chain(path, stems, only=only)]
            if not inside:
                raise InputError(
                    f"{path}: there is no {stems[-1]}.a3m for target '{target.name}' in this directory, and no "
                    f"{stems[-1]}/{RESULTS_DIRECTORY} with AlphaFold's results"
                )
            alignments += inside
        else:
            alignments.append(path)
    for path in alignments:
        read_alignment(path, target.sequence)
    return alignments
