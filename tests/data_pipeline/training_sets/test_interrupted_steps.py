"""A feature store whose building is killed before or after any change of a file is that of an unbroken run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from data_pipeline.training_sets import clustering
from data_pipeline.training_sets.store import FeatureStore
from helixfold.cli.main import main
from tests.data_pipeline.training_sets.training_files import write_training_files
from tests.support.interruptions import check_interruptions, check_kills

pytestmark = pytest.mark.integration


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Callable[[], int]]:
    monkeypatch.setattr(clustering, "find_mmseqs", lambda: None)
    structures, alignments = write_training_files(tmp_path, 2)
    words = ["features", "--structures", str(structures), "--alignments", str(alignments), "--workers", "1"]
    return lambda *options: lambda: main([*words, *options, "--output", str(tmp_path / "store")])


def of_store(store: Path) -> object:
    """Every record of a store, by its chain, and the other files as they are."""
    assert not (store / "work").exists()
    opened = FeatureStore.open(store)
    records = {entry.name: repr(opened.load(entry.name)) for entry in opened.entries}
    files = {str(path.relative_to(store)): path for path in store.rglob("*") if path.is_file() and path.name != ".lock"}
    return records | {name: path.read_bytes() for name, path in files.items() if path.suffix != ".lmdb"}


def test_a_store_survives_a_kill_at_every_step(build: Callable[..., Callable[[], int]], tmp_path: Path) -> None:
    assert check_kills(tmp_path / "store", build("--hold-out", "0.5"), of_store) > 10


@pytest.mark.long
def test_ctrl_c_at_every_step_leaves_no_temporary_file(build: Callable[..., Callable[[], int]], tmp_path: Path) -> None:
    check_interruptions(tmp_path / "store", build(), of_store, limit=20)


def test_features_of_targets_survive_a_kill_at_every_step(tmp_path: Path) -> None:
    (tmp_path / "two.fasta").write_text(">one\nMKTAYIAK\n>two\nMKTAYIAK\n")
    (tmp_path / "database.fasta").write_text(">relative\nMKTAYLAK\n")
    words = ["features", str(tmp_path / "two.fasta"), "--database", str(tmp_path / "database.fasta")]

    def run() -> int:
        return main([*words, "--output", str(tmp_path / "out")])

    def contents(output: Path) -> object:
        return {
            str(path.relative_to(output)): path.read_bytes()
            for path in output.rglob("*")
            if path.is_file() and path.name != ".helixfold.lock"
        }

    assert check_kills(tmp_path / "out", run, contents) > 8
