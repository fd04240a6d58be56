"""Search for homologs and templates of targets, and write and read their features."""

import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

from tqdm import tqdm

from data_pipeline.features.alphafold_pickle import features_from_pickle
from data_pipeline.features.complexes.chain_sequences import CHAIN_SEPARATOR
from data_pipeline.features.complexes.complex_input import AnyTarget, ComplexInput
from data_pipeline.features.complexes.feature_file import load_features, save_features
from data_pipeline.features.complexes.feature_set import TargetFeatures
from data_pipeline.features.complexes.paired_search import search_pairs_ahead
from data_pipeline.features.complexes.pipeline import PreparedComplex, prepare_any
from data_pipeline.features.complexes.target_files import TargetNames, directory_in
from data_pipeline.features.schema import Features
from data_pipeline.io.claims import Claims
from data_pipeline.io.errors import InputError, InputProblems, SearchError, input_problems, printable
from data_pipeline.io.files import LINK_PROBLEM, atomic_write, remove_partial_files, require_unmoved
from data_pipeline.io.npz import read_npz
from data_pipeline.parse.fasta import target_name_problem, unknown_residues_problem
from data_pipeline.pipeline import PreparedTarget, Target, find_homologs, search_ahead
from data_pipeline.search.alignment_server import ServerContact
from data_pipeline.search.mmseqs_server import ServerSearch
from data_pipeline.search.plan import SearchPlan
from data_pipeline.search.result_files import RECORD_FILE
from data_pipeline.search.tool import BatchSearch
from helixfold.parallel.shared_tasks import SharedTasks
from helixfold.report.page import counted
from helixfold.report.pulldown import PulldownEntry, read_entries, write_entries
from helixfold.report.searches import summary, templates_of
from helixfold.results.failures import EXPECTED_ERRORS, exit_code_for, write_failures
from helixfold.results.file_table import CHAIN_SEARCHES, FAILURES, FEATURES, PART_FAILURES, SEARCHES, TEMPLATES
from helixfold.results.lock import locked_directory
from helixfold.results.writing import to_json, write_file
from helixfold.runtime.standard_streams import optional_output, print_note, print_summary

# Number of targets that a run claims together, for one search of a batch.
_TARGETS_PER_CLAIM = 32


def written_directories(output: Path, names: Iterable[str]) -> tuple[Path, ...]:
    """Return the directories that a run writes to: the output directory, targets, and searches of targets."""
    targets = [output / name for name in names]
    searches = [SEARCHES.path(target) for target in targets]
    # In a complex, each chain with searches has its own directory.
    chains = [path for each in searches if each.is_dir() for path in sorted(each.iterdir()) if path.is_dir()]
    return output, *targets, *searches, *chains


def shared_directories(targets: Iterable[AnyTarget]) -> list[Path]:
    """Return the directories of search results that the complexes of a pulldown share, each once."""
    return sorted({path for each in targets if isinstance(each, ComplexInput) for path in each.shared_results})


def search_for_all(targets: Sequence[AnyTarget], plan: SearchPlan, output: Path) -> None:
    """Run the searches that can be made for many targets at once, and print which ones, because they may take long."""
    if targets and plan.alignments:
        searches = ", ".join(step.result_file for step in plan.alignments)
        print_note(f"searching for {counted(len(targets), 'target')}: {searches}")
    # Targets by directory, because complexes may share the results of a chain.
    unpaired, paired, shared = dict[Path, Target](), dict[Path, Target](), dict[Path, Target]()
    complexes: list[tuple[Sequence[str], Sequence[Path]]] = []
    for target in targets:
        results = SEARCHES.path(directory_in(output, target.name))
        if not isinstance(target, ComplexInput):
            unpaired[results] = target
            continue
        chains = zip(target.search_directories(results), map(target.chain, target.target.entities), strict=True)
        results_of_chains, needed = dict(chains), target.needed(plan)
        unpaired |= results_of_chains if needed.alignments else {}
        paired |= results_of_chains if needed.uniprot is not None else {}
        shared |= results_of_chains if target.shared_results else {}
        if needed.pairing is not None:
            sequences = [entity.sequence for entity in target.target.entities]
            complexes.append((sequences, target.pair_directories(results)))
    _search_ahead(unpaired, plan)
    if plan.pairing is not None:
        search_pairs_ahead(complexes, plan.pairing)
    if plan.uniprot is not None:
        _search_ahead(paired, SearchPlan(alignments=(plan.uniprot,)))
    search_alone = any(not isinstance(step.tool, BatchSearch) for step in plan.alignments)
    if search_alone or plan.of_chains().templates is not None:
        # Shared searches run before the processes start, which would repeat them. A failed search is repeated when a
        # target needs it.
        for directory, target in shared.items():
            with suppress(InputError, SearchError, OSError):
                find_homologs(target, plan.of_chains(), directory)


def _search_ahead(targets: Mapping[Path, Target], plan: SearchPlan) -> None:
    """Run batch searches for targets by the directories of their results."""
    directories = {target: directory for directory, target in targets.items()}
    search_ahead(list(targets.values()), plan, directories.__getitem__)


def contacts_of(plan: SearchPlan) -> list[ServerContact]:
    """Return the contact with the server of each alignment search; `problem` is set once a server was given up."""
    return [step.tool.server.contact for step in plan.alignments if isinstance(step.tool, ServerSearch)]


def prepare_in(directory: Path, target: AnyTarget, plan: SearchPlan) -> PreparedTarget | PreparedComplex:
    """Run the searches of a target, write their results and the features into its directory, and return both.

    Results of earlier searches in the directory are reused.
    """
    prepared = prepare_any(target, plan, SEARCHES.path(directory))
    save_features(FEATURES.path(directory), prepared.features)
    return prepared


def write_templates(
    directory: Path, prepared: PreparedTarget | PreparedComplex, read: Collection[str] | None = None
) -> None:
    """Write templates.json if templates were searched or supplied.

    `read` has the labels of the templates that models read; see `templates_of`.
    """
    if (templates := templates_of(prepared, read)) is not None:
        write_file(TEMPLATES.path(directory), to_json(templates, indent=2) + "\n")


@optional_output()
def make_features(
    targets: Sequence[AnyTarget],
    *,
    output: Path,
    plan: SearchPlan,
    part: tuple[int, int] | None = None,
    is_shared: bool = False,
    pulldown: Sequence[PulldownEntry] = (),
    invalid: Mapping[str, str] | None = None,
) -> int:
    """Run the searches and compute the features of every target into `output/<target>/`; return the exit code.

    Results of earlier searches are reused. A failed target is recorded in `failures.json` and does not stop the others;
    `invalid` targets count as failed. The entries of a `pulldown` are written too, so that predictions from the
    features are ranked in one table.

    With `part` (i, n), n machines divide the targets and share one output directory: this run takes every n-th target
    starting at index i, and records failures in its own file. With `is_shared`, any number of runs share the output
    directory, and each claims targets before it starts them.
    """
    failures_file = FAILURES.name()
    if part is not None:
        targets = targets[part[0] :: part[1]]
        failures_file = PART_FAILURES.name(part=part[0], parts=part[1])
    directories = {target.name: directory_in(output, target.name) for target in targets}
    check_earlier(output, {directories[target.name].name: target.sequence for target in targets})
    with locked_directory(output, part, is_shared=is_shared):
        if pulldown:
            write_entries(output, pulldown)
        if is_shared:
            with closing(Claims.in_directory(output)) as claims:
                failures = _make_claimed(targets, output, plan, claims, targets_per_claim=_TARGETS_PER_CLAIM)
        else:
            # With parts, other runs may be writing to the output directory itself.
            own = written_directories(output, [directory.name for directory in directories.values()])
            own += tuple(shared_directories(targets)) if part is None else ()
            remove_partial_files(own if part is None else own[1:])
            failures = _make_lot(targets, output, plan)
        failures |= invalid or {}
        write_failures(output, failures, failures_file)
    return exit_code_for(failures)


def make_part_of_features(
    targets: Sequence[AnyTarget], *, output: Path, plan: SearchPlan, claims: Claims
) -> dict[str, str]:
    """Compute features for targets that are a part of a batch; return the failures by name of the target.

    Other runs may use the output directory at the same time, for these targets or others. Batch searches are made for
    all targets at once, and a sequence that occurs twice is searched once.
    """
    check_earlier(output, {directory_in(output, target.name).name: target.sequence for target in targets})
    with locked_directory(output, is_shared=True):
        return _make_claimed(targets, output, plan, claims, targets_per_claim=len(targets))


def search_claim(name: str) -> str:
    """Return the name of the claim for a target's searches; the claim for its prediction has the target's name."""
    return f"features of {name}"


def _make_claimed(
    targets: Sequence[AnyTarget], output: Path, plan: SearchPlan, claims: Claims, *, targets_per_claim: int
) -> dict[str, str]:
    """Compute the features of targets, claimed a few at a time; return the failures here and in other runs."""
    failures: dict[str, str] = {}
    shared = _shared_targets([target.name for target in targets], output, claims, failures)
    starts = range(0, len(targets), targets_per_claim)
    for indices in shared.claimed([range(len(targets))[start : start + targets_per_claim] for start in starts]):
        index_of = {targets[index].name: index for index in indices}
        failures |= _make_lot(
            [targets[index] for index in indices],
            output,
            plan,
            report=lambda name, failure, index_of=index_of: shared.end(index_of[name], failure),  # type: ignore[misc]
        )
    return failures


def _make_lot(
    targets: Sequence[AnyTarget],
    output: Path,
    plan: SearchPlan,
    *,
    report: Callable[[str, str | None], None] = lambda *_: None,
) -> dict[str, str]:
    """Run the searches for all targets at once, then compute features one by one; return the failures by name."""
    chains = {target.sequence: target for target in reversed(targets) if isinstance(target, Target)}
    first_names = {target.name for target in chains.values()}
    search_for_all([each for each in targets if not isinstance(each, Target) or each.name in first_names], plan, output)
    failures: dict[str, str] = {}
    searched_directories: dict[str, Path] = {}
    for target in tqdm(targets, desc="targets", unit="target", disable=None):
        directory = directory_in(output, target.name)
        if isinstance(target, Target):
            _copy_results(searched_directories.get(target.sequence), SEARCHES.path(directory))
        failure = _make_features_of(target, directory, output, plan)
        if failure is not None:
            failures[target.name] = failure
        elif isinstance(target, Target):
            searched_directories.setdefault(target.sequence, SEARCHES.path(directory))
        report(target.name, failure)
    return failures


def _copy_results(source: Path | None, directory: Path) -> None:
    """Copy the results of searches for the same sequence, including the record that identifies them."""
    if source is None or not (source / RECORD_FILE).is_file() or (directory / RECORD_FILE).exists():
        return
    with suppress(OSError):  # if the copy fails, the search is made
        # The record is copied last, because files without it do not count as results.
        for path in sorted(source.iterdir(), key=lambda path: path.name == RECORD_FILE):
            if path.is_file() and not path.name.startswith("."):
                with atomic_write(directory / path.name) as temporary_file:
                    shutil.copyfile(path, temporary_file)


def _shared_targets(names: Sequence[str], output: Path, claims: Claims, failures: dict[str, str]) -> SharedTasks:
    """Return the targets as tasks that several runs share; failures in other runs are added to `failures`."""

    def report(index: int, failure: str | None) -> None:
        """Add a failure of a target in another run."""
        failures.update({} if failure is None else {names[index]: failure})

    def clear(index: int) -> bool:
        """Remove partial files of a killed run for a claimed target. Return True, because it is always needed."""
        remove_partial_files(written_directories(output, [directory_in(output, names[index]).name])[1:])
        return True

    return SharedTasks([search_claim(name) for name in names], claims, is_needed=clear, report=report)


def _make_features_of(target: AnyTarget, directory: Path, output: Path, plan: SearchPlan) -> str | None:
    """Compute the features of one target, print a line, and return the failure or None."""
    again = " (written again)" if FEATURES.path(directory).is_file() else ""
    try:
        prepared = prepare_in(directory, target, plan)
        write_templates(directory, prepared)
        print_summary(f"{target.name}: {summary(prepared)} -> {directory}{again}")
    except EXPECTED_ERRORS as error:
        require_unmoved(output)
        failure = f"{type(error).__name__}: {error}"
        tqdm.write(f"{target.name}: failed: {failure}", file=sys.stderr)
        return failure
    return None


@optional_output()
def convert_features(paths: Sequence[Path], output: Path) -> int:
    """Convert AlphaFold's features.pkl files into `output/<target>/features.npz`; return 0.

    Raise `InputError` for a file that cannot be used, before anything is written.
    """
    loaded, names = list[tuple[Path, Features]](), TargetNames()
    with input_problems() as problems:
        for path in paths:
            with problems.collected():
                features = features_from_pickle(path)
                names.add(features.domain_name, path)
                if (problem := target_name_problem(features.domain_name)) is not None:
                    raise InputError.at(path, problem, record=features.domain_name)
                loaded.append((path, features))
    directories = [directory_in(output, features.domain_name) for _, features in loaded]
    check_earlier(
        output, {each.name: features.sequence for each, (_, features) in zip(directories, loaded, strict=True)}
    )
    with locked_directory(output):
        remove_partial_files(written_directories(output, [directory.name for directory in directories]))
        for directory, (path, features) in zip(directories, loaded, strict=True):
            features.save(FEATURES.path(directory))
            print_summary(
                f"{printable(str(path))}: {features.domain_name}, {len(features.sequence)} residues -> {directory}"
            )
    return 0


def check_earlier(output: Path, sequences: Mapping[str, str]) -> None:
    """Raise `InputError` if the output directory has other proteins, files or links with the names of these targets.

    `sequences` has the sequence of each target by directory name.
    """
    for name, sequence in sequences.items():
        directory = output / name
        for each in written_directories(output, [name])[1:]:
            if each.is_symlink():  # files written there would end up outside the output directory
                raise InputError.at(each, LINK_PROBLEM)
        if os.path.exists(directory) and not os.path.isdir(directory):
            raise InputError.at(directory, "is not a directory, but a target needs one here; choose another --output")
        earlier = FEATURES.path(directory)
        if earlier.is_file() and _sequence_of(earlier) not in (None, sequence):
            raise InputError(
                f"{earlier.parent} has another protein with the name '{name}'; choose another --output directory"
            )


def _sequence_of(path: Path) -> str | None:
    """Return the sequence of earlier features; None if they are damaged and will be computed again."""
    try:
        sequence = read_npz(path, names=("sequence",)).get("sequence")
    except InputError:
        return None
    return str(sequence) if sequence is not None and sequence.ndim == 0 and sequence.dtype.kind == "U" else None


def read_features(paths: Sequence[Path], problems: InputProblems) -> list[tuple[Path, TargetFeatures]]:
    """Read features.npz files; each path is a file, or an output directory with one file for each target.

    A path may also be a list of chains (.txt) in a training set. Return each file's path with its features; chains of a
    training set have paths below it. Damaged files and unsafe target names are added to `problems`.
    """
    features_by_file: list[tuple[Path, TargetFeatures]] = []
    load: Callable[[Path], TargetFeatures]
    for path in paths:
        files, load = [path], load_features
        if path.suffix == ".txt":
            files, load = _listed_chains(path)
        elif os.path.isdir(path):
            files = sorted({*path.glob(f"*/{FEATURES.name()}"), *path.glob(FEATURES.name())})
            if not files:
                problems.add(InputError.at(path, f"no {FEATURES.name()} in this directory or a subdirectory"))
        for file in files:
            with problems.collected(file.parent.name):
                features = load(file)
                # The name of the target, which is part of the file's content, becomes the name of a directory.
                residues = features.sequence.replace(CHAIN_SEPARATOR, "")
                problem = target_name_problem(features.domain_name) or unknown_residues_problem(residues)
                if problem is not None:
                    raise InputError.at(file, problem, record=features.domain_name)
                features_by_file.append((file, features))
    return features_by_file


def _listed_chains(path: Path) -> tuple[list[Path], Callable[[Path], TargetFeatures]]:
    """Return the chains in a list as paths below their training set, and a function that reads their features.

    The list is in the directory of the training set. Raise `InputError` if either cannot be read.
    """
    # LMDB is an extra.
    from data_pipeline.training_sets.store import FeatureStore  # noqa: PLC0415
    from helixfold.training.evaluate import read_names  # noqa: PLC0415

    store = FeatureStore.open(path.parent)
    names = {path.parent / name: name for name in read_names(path, {entry.name for entry in store.entries})}
    return [*names], lambda file: store.load(names[file])[0]


def unfinished_features(paths: Sequence[Path]) -> list[Path]:
    """Return the directories of targets without features in output directories of `helixfold features`."""
    return [
        directory
        for path in paths
        if os.path.isdir(path) and not FEATURES.path(path).is_file()
        for directory in sorted(path.iterdir())
        if directory.is_dir() and not directory.name.startswith(".") and not FEATURES.path(directory).is_file()
        if CHAIN_SEARCHES.match(f"{directory.name}/") is None
    ]


def pulldown_of_features(paths: Sequence[Path], names: Collection[str]) -> list[PulldownEntry]:
    """Return the pulldown entries with these target names, from output directories of `helixfold features`."""
    return [entry for path in paths for entry in read_entries(path) if entry.name in names]
