"""What tests of runs that are ended share: a training set, and what the runs come to that nothing happens to."""

from pathlib import Path

import pytest

from data_pipeline.datasets.build_cache import content_key
from data_pipeline.datasets.chain_record import encode_record
from data_pipeline.datasets.index import write_index
from data_pipeline.datasets.store import write_database
from tests.data_pipeline.datasets.stored import entry, example
from tests.training.ended import Unbroken
from tests.training.kills import run_unbroken
from tests.training.ranks import Ranks, train


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training set of six chains on disk."""
    path = tmp_path_factory.mktemp("training_set")
    chains = {f"{number}abc_A": example(f"{number}abc_A", residues=20 + number, seed=number) for number in range(6)}
    records = {name: encode_record(content_key(name), *chain) for name, chain in chains.items()}
    database = sorted((content_key(name), record) for name, record in records.items())
    write_database(path / "features.lmdb", database, [len(record) for _, record in database])
    write_index(path / "index.tsv", [entry(name, content_key(name), length=20 + i) for i, name in enumerate(chains)])
    return path


@pytest.fixture(scope="session")
def unbroken(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Unbroken:
    with Ranks(1, tmp_path_factory.mktemp("first") / "out.txt", train, ["--help"]) as processes:
        assert processes.finish() == [0]  # from here on processes begin at once
    return run_unbroken(store, tmp_path_factory.mktemp("unbroken"))
