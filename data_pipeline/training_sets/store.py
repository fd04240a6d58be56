"""Read and write feature stores, which contain the training examples (features and labels) of many chains.

A store is a directory with `index.tsv`, the table of its chains (`training_sets.index`), and `features.lmdb`, a
database with one record per chain (`training_sets.chain_record`); or a directory of shards (`shard-0003-of-0010`), each
of which is such a directory. Records in the database have the keys in the index, not the names of chains. `INDEX_FILE`
and `DATABASE_FILE` are the names of these files. `SHARD_CLUSTERS_FILE` has the clusters of all shards together, and is
in their common directory.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from data_pipeline.features.labels import ChainLabels
from data_pipeline.features.schema import Features
from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.extras import require
from data_pipeline.io.files import atomic_write, os_errors_as_input_errors
from data_pipeline.training_sets.assembly_record import (
    AssemblyEntry,
    AssemblyRecord,
    LabelledComplex,
    labelled_complex,
    read_assemblies,
)
from data_pipeline.training_sets.chain_record import ChainRecord
from data_pipeline.training_sets.cluster_files import read_clusters
from data_pipeline.training_sets.database import Database
from data_pipeline.training_sets.index import IndexEntry, read_index

INDEX_FILE, DATABASE_FILE = "index.tsv", "features.lmdb"
SHARD_CLUSTERS_FILE = "clusters.tsv"  # in a directory of shards; clusters of all shards together

_SHARD = re.compile(r"shard-(\d{4})-of-(\d{4})")
_ROOM_PER_RECORD = 8192  # for partially filled pages of 4096 bytes, and the tree above them
_TRANSACTION_BYTES = 64 * 2**20


class FeatureStore:
    """Reader of the training examples in a store by chain name; `entries` is its index, sorted by name.

    `assemblies` are the assemblies of its chains, if the store was built with them. The constructor takes the index
    into `databases` of each chain as `shards`, and of each assembly in `assemblies`.

    Database files are opened on first use, so a store may be pickled and processes may be forked.
    """

    def __init__(
        self,
        entries: tuple[IndexEntry, ...],
        databases: tuple[Path, ...],
        shards: dict[str, int],
        assemblies: Mapping[str, tuple[AssemblyEntry, int]],
    ) -> None:
        self.entries = entries
        self.assemblies = tuple(entry for entry, _ in assemblies.values())
        self._assemblies = dict(assemblies)  # with the index into `databases`
        self._databases = databases
        self._shards = shards  # index into `databases` of each chain
        self._keys = {entry.name: entry.key for entry in entries}
        self._open: dict[int, Database] = {}

    @classmethod
    def open(cls, path: str | PathLike[str]) -> "FeatureStore":
        """Open a store or all its shards; raise `InputError` if the directory is not a complete store.

        Joined clusters of shards replace the clusters in their indices.
        """
        directories = store_directories(Path(path))
        entries: list[IndexEntry] = []
        shards: dict[str, int] = {}
        assemblies: dict[str, tuple[AssemblyEntry, int]] = {}
        for index, directory in enumerate(directories):
            assemblies |= {entry.name: (entry, index) for entry in read_assemblies(directory)}
            for entry in read_index(directory / INDEX_FILE):
                first = shards.setdefault(entry.name, index)
                if first != index:
                    raise InputError.at(
                        directory / INDEX_FILE,
                        f"'{entry.name}' is also in {directories[first].name}; build the shards from one directory",
                    )
                entries.append(entry)
        joined = Path(path) / SHARD_CLUSTERS_FILE
        if joined.is_file():
            clusters = read_clusters(joined)
            entries = [replace(entry, cluster=clusters.get(entry.name, entry.cluster)) for entry in entries]
        entries.sort(key=lambda entry: entry.name)
        for directory in directories:
            Database(directory / DATABASE_FILE)  # to detect damage before anything is written
        return cls(tuple(entries), tuple(directory / DATABASE_FILE for directory in directories), shards, assemblies)

    def load(self, name: str) -> tuple[Features, ChainLabels]:
        """Return the features and labels of one chain; raise `InputError` if its record is missing or damaged."""
        record = self._record(name)
        return record.features(), record.labels()

    def load_complex(self, name: str) -> LabelledComplex:
        """Return the features and labels of one assembly; raise `InputError` if a record is missing or damaged."""
        if name not in self._assemblies:
            raise InputError(f"there is no assembly '{printable(name)}' in {self._databases[0].parent}")
        entry, index = self._assemblies[name]
        content = self._database(index).get(entry.key)
        problem = "run `helixfold features` again to finish the store"
        if content is None:
            raise InputError.at(self._databases[index], f"assembly '{name}' is not in it; {problem}")
        try:
            record = AssemblyRecord.unpack(bytes(content))
        except ValueError as error:
            raise InputError.at(self._databases[index], f"assembly '{name}' is damaged; {problem}") from error
        return labelled_complex(record, {chain: self.load(chain) for chain in dict.fromkeys(entry.chains)})

    def labels(self, name: str) -> ChainLabels:
        """Return only the labels of one chain, without decoding its MSA."""
        return self._record(name).labels()

    def sequence(self, name: str) -> str:
        """Return only the sequence of one chain."""
        return self._record(name).head.sequence

    def _record(self, name: str) -> ChainRecord:
        """Return the record of the chain `name` from its database file."""
        if name not in self._keys:
            raise InputError(f"there is no chain '{printable(name)}' in {self._databases[0].parent}")
        index = self._shards[name]
        path = self._databases[index]
        content = self._database(index).get(self._keys[name])
        if content is None:
            raise InputError.at(
                path, f"'{name}' of the index is not in it; run `helixfold features` again to finish the store"
            )
        record = ChainRecord(content, f"{path}, chain '{name}'")
        if record.head.name != name:
            raise InputError.at(path, f"'{name}' is filed as '{record.head.name}'; build it again")
        return record

    def _database(self, index: int) -> Database:
        """Return the database of a shard, which is opened on first use."""
        if index not in self._open:
            self._open[index] = Database(self._databases[index])
        return self._open[index]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}


def store_directories(path: Path) -> tuple[Path, ...]:
    """Return the directory of a store, or the directories of all its shards in order.

    Raise `InputError` if it is not a store, or if a shard is missing or unfinished.
    """
    if (path / INDEX_FILE).is_file():
        return (path,)
    with os_errors_as_input_errors(path, "cannot be read as a feature store"):
        names = sorted(entry.name for entry in path.iterdir() if entry.is_dir())
    shard_matches = [match for match in map(_SHARD.fullmatch, names) if match is not None]
    counts = {int(match[2]) for match in shard_matches}
    if not shard_matches:
        raise InputError.at(path, "there is no index.tsv; is this a completely built feature store?")
    if len(counts) > 1:
        raise InputError.at(path, "there are shards of several runs with different counts; keep the shards of one run")
    count = counts.pop()
    finished = {int(match[1]) for match in shard_matches if (path / match[0] / INDEX_FILE).is_file()}
    if missing := [str(index) for index in range(count) if index not in finished]:
        raise InputError.at(path, f"of {count} shards these are missing or unfinished: {', '.join(missing[:20])}")
    return tuple(path / shard_name(index, count) for index in range(count))


def has_shards(path: Path) -> bool:
    """Return whether a directory contains shards, finished or not; False if the directory does not exist."""
    with os_errors_as_input_errors(path, "cannot be read"):
        return path.is_dir() and any(_SHARD.fullmatch(name) for name in os.listdir(path))


def shard_name(index: int, count: int) -> str:
    """Return the name of a shard's directory; shards are numbered from 0."""
    return f"shard-{index:04d}-of-{count:04d}"


def write_database(path: Path, records: Iterable[tuple[str, bytes]], sizes: Iterable[int]) -> None:
    """Write records (hexadecimal key, content), in ascending order of keys, as a new database.

    `sizes` are the sizes of the records in bytes, because LMDB must know the size of the file in advance. The database
    replaces an earlier one when it is complete. Equal records give equal bytes, because LMDB writes pages in order, and
    transactions end at fixed sizes.
    """
    lmdb = _lmdb()
    map_bytes = _TRANSACTION_BYTES + sum(size + _ROOM_PER_RECORD for size in sizes)
    try:
        with atomic_write(path) as temporary:
            temporary.unlink()
            with lmdb.open(
                str(temporary), subdir=False, map_size=map_bytes, lock=False, meminit=True, sync=False
            ) as environment:
                transaction = environment.begin(write=True)
                written = 0
                for key, content in records:
                    transaction.put(bytes.fromhex(key), content, append=True)
                    written += len(content)
                    if written >= _TRANSACTION_BYTES:
                        transaction.commit()
                        transaction, written = environment.begin(write=True), 0
                transaction.commit()
                environment.sync(True)
    except lmdb.Error as error:
        raise InputError.at(path, f"cannot be written: {printable(str(error))}") from error


def _lmdb() -> Any:
    """Import LMDB, which only training needs and which an extra installs."""
    require("train", "lmdb", action="a training set")
    import lmdb  # noqa: PLC0415

    return lmdb
