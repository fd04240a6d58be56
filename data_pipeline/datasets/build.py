"""Build a feature store from structures and alignments; runs can be resumed, and shards built on several machines."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tqdm import tqdm

from data_pipeline.datasets.assembly_index import AssemblyEntry, write_assemblies
from data_pipeline.datasets.build_cache import BuildCache, store_lock
from data_pipeline.datasets.cluster_files import read_clusters
from data_pipeline.datasets.clustering import cluster_chains, cluster_shard
from data_pipeline.datasets.index import write_index
from data_pipeline.datasets.record_builder import RecordBuilder
from data_pipeline.datasets.source_files import find_structures
from data_pipeline.datasets.store import INDEX_FILE, has_shards, shard_name
from data_pipeline.datasets.workers import AssemblyOutcome, ChainOutcome, FileOutcome, process_files
from data_pipeline.errors import InputError, check_at_least, printable
from data_pipeline.extras import require
from data_pipeline.files import atomic_write, os_errors_as_input_errors

FAILURES_FILE, REFUSED_FILE = "failures.json", "refused.tsv"


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """Settings of a feature-store build: input and output paths, shard and number of worker processes."""

    structures: Path
    output: Path
    clusters: Path | None = None  # file of clusters; None: the build clusters the chains
    shard: int | None = None  # index from 0; None: build the whole set
    shards: int = 1
    workers: int = 1

    def __post_init__(self) -> None:
        check_at_least(self, workers=1)
        if self.shard is not None and not 0 <= self.shard < self.shards <= 9999:
            given = f"{self.shard}/{self.shards}"
            raise ValueError(f"a shard is i/n with i from 0 to n - 1 and n at most 9999, got {given}")

    @property
    def directory(self) -> Path:
        """Return the directory that this run writes to: `output`, or its subdirectory for the shard."""
        return self.output if self.shard is None else self.output / shard_name(self.shard, self.shards)


@dataclass(frozen=True, kw_only=True)
class BuildReport:
    """Outcome of a build.

    `refused` and `failed` map chains to reasons; files that could not be read are in `failed` by their path.
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
    """Build a feature store, or resume or extend one; records that exist are not computed again.

    A run that is killed and started again gives the same bytes as an uninterrupted one. Raise `InputError` if the
    structures, the clusters file or the output directory cannot be used. A single chain or file that fails is listed
    in the report and in `failures.json`.
    """
    require("train", "lmdb", action="a training set")
    directory = options.directory
    if options.shard is None and has_shards(options.output):
        raise InputError.at(options.output, "it holds shards; give --shard, or choose another --output")
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
        shown = tqdm(running, total=len(paths), desc="structures", unit="file", disable=None)
        outcomes = sorted(shown, key=lambda outcome: outcome.path)
        found = _gather(outcomes, options.structures)
        return _finish(options, builder, cache, found, clusters)


def shard_of(path: Path, shards: int) -> int:
    """Return the index (0 to `shards` - 1) of the shard of a structure file.

    It depends on the file name alone, so adding other files never moves a file to another shard.
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
        """Add a file's assembly, or the reason why it is left out; `own` are the chains that the file has given."""
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
    found = _Gathered()
    files: dict[str, str] = {}
    for outcome in outcomes:
        file = str(outcome.path.relative_to(root))
        if outcome.problem:
            found.failed[file] = outcome.problem
            continue
        found.refused |= outcome.refused
        found.failed |= outcome.failed
        found.summary_keys.add(outcome.summary_key)
        for chain in outcome.chains:
            name = chain.entry.name
            first = files.setdefault(name, file)
            if first == file:
                found.chains[name] = chain
            else:
                found.refused[f"{name} of {file}"] = f"{first} has a chain of this name already"
        if outcome.assembly is not None:
            own = [chain.entry.name for chain in outcome.chains if files[chain.entry.name] == file]
            found.add_assembly(outcome.assembly, file, own)
    return found


def _finish(
    options: BuildOptions,
    builder: RecordBuilder,
    cache: BuildCache,
    found: _Gathered,
    given: Mapping[str, str] | None,
) -> BuildReport:
    """Cluster the chains, write the database, and write the index last, since its presence marks a finished store."""
    sequences = {name: chain.sequence for name, chain in found.chains.items()}
    whole = options.shard is None
    grouped = cluster_chains(sequences, given, cache) if whole else cluster_shard(sequences, given)
    notes = [*grouped.notes]
    alone = sum(not chain.has_alignment for chain in found.chains.values())
    if alone and builder.alignments is not None:
        count = f"{alone} of {len(found.chains)} chains"
        notes.append(f"{count} have no alignment, only their own sequence (--require-alignments leaves such out)")
    keys = found.summary_keys | grouped.cache_keys | {chain.entry.key for chain in found.chains.values()}
    keys |= {assembly.key for assembly in found.assemblies.values()}
    entries = [replace(chain.entry, cluster=grouped.clusters[name]) for name, chain in sorted(found.chains.items())]
    with os_errors_as_input_errors(options.directory, "cannot be written"):
        cache.pack(sorted(keys))
        _write_reasons(options.directory, found.refused, found.failed)
        if builder.assemblies:
            write_assemblies(options.directory, found.assemblies.values(), found.skipped_assemblies)
        write_index(options.directory / INDEX_FILE, entries)
    cache.clear()
    return BuildReport(
        directory=options.directory,
        chains=len(entries),
        made=sum(chain.is_new for chain in found.chains.values()),
        refused=found.refused,
        failed=found.failed,
        notes=tuple(notes),
        assemblies=len(found.assemblies),
        skipped_assemblies=found.skipped_assemblies,
    )


def _write_reasons(directory: Path, refused: Mapping[str, str], failed: Mapping[str, str]) -> None:
    with atomic_write(directory / REFUSED_FILE) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        file.write("name\treason\n")
        file.writelines(f"{printable(name)}\t{printable(refused[name], 1000)}\n" for name in sorted(refused))
    if failed:
        with atomic_write(directory / FAILURES_FILE) as temporary:
            temporary.write_text(json.dumps(dict(sorted(failed.items())), indent=4) + "\n", encoding="utf-8")
    else:
        (directory / FAILURES_FILE).unlink(missing_ok=True)
