"""A store gives back what was written, to any process, and a damaged one is an InputError."""

import multiprocessing
import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from data_pipeline.io.errors import InputError
from data_pipeline.training_sets import store as stores
from data_pipeline.training_sets.build_cache import content_key
from data_pipeline.training_sets.chain_record import encode_record
from data_pipeline.training_sets.cluster_files import write_clusters
from data_pipeline.training_sets.database import Database
from data_pipeline.training_sets.index import write_index
from data_pipeline.training_sets.store import DATABASE_FILE, FeatureStore, shard_name, write_database
from tests.data_pipeline.training_sets.stored import assert_same, entry, example

NAMES = ("1abc_A", "2xyz_B", "odd 'name' ü")


def key_of(name: str) -> str:
    return content_key(name)


def write_store(directory: Path, names: tuple[str, ...] = NAMES, residues: int = 30) -> None:
    records = {key_of(name): encode_record(key_of(name), *example(name, residues)) for name in names}
    write_database(directory / "features.lmdb", sorted(records.items()), map(len, records.values()))
    write_index(directory / "index.tsv", [entry(name, key_of(name)) for name in sorted(names)])


def test_every_chain_comes_back(tmp_path: Path) -> None:
    write_store(tmp_path)
    store = FeatureStore.open(tmp_path)
    assert [chain.name for chain in store.entries] == sorted(NAMES)
    for name in NAMES:
        features, labels = example(name)
        assert_same(store.load(name), (features, labels))
        assert_same((features, store.labels(name)), (features, labels))
        assert store.sequence(name) == features.sequence
    with pytest.raises(InputError, match="there is no chain '3abc_A'"):
        store.load("3abc_A")


def test_the_same_records_give_the_same_small_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "_TRANSACTION_BYTES", 50_000)
    names = tuple(f"{index:04d}_A" for index in range(60))
    write_store(tmp_path / "a", names, residues=100)
    write_store(tmp_path / "b", tuple(reversed(names)), residues=100)
    for file in ("features.lmdb", "index.tsv"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    size = sum(len(encode_record(key_of(name), *example(name, 100))) for name in names)
    status = (tmp_path / "a/features.lmdb").stat()
    assert size < status.st_size < 1.3 * size
    assert status.st_blocks * 512 >= status.st_size  # not sparse: copies take no more
    assert sorted(os.listdir(tmp_path / "a")) == ["features.lmdb", "index.tsv"]


def test_a_store_is_sent_to_processes_and_survives_a_fork(tmp_path: Path) -> None:
    write_store(tmp_path)
    store = FeatureStore.open(tmp_path)
    assert_same(store.load("1abc_A"), example("1abc_A"))  # open before it is sent
    assert_same(pickle.loads(pickle.dumps(store)).load("1abc_A"), example("1abc_A"))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert_same(pool.apply(store.load, ("2xyz_B",)), example("2xyz_B"))
    child = os.fork()
    if child == 0:
        assert_same(store.load("2xyz_B"), example("2xyz_B"))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert_same(store.load("1abc_A"), example("1abc_A"))


def test_a_store_that_is_replaced_is_read_anew(tmp_path: Path) -> None:
    write_store(tmp_path)
    first = FeatureStore.open(tmp_path)
    assert first.sequence("1abc_A")
    write_store(tmp_path, residues=40)
    second = FeatureStore.open(tmp_path)
    assert len(second.sequence("1abc_A")) == 40
    assert len(first.sequence("1abc_A")) == 30  # what it opened is still there


def write_shards(directory: Path) -> None:
    write_store(directory / shard_name(0, 2), NAMES[:2])
    write_store(directory / shard_name(1, 2), NAMES[2:])


def test_shards_are_read_as_one_store(tmp_path: Path) -> None:
    write_shards(tmp_path)
    store = FeatureStore.open(tmp_path)
    assert [chain.name for chain in store.entries] == sorted(NAMES)
    for name in NAMES:
        assert_same(store.load(name), example(name))
    write_clusters(tmp_path / "clusters.tsv", {"1abc_A": "one", NAMES[2]: "one"})
    assert [chain.cluster for chain in FeatureStore.open(tmp_path).entries] == ["one", "2xyz_B", "one"]


def test_shards_that_are_not_one_whole_are_refused(tmp_path: Path) -> None:
    write_shards(tmp_path)
    (tmp_path / shard_name(1, 2) / "index.tsv").unlink()
    with pytest.raises(InputError, match=r"of 2 shards these are missing or unfinished: 1$"):
        FeatureStore.open(tmp_path)
    write_store(tmp_path / shard_name(1, 2), NAMES[:1])
    with pytest.raises(InputError, match="'1abc_A' is also in shard-0000-of-0002"):
        FeatureStore.open(tmp_path)
    write_store(tmp_path / shard_name(1, 3))
    with pytest.raises(InputError, match="several runs with different counts"):
        FeatureStore.open(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="is this a completely built feature store"):
        FeatureStore.open(tmp_path / "empty")


def test_a_file_that_is_cut_off_is_refused_before_it_is_read(tmp_path: Path) -> None:
    write_store(tmp_path)
    path = tmp_path / "features.lmdb"
    content = path.read_bytes()
    for size in (len(content) - 1, len(content) // 2, 8192, 4096, 100, 0):
        path.write_bytes(content[:size])
        with pytest.raises(InputError, match=r"features\.lmdb"):
            FeatureStore.open(tmp_path)
    path.unlink()
    with pytest.raises(InputError, match="cannot be read"):
        FeatureStore.open(tmp_path)
    os.mkfifo(path)
    with pytest.raises(InputError, match=r"features\.lmdb: cannot be read: it is a pipe"):
        FeatureStore.open(tmp_path)


def test_damage_within_records_is_found(tmp_path: Path) -> None:
    write_store(tmp_path)
    path = tmp_path / "features.lmdb"
    content = bytearray(path.read_bytes())
    place = content.index(b"hfchain1") + 2000
    content[place] ^= 1
    path.write_bytes(content)
    problems = []
    for name in NAMES:
        try:
            assert_same(FeatureStore.open(tmp_path).load(name), example(name))
        except InputError as error:
            problems.append(str(error))
    assert len(problems) == 1
    assert "features.lmdb, chain '" in problems[0]


def test_an_index_of_another_database_is_noticed(tmp_path: Path) -> None:
    write_store(tmp_path)
    first = entry("1abc_A", "f" * 32)
    write_index(tmp_path / "index.tsv", [first])
    with pytest.raises(InputError, match="'1abc_A' of the index is not in it; run `helixfold features` again"):
        FeatureStore.open(tmp_path).load("1abc_A")
    write_index(tmp_path / "index.tsv", [replace(first, key=key_of("2xyz_B"))])
    with pytest.raises(InputError, match="'1abc_A' is filed as '2xyz_B'"):
        FeatureStore.open(tmp_path).load("1abc_A")


def test_an_empty_store_is_a_store(tmp_path: Path) -> None:
    write_store(tmp_path, ())
    assert FeatureStore.open(tmp_path).entries == ()
    assert Database(tmp_path / DATABASE_FILE).keys() == []
