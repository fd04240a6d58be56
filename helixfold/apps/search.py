"""Search for relatives and templates of targets, and write and read their features."""

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
from helixfold.report.pulldown import PulldownEntry, read_entries, write_entries
from helixfold.report.searches import summary, templates_of
from helixfold.results.failures import EXPECTED_ERRORS, exit_code_for, write_failures
from helixfold.results.file_table import CHAIN_SEARCHES, FAILURES, FEATURES, PART_FAILURES, SEARCHES, TEMPLATES
from helixfold.results.lock import locked_directory
from helixfold.results.writing import to_json, write_file
from helixfold.runtime.standard_streams import optional_output, print_note, print_summary

# As many as one search of a batch should serve; another run gets those after them.
_TARGETS_PER_CLAIM = 32


def written_directories(output: Path, names: Iterable[str]) -> tuple[Path, ...]:
    """Return the directories that a run writes to: the output directory, and those of targets and of their searches."""
    targets = [output / name for name in names]
    searches = [SEARCHES.path(target) for target in targets]
    # Of a complex, each chain that is searched has its own.
    chains = [path for each in searches if each.is_dir() for path in sorted(each.iterdir()) if path.is_dir()]
    return output, *targets, *searches, *chains


def shared_directories(targets: Iterable[AnyTarget]) -> list[Path]:
    """Return the directories of results that serve several of these targets, which are complexes."""
    return sorted({path for each in targets if isinstance(each, ComplexInput) for path in each.shared_results})


def search_for_all(targets: Sequence[AnyTarget], plan: SearchPlan, output: Path) -> None:
    """Make the searches that serve many targets at once, and print which ones, as they may take long."""
    if targets and plan.alignments:
        searches = ", ".join(step.result_file for step in plan.alignments)
        print_note(f"searching for {len(targets)} targets: {searches}")
    # By directory, for complexes may share the results of a chain.
    unpaired, paired, shared = dict[Path, Target](), dict[Path, Target](), dict[Path, Target]()
    complexes: list[tuple[Sequence[str], Sequence[Path]]] = []
    for target in targets:
        results = SEARCHES.path(directory_in(output, target.name))
        if not isinstance(target, ComplexInput):
            unpaired[results] = target
            continue
        chains = zip(target.search_directories(results), map(target.chain, target.target.entities), strict=True)
        own, needed = dict(chains), target.needed(plan)
        unpaired |= own if needed.alignments else {}
        paired |= own if needed.uniprot is not None else {}
        shared |= own if target.shared_results else {}
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
        # Before several processes begin, which would repeat them; whoever needs a search that fails repeats it.
        for directory, target in shared.items():
            with suppress(InputError, SearchError, OSError):
                find_homologs(target, plan.of_chains(), directory)


def _search_ahead(targets: Mapping[Path, Target], plan: SearchPlan) -> None:
    directories = {target: directory for directory, target in targets.items()}
    search_ahead(list(targets.values()), plan, directories.__getitem__)


def contacts_of(plan: SearchPlan) -> list[ServerContact]:
    """Return the contacts with servers, each of which tells why it was given up: no process need try it again."""
    return [step.tool.server.contact for step in plan.alignments if isinstance(step.tool, ServerSearch)]


def prepare_in(directory: Path, target: AnyTarget, plan: SearchPlan) -> PreparedTarget | PreparedComplex:
    """Return a target's features; write them and the results of searches into its directory."""
    prepared = prepare_any(target, plan, SEARCHES.path(directory))
    save_features(FEATURES.path(directory), prepared.features)
    return prepared


def write_templates(
    directory: Path, prepared: PreparedTarget | PreparedComplex, read: Collection[str] | None = None
) -> None:
    """Write templates.json into a target's directory if there are template results; see `templates_of` for `read`."""
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
    """Search and make features for every target into `output/<target>/`; return `exit_code_for` the failures.

    The complexes of a `pulldown` are also listed, so that predictions from their features are ranked in one table.
    Targets that are `invalid` count as failures.

    Results of earlier searches are used again. A target that fails is recorded in `failures.json` and does not stop the
    others. With `part` (i, n), n machines divide the targets and use one output directory: this one makes every n-th
    target from the i-th on, and records failures in a file of its own. With `is_shared`, any number of runs do so, and
    each claims targets before it begins with them.
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
                failures = _make_claimed(targets, output, plan, claims, lots=_TARGETS_PER_CLAIM)
        else:
            # Other parts are at work in the output directory itself.
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
    """Search and make features for targets that are a part of a batch, and return why which of them failed, by name.

    Other runs may do so in the output directory at the same time, for these targets or others. Searches that can serve
    many targets are made for all at once, and sequences that occur twice are searched once.
    """
    check_earlier(output, {directory_in(output, target.name).name: target.sequence for target in targets})
    with locked_directory(output, is_shared=True):
        return _make_claimed(targets, output, plan, claims, lots=len(targets))


def search_claim(name: str) -> str:
    """Return under which name the search for a target is claimed; its prediction is claimed by its own name."""
    return f"features of {name}"


def _make_claimed(
    targets: Sequence[AnyTarget], output: Path, plan: SearchPlan, claims: Claims, *, lots: int
) -> dict[str, str]:
    """Claim targets, so many at a time, and make their features; return why which failed, here or in other runs."""
    failures: dict[str, str] = {}
    shared = _shared_targets([target.name for target in targets], output, claims, failures)
    starts = range(0, len(targets), lots)
    for numbers in shared.claimed([range(len(targets))[start : start + lots] for start in starts]):
        ended = {targets[number].name: number for number in numbers}
        failures |= _make_lot(
            [targets[number] for number in numbers],
            output,
            plan,
            report=lambda name, failure, ended=ended: shared.end(ended[name], failure),  # type: ignore[misc]
        )
    return failures


def _make_lot(
    targets: Sequence[AnyTarget],
    output: Path,
    plan: SearchPlan,
    *,
    report: Callable[[str, str | None], None] = lambda *_: None,
) -> dict[str, str]:
    """Search for targets at once, make the features of one after the other, and return why which failed, by name."""
    chains = {target.sequence: target for target in reversed(targets) if isinstance(target, Target)}
    first = {target.name for target in chains.values()}
    search_for_all([each for each in targets if not isinstance(each, Target) or each.name in first], plan, output)
    failures: dict[str, str] = {}
    searched: dict[str, Path] = {}
    for target in tqdm(targets, desc="targets", unit="target", disable=None):
        directory = directory_in(output, target.name)
        if isinstance(target, Target):
            _copy_results(searched.get(target.sequence), SEARCHES.path(directory))
        failure = _make_features_of(target, directory, output, plan)
        if failure is not None:
            failures[target.name] = failure
        elif isinstance(target, Target):
            searched.setdefault(target.sequence, SEARCHES.path(directory))
        report(target.name, failure)
    return failures


def _copy_results(source: Path | None, directory: Path) -> None:
    """Copy the results of searches for the same sequence, which tell themselves what they are results of."""
    if source is None or not (source / RECORD_FILE).is_file() or (directory / RECORD_FILE).exists():
        return
    with suppress(OSError):  # the search is made instead
        # The record comes last: without it, the files are not known to be results.
        for path in sorted(source.iterdir(), key=lambda path: path.name == RECORD_FILE):
            if path.is_file() and not path.name.startswith("."):
                with atomic_write(directory / path.name) as temporary:
                    shutil.copyfile(path, temporary)


def _shared_targets(names: Sequence[str], output: Path, claims: Claims, failures: dict[str, str]) -> SharedTasks:
    """Return the targets as tasks that runs share; failures in other runs are added to `failures`."""

    def report(number: int, failure: str | None) -> None:
        failures.update({} if failure is None else {names[number]: failure})

    def clear(number: int) -> bool:
        remove_partial_files(written_directories(output, [directory_in(output, names[number]).name])[1:])
        return True

    return SharedTasks([search_claim(name) for name in names], claims, is_needed=clear, report=report)


def _make_features_of(target: AnyTarget, directory: Path, output: Path, plan: SearchPlan) -> str | None:
    """Make the features of one target, print a line, and return why it failed, if it did."""
    try:
        prepared = prepare_in(directory, target, plan)
        write_templates(directory, prepared)
        print_summary(f"{target.name}: {summary(prepared)} -> {directory}")
    except EXPECTED_ERRORS as error:
        require_unmoved(output)
        failure = f"{type(error).__name__}: {error}"
        tqdm.write(f"{target.name}: failed: {failure}", file=sys.stderr)
        return failure
    return None


@optional_output()
def convert_features(paths: Sequence[Path], output: Path) -> int:
    """Convert AlphaFold's features.pkl files into `output/<target>/features.npz`; return 0.

    Raise `InputError`, before anything is written, for a file that cannot be used.
    """
    found, names = list[tuple[Path, Features]](), TargetNames()
    with input_problems() as problems:
        for path in paths:
            with problems.collected():
                features = features_from_pickle(path)
                names.add(features.domain_name, path)
                if (problem := target_name_problem(features.domain_name)) is not None:
                    raise InputError.at(path, problem, record=features.domain_name)
                found.append((path, features))
    directories = [directory_in(output, features.domain_name) for _, features in found]
    check_earlier(
        output, {each.name: features.sequence for each, (_, features) in zip(directories, found, strict=True)}
    )
    with locked_directory(output):
        remove_partial_files(written_directories(output, [directory.name for directory in directories]))
        for directory, (path, features) in zip(directories, found, strict=True):
            features.save(FEATURES.path(directory))
            print_summary(
                f"{printable(str(path))}: {features.domain_name}, {len(features.sequence)} residues -> {directory}"
            )
    return 0


def check_earlier(output: Path, sequences: Mapping[str, str]) -> None:
    """Raise `InputError` if the output directory holds other proteins or files under the names of these targets."""
    for name, sequence in sequences.items():
        directory = output / name
        for each in written_directories(output, [name])[1:]:
            if each.is_symlink():  # files written there would end up outside the output directory
                raise InputError.at(each, LINK_PROBLEM)
        if os.path.exists(directory) and not os.path.isdir(directory):
            raise InputError.at(directory, "is not a directory, and a target's files go there; choose another --output")
        earlier = FEATURES.path(directory)
        if earlier.is_file() and _sequence_of(earlier) not in (None, sequence):
            raise InputError(
                f"{earlier.parent} holds another protein of the name '{name}'; choose another --output directory"
            )


def _sequence_of(path: Path) -> str | None:
    """Return the sequence of earlier features; None if they are damaged, and so are made again."""
    try:
        found = read_npz(path, names=("sequence",)).get("sequence")
    except InputError:
        return None
    return str(found) if found is not None and found.ndim == 0 and found.dtype.kind == "U" else None


def read_features(paths: Sequence[Path], problems: InputProblems) -> list[tuple[Path, TargetFeatures]]:
    """Read features.npz files, given as files or as output directories with one file for each target.

    Return each file's path with its features; a damaged file or an unsafe name is added to `problems`.
    """
    found: list[tuple[Path, TargetFeatures]] = []
    for path in paths:
        files = [path]
        if os.path.isdir(path):
            files = sorted({*path.glob(f"*/{FEATURES.name()}"), *path.glob(FEATURES.name())})
            if not files:
                problems.add(InputError.at(path, f"there is no {FEATURES.name()} here or in a directory below"))
        for file in files:
            with problems.collected(file.parent.name):
                features = load_features(file)
                # The name becomes a directory, and whoever made the file chose it.
                residues = features.sequence.replace(CHAIN_SEPARATOR, "")
                problem = target_name_problem(features.domain_name) or unknown_residues_problem(residues)
                if problem is not None:
                    raise InputError.at(file, problem, record=features.domain_name)
                found.append((file, features))
    return found


def unfinished_features(paths: Sequence[Path]) -> list[Path]:
    """Return the directories of targets, in output directories of features, whose features are not there yet."""
    return [
        directory
        for path in paths
        if os.path.isdir(path) and not FEATURES.path(path).is_file()
        for directory in sorted(path.iterdir())
        if directory.is_dir() and not directory.name.startswith(".") and not FEATURES.path(directory).is_file()
        if CHAIN_SEARCHES.match(f"{directory.name}/") is None
    ]


def pulldown_of_features(paths: Sequence[Path], names: Collection[str]) -> list[PulldownEntry]:
    """Return the complexes of pulldowns among the targets of these names, in output directories of features."""
    return [entry for path in paths for entry in read_entries(path) if entry.name in names]
