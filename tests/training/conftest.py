"""What tests of runs that are ended share: a training set, and what the runs come to that nothing happens to."""

from pathlib import Path

import pytest

from tests.training.chain_stores import write_chains
from tests.training.command_runs import Unbroken, run_unbroken
from tests.training.ranks import Ranks, train


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training set of six chains on disk."""
    return write_chains(tmp_path_factory.mktemp("training_set"))


@pytest.fixture(scope="session")
def unbroken(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Unbroken:
    with Ranks(1, tmp_path_factory.mktemp("first") / "out.txt", train, ["--help"]) as processes:
        assert processes.finish() == [0]  # from here on processes begin at once
    return run_unbroken(store, tmp_path_factory.mktemp("unbroken"))
