"""Build a feature store from structures and alignments; runs can be resumed, and shards built on several machines.

One or several processes convert structure files to records. A file that fails does not affect others.
`MAX_ASSEMBLY_RESIDUES` is the limit above which an assembly is left out. `FAILURES_FILE` lists failed chains and files,
and `REFUSED_FILE` chains that the criteria exclude, with the reasons.
"""

import hashlib
import json
import multiprocessing
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from tqdm import tqdm

from data_pipeline.features.pairing import PairingRows
from data_pipeline.io.child_processes import end_with_parent, interruptions_postponed, leave_interruptions_to_parent
from data_pipeline.io.config import Checked, at_least
from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.extras import require
from data_pipeline.io.files import atomic_write, os_errors_as_input_errors
from data_pipeline.parse.alignment import read_alignment
from data_pipeline.parse.assemblies import read_assembly
from data_pipeline.parse.structures import read_structure
from data_pipeline.structure import Structure
from data_pipeline.training_sets.assembly_record import (
    ASSEMBLY_VERSION,
    AssemblyEntry,
    AssemblyRecord,
    PlacedChain,
    motion_of,
    write_assemblies,
)
from data_pipeline.training_sets.build_cache import BuildCache, content_key, file_digest, store_lock
from data_pipeline.training_sets.chain_alignment import alignment_for_chain
from data_pipeline.training_sets.chain_record import ChainRecord, ChainRecordHeader
from data_pipeline.training_sets.cluster_files import read_clusters
from data_pipeline.training_sets.clustering import cluster_chains, cluster_shard
from data_pipeline.training_sets.index import IndexEntry, write_index
from data_pipeline.training_sets.record_builder import RecordBuilder, StructureSummary
from data_pipeline.training_sets.source_files import AlignmentFile, find_structures
from data_pipeline.training_sets.store import INDEX_FILE, has_shards, shard_name

# Differs from AlphaFold: features of larger assemblies do not fit into the memory of a loader worker.
MAX_ASSEMBLY_RESIDUES = 10_000


@dataclass(frozen=True, kw_only=True)
class ChainOutcome:
    """Outcome of one chain with a record in the cache.

    `entry` is its entry in the index; until all chains are clustered, the cluster is the chain itself. `is_new` is
    whether the record was computed in this run. `pairing` is the file of rows to be paired with other chains.
    """

    entry: IndexEntry  # until all chains are clustered, the cluster is the chain itself
    sequence: str
    is_new: bool  # the record was computed in this run
    has_alignment: bool
    pairing: AlignmentFile | None  # the search for paired rows


def assembly_key(path: Path, digest: str, chains: Mapping[str, ChainOutcome]) -> str:
    """Return the hash of all inputs of an assembly's record as 32 hexadecimal digits, its key in the cache.

    `path` is the structure file, `digest` its `file_digest`, and `chains` are its chains by author chain ID.
    """
    inputs = [
        [
            chain,
            each.entry.name,
            each.entry.key,
            each.pairing and [each.pairing.path.name, file_digest(each.pairing.path)],
        ]
        for chain, each in sorted(chains.items())
    ]
    return content_key("assembly", ASSEMBLY_VERSION, path.name, digest, inputs)


def build_assembly(name: str, path: Path, chains: Mapping[str, ChainOutcome]) -> AssemblyRecord:
    """Build the record of the first assembly in the structure file `path`, with the chains in `chains`.

    These are by author chain ID. An assembly that is left out, such as one of too many residues, has a `problem`. Raise
    `InputError` if the file or an alignment for pairing cannot be read.
    """
    assembly = read_assembly(path)
    if assembly.problem:
        return AssemblyRecord(name=name, pairing={}, problem=assembly.problem)
    copies = [copy for copy in assembly.copies if copy.chain in chains]
    residues = sum(len(chains[copy.chain].sequence) for copy in copies)
    if not copies:
        problem = "none of its assembly's chains is in the training set"
        return AssemblyRecord(name=name, pairing={}, problem=problem)
    if residues > MAX_ASSEMBLY_RESIDUES:
        problem = f"its assembly has {residues:,} residues, and at most {MAX_ASSEMBLY_RESIDUES:,} are allowed"
        return AssemblyRecord(name=name, pairing={}, problem=problem)
    different = {chains[copy.chain].sequence: chains[copy.chain] for copy in copies}
    # Rows of a single sequence cannot be paired.
    paired = [chain for chain in different.values() if chain.pairing is not None and len(different) > 1]
    return AssemblyRecord(
        name=name,
        chains=tuple(
            PlacedChain(name=chains[copy.chain].entry.name, motion=motion_of(copy.rotation, copy.translation))
            for copy in copies
        ),
        pairing={chain.entry.name: _pairing_rows(chain) for chain in paired},
    )


def _pairing_rows(chain: ChainOutcome) -> PairingRows:
    """Read a chain's UniProt alignment and return its rows with species."""
    assert chain.pairing is not None
    path = chain.pairing.path
    alignment = read_alignment(path, max_rows=chain.pairing.max_rows)
    return PairingRows.of(chain.sequence, alignment_for_chain(alignment, chain.sequence, path))


_TASKS_PER_WORKER = 4  # submitted in advance, because submitting all 200,000 files of a set at once is too much


@dataclass(frozen=True, kw_only=True)
class AssemblyOutcome:
    """Outcome of the first assembly of a structure file.

    `chains` are names in the training set, once per copy, or () if it is left out; `problem` is then the reason. `key`
    is the key of its record in the cache, or "" if the record could not be built.
    """

    name: str
    chains: tuple[str, ...]  # names in the training set, once per copy; () if it is left out
    key: str
    problem: str  # why it is left out, or ""


@dataclass(frozen=True, kw_only=True)
class FileOutcome:
    """Outcome of one structure file: its chains, and the reasons why other chains have no record, by name.

    Chains in `refused` do not meet the criteria, and chains in `failed` could not be computed. `problem` is the reason
    why the whole file could not be read, or "". `summary_key` is the key of the file's summary in the cache.
    """

    path: Path
    problem: str = ""  # why the file could not be read, or ""
    summary_key: str = ""
    chains: tuple[ChainOutcome, ...] = ()
    refused: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    assembly: AssemblyOutcome | None = None


class Worker:
    """Computes the records of structure files that are not in the cache of the feature store `store` yet."""

    def __init__(self, builder: RecordBuilder, store: Path) -> None:
        self._builder = builder
        self._cache = BuildCache(store)

    def process(self, path: Path) -> FileOutcome:
        """Store the records of all chains of one file, and of its assembly if these are built, in the cache.

        The outcome lists refused and failed chains with the reasons; an unreadable file has a `problem`.
        """
        try:
            digest = file_digest(path)
            summary_key = self._builder.summary_key(path, digest)
            summary, structure = self._summary(summary_key, path)
        except (InputError, OSError, MemoryError) as error:
            return FileOutcome(path=path, problem=reason(error))
        refused, failed = dict(summary.refused), {}
        accepted: dict[str, ChainOutcome] = {}
        for chain in summary.chains:
            try:
                results = self._builder.results(chain)
                if self._builder.require_alignments and not results.alignments:
                    refused[chain.name] = "there is no alignment, and --require-alignments was given"
                    continue
                key = self._builder.record_key(path, digest, chain, results)
                header = cached = self._cached_header(key)
                if header is None:
                    structure = structure or read_structure(path)
                    content = self._builder.record(key, structure, chain, results)
                    self._cache.put(key, content)
                    header = ChainRecord(content, key).head
            except (ValueError, RuntimeError, OSError, MemoryError) as error:
                failed[chain.name] = reason(error)
                continue
            entry = IndexEntry(
                name=chain.name,
                cluster=chain.name,
                length=len(chain.sequence),
                msa_rows=header.msa_rows,
                release_date=summary.release_date,
                resolution=summary.resolution,
                is_distillation=self._builder.is_distillation,
                key=key,
            )
            accepted[chain.chain] = ChainOutcome(
                entry=entry,
                sequence=chain.sequence,
                is_new=cached is None,
                has_alignment=bool(results.alignments),
                pairing=results.pairing,
            )
        return FileOutcome(
            path=path,
            summary_key=summary_key,
            chains=tuple(accepted.values()),
            refused=refused,
            failed=failed,
            assembly=self._assembly(path, digest, accepted) if self._builder.assemblies else None,
        )

    def _assembly(self, path: Path, digest: str, accepted: dict[str, ChainOutcome]) -> AssemblyOutcome:
        """Return the outcome of a file's assembly, after building its record if it is not in the cache."""
        name = path.name.split(".")[0]
        try:
            key = assembly_key(path, digest, accepted)
            record = self._cached_assembly(key)
            if record is None:
                record = build_assembly(name, path, accepted)
                self._cache.put(key, record.pack())
        except (ValueError, RuntimeError, OSError, MemoryError) as error:
            return AssemblyOutcome(name=name, chains=(), key="", problem=reason(error))
        return AssemblyOutcome(
            name=name, chains=tuple(chain.name for chain in record.chains), key=key, problem=record.problem
        )

    def _cached_assembly(self, key: str) -> AssemblyRecord | None:
        """Return the record of an assembly from the cache; None if missing or damaged."""
        content = self._cache.get(key)
        if content is not None:
            with suppress(ValueError):  # damaged: built again
                return AssemblyRecord.unpack(content)
        return None

    def _summary(self, key: str, path: Path) -> tuple[StructureSummary, Structure | None]:
        """Return the summary of a file, and its structure if the summary is not in the cache."""
        content = self._cache.get(key)
        if content is not None:
            with suppress(ValueError):  # damaged: computed again
                return StructureSummary.unpack(content), None
        structure = read_structure(path)
        summary = self._builder.summary(structure, path)
        self._cache.put(key, summary.pack())
        return summary, structure

    def _cached_header(self, key: str) -> ChainRecordHeader | None:
        """Return the header of a cached record, or None if it is missing or damaged."""
        content = self._cache.get(key)
        if content is None:
            return None
        try:
            record = ChainRecord(content, key)
            record.check()
        except InputError:
            return None  # damaged: computed again
        return record.head


def process_files(builder: RecordBuilder, store: Path, paths: Sequence[Path], workers: int) -> Iterator[FileOutcome]:
    """Yield the outcome of each file in order of completion, with one thread or, for 2 or more, `workers` processes.

    If a process dies (out of memory, or a crash in a library), the whole pool breaks. The files in progress are then
    retried one at a time in a separate pool, so that only the file that kills its process fails.
    """
    if workers == 1:
        worker = Worker(builder, store)
        yield from _drained(deque(paths), ThreadPoolExecutor(1), worker.process, ahead=1, lost=[])
        return
    waiting, files_to_retry = deque(paths), deque[Path]()
    while waiting:
        lost: list[Path] = []
        pool = _pool(builder, store, min(workers, len(waiting)))
        yield from _drained(waiting, pool, _process, ahead=workers * _TASKS_PER_WORKER, lost=lost)
        files_to_retry += lost
    for path in files_to_retry:
        lost = []
        yield from _drained(deque([path]), _pool(builder, store, 1), _process, ahead=1, lost=lost)
        if lost:
            problem = "the process that read it died (out of memory?); try again with fewer --workers"
            yield FileOutcome(path=path, problem=problem)


def _drained(
    waiting: deque[Path],
    pool: ThreadPoolExecutor | ProcessPoolExecutor,
    process: Callable[[Path], FileOutcome],
    *,
    ahead: int,
    lost: list[Path],
) -> Iterator[FileOutcome]:
    """Yield the outcomes of the files in `waiting`; if the pool breaks, add the files in progress to `lost`."""
    running: dict[Future[FileOutcome], Path] = {}
    try:
        while (waiting and not lost) or running:
            while waiting and not lost and len(running) < ahead:
                try:
                    with interruptions_postponed():  # this may start a process
                        running[pool.submit(process, waiting[0])] = waiting[0]
                except BrokenProcessPool:
                    break
                waiting.popleft()
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                path = running.pop(future)
                error = future.exception()
                if error is None:
                    yield future.result()
                elif isinstance(error, BrokenProcessPool):
                    lost.append(path)
                else:
                    yield FileOutcome(path=path, problem=reason(error))
    finally:
        pool.shutdown(cancel_futures=True)


def reason(error: BaseException) -> str:
    """Return the message of an error as printable text, up to 1,000 characters, after its type.

    An `InputError` has no type in front.
    """
    text = printable(str(error), 1000)
    return text if isinstance(error, InputError) else f"{type(error).__name__}: {text}"


_worker: Worker | None = None  # the worker of this process if it belongs to a pool


def _pool(builder: RecordBuilder, store: Path, workers: int) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_start, initargs=(builder, store))


def _start(builder: RecordBuilder, store: Path) -> None:
    """Prepare a worker process."""
    global _worker  # noqa: PLW0603  # a pool has no other way to share state between tasks
    leave_interruptions_to_parent()
    end_with_parent()  # otherwise, processes of a pool wait for work forever
    _worker = Worker(builder, store)


def _process(path: Path) -> FileOutcome:
    assert _worker is not None
    return _worker.process(path)


FAILURES_FILE, REFUSED_FILE = "failures.json", "refused.tsv"


@dataclass(frozen=True, kw_only=True)
class BuildOptions(Checked):
    """Settings of a feature-store build: input and output paths, shard and number of worker processes.

    `clusters` is a file of clusters; None: the build clusters the chains. `shard` is the index (from 0) of the shard to
    build, of `shards`; None: build the whole set.
    """

    structures: Path
    output: Path
    clusters: Path | None = None  # file of clusters; None: the build clusters the chains
    shard: int | None = None  # index from 0; None: build the whole set
    shards: int = 1
    workers: Annotated[int, at_least(1)] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shard is not None and not 0 <= self.shard < self.shards <= 9999:
            shard = f"{self.shard}/{self.shards}"
            raise ValueError(f"a shard must be i/n with i from 0 to n - 1 and n at most 9999, got {shard}")

    @property
    def directory(self) -> Path:
        """Output directory of this run: `output`, or its subdirectory for the shard."""
        return self.output if self.shard is None else self.output / shard_name(self.shard, self.shards)


@dataclass(frozen=True, kw_only=True)
class BuildReport:
    """Outcome of a build.

    `chains` and `assemblies` are the numbers in the store. `made` is the number of chain records computed in this run;
    earlier runs computed the others. `refused` and `failed` map chains to reasons; unreadable files are in `failed` by
    path. `skipped_assemblies` maps assemblies to reasons, and `notes` are messages for the user.
    """

    directory: Path
    chains: int
    made: int  # records computed in this run; earlier runs computed the others
    refused: dict[str, str]
    failed: dict[str, str]
    notes: tuple[str, ...]  # messages for the user
    assemblies: int = 0
    skipped_assemblies: dict[str, str] = field(default_factory=dict)  # reasons


def build_store(options: BuildOptions, builder: RecordBuilder) -> BuildReport:
    """Build, resume or extend a feature store, or one shard of it; existing records are not computed again.

    It shows a progress bar. A resumed run gives the same bytes as an uninterrupted one. Raise `InputError` if the
    structures, the clusters file or the output directory cannot be used. Failed chains and files are listed in the
    report and in `failures.json`.
    """
    require("train", "lmdb", action="a training set")
    directory = options.directory
    if options.shard is None and has_shards(options.output):
        raise InputError.at(options.output, "it contains shards; pass --shard, or choose another --output")
    if options.shard is not None and (options.output / INDEX_FILE).is_file():
        raise InputError.at(options.output, "it is a store without shards; choose another --output")
    clusters = None if options.clusters is None else read_clusters(options.clusters)
    paths = find_structures(options.structures)
    if options.shard is not None:
        paths = tuple(path for path in paths if shard_of(path, options.shards) == options.shard)
    with store_lock(directory):
        cache = BuildCache(directory)
        cache.sweep()
        running = process_files(builder, directory, paths, options.workers)
        progress = tqdm(running, total=len(paths), desc="structures", unit="file", disable=None)
        outcomes = sorted(progress, key=lambda outcome: outcome.path)
        gathered = _gather(outcomes, options.structures)
        return _finish(options, builder, cache, gathered, clusters)


def shard_of(path: Path, shards: int) -> int:
    """Return the index (0 to `shards` - 1) of the shard of a structure file.

    It depends only on the file name, so adding files never moves other files to another shard.
    """
    stem = path.name.split(".")[0].lower()
    return int.from_bytes(hashlib.blake2b(stem.encode(), digest_size=8).digest()) % shards


@dataclass(kw_only=True)
class _Gathered:
    """Chains by name, cache keys of the summaries, and reasons, joined over all structure files."""

    chains: dict[str, ChainOutcome] = field(default_factory=dict)
    summary_keys: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    assemblies: dict[str, AssemblyEntry] = field(default_factory=dict)
    skipped_assemblies: dict[str, str] = field(default_factory=dict)

    def add_assembly(self, assembly: AssemblyOutcome, file: str, own: Collection[str]) -> None:
        """Add the assembly of a file, or the reason why it is left out; `own` are the file's chains in the set."""
        if assembly.name in self.assemblies:
            self.skipped_assemblies[f"{assembly.name} of {file}"] = "another file has an assembly of this name already"
        elif assembly.problem:
            self.skipped_assemblies[assembly.name] = assembly.problem
        elif not set(assembly.chains) <= set(own):
            self.skipped_assemblies[assembly.name] = "other files have chains of the same names"
        else:
            self.assemblies[assembly.name] = AssemblyEntry(name=assembly.name, key=assembly.key, chains=assembly.chains)


def _gather(outcomes: Sequence[FileOutcome], root: Path) -> _Gathered:
    """Join the outcomes of all files in order of path; if two files have a chain of the same name, use the first."""
    gathered = _Gathered()
    files: dict[str, str] = {}
    for outcome in outcomes:
        file = str(outcome.path.relative_to(root))
        if outcome.problem:
            gathered.failed[file] = outcome.problem
            continue
        gathered.refused |= outcome.refused
        gathered.failed |= outcome.failed
        gathered.summary_keys.add(outcome.summary_key)
        for chain in outcome.chains:
            name = chain.entry.name
            first = files.setdefault(name, file)
            if first == file:
                gathered.chains[name] = chain
            else:
                gathered.refused[f"{name} of {file}"] = f"{first} has a chain of this name already"
        if outcome.assembly is not None:
            own = [chain.entry.name for chain in outcome.chains if files[chain.entry.name] == file]
            gathered.add_assembly(outcome.assembly, file, own)
    return gathered


def _finish(
    options: BuildOptions,
    builder: RecordBuilder,
    cache: BuildCache,
    gathered: _Gathered,
    given: Mapping[str, str] | None,
) -> BuildReport:
    """Cluster the chains, write the database, and write the index last, because it marks a finished store."""
    sequences = {name: chain.sequence for name, chain in gathered.chains.items()}
    is_whole_set = options.shard is None
    clustering = cluster_chains(sequences, given, cache) if is_whole_set else cluster_shard(sequences, given)
    notes = [*clustering.notes]
    unaligned_count = sum(not chain.has_alignment for chain in gathered.chains.values())
    if unaligned_count and builder.alignments is not None:
        count = f"{unaligned_count} of {len(gathered.chains)} chains"
        notes.append(f"{count} have no alignment, only their own sequence (--require-alignments leaves such out)")
    keys = gathered.summary_keys | clustering.cache_keys | {chain.entry.key for chain in gathered.chains.values()}
    keys |= {assembly.key for assembly in gathered.assemblies.values()}
    entries = [
        replace(chain.entry, cluster=clustering.clusters[name]) for name, chain in sorted(gathered.chains.items())
    ]
    with os_errors_as_input_errors(options.directory, "cannot be written"):
        cache.pack(sorted(keys))
        _write_reasons(options.directory, gathered.refused, gathered.failed)
        if builder.assemblies:
            write_assemblies(options.directory, gathered.assemblies.values(), gathered.skipped_assemblies)
        write_index(options.directory / INDEX_FILE, entries)
    cache.clear()
    return BuildReport(
        directory=options.directory,
        chains=len(entries),
        made=sum(chain.is_new for chain in gathered.chains.values()),
        refused=gathered.refused,
        failed=gathered.failed,
        notes=tuple(notes),
        assemblies=len(gathered.assemblies),
        skipped_assemblies=gathered.skipped_assemblies,
    )


def _write_reasons(directory: Path, refused: Mapping[str, str], failed: Mapping[str, str]) -> None:
    """Write the table of refused names; write the file of failed names, or delete it if none failed."""
    with atomic_write(directory / REFUSED_FILE) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        file.write("name\treason\n")
        file.writelines(f"{printable(name)}\t{printable(refused[name], 1000)}\n" for name in sorted(refused))
    if failed:
        with atomic_write(directory / FAILURES_FILE) as temporary:
            temporary.write_text(json.dumps(dict(sorted(failed.items())), indent=4) + "\n", encoding="utf-8")
    else:
        (directory / FAILURES_FILE).unlink(missing_ok=True)
