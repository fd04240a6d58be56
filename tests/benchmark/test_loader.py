"""The loader's benchmark reads the same chains from both sources and counts every example."""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.io.errors import InputError
from data_pipeline.training_sets.build import BuildOptions, build_store
from data_pipeline.training_sets.chains import ChainFilter
from data_pipeline.training_sets.examples import TrainingDataset
from data_pipeline.training_sets.record_builder import RecordBuilder
from data_pipeline.training_sets.source_files import AlignmentDirectory
from data_pipeline.training_sets.store import FeatureStore
from helixfold.benchmark.loader import SourceFiles, measure_loader
from helixfold.cli.main import main
from tests.data_pipeline.training_sets.memory_store import small_store
from tests.training.test_loader import CONFIG


@pytest.fixture(scope="module")
def sources(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A store of chains, one with an alignment, and of an assembly, and what it was made of."""
    directory = tmp_path_factory.mktemp("sources")
    structures, alignments = directory / "structures", directory / "alignments" / "3l4q_A"
    structures.mkdir()
    alignments.mkdir(parents=True)
    (structures / "3l4q.cif.gz").symlink_to(real_data / "core" / "3l4q.cif.gz")
    for name in ("10gs_A.cif.gz", "11as_A.cif.gz"):
        (structures / name).symlink_to(real_data / "train_mmcif" / name)
    for name in ("uniref90_hits.sto.gz", "bfd_uniref_hits.a3m.gz"):
        (alignments / name).symlink_to(real_data / "core" / f"3l4q_A__{name}")
    builder = RecordBuilder(filter=ChainFilter(), alignments=AlignmentDirectory(alignments.parent), assemblies=True)
    build_store(BuildOptions(structures=structures, output=directory / "store"), builder)
    return directory / "store", structures, alignments.parent


def test_files_give_the_features_and_labels_of_the_store(sources: tuple[Path, Path, Path]) -> None:
    store = FeatureStore.open(sources[0])
    files = SourceFiles(store.entries, *sources[1:])
    assert len(store.entries) >= 3
    for entry in store.entries:
        for ours, theirs in zip(files.load(entry.name), store.load(entry.name), strict=True):
            for field in fields(ours):
                np.testing.assert_array_equal(getattr(ours, field.name), getattr(theirs, field.name), field.name)
    with pytest.raises(InputError, match="chain '9xyz_A' has no structure file"):
        files.load("9xyz_A")
    with pytest.raises(InputError, match="has no chain '3l4q_Z'"):
        files.load("3l4q_Z")


def test_a_table_of_rates_is_printed(sources: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    store, structures, alignments = map(str, sources)
    arguments = ["--store", store, "--structures", structures, "--alignments", alignments]
    arguments += ["--workers", "0", "--steps", "1", "--repeats", "1", "--crop", "32"]
    assert main(["benchmark", "loader", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["store", "files", "assemblies"]
    assert lines[3].endswith("1.0x")


def test_every_stretch_is_timed_and_all_its_examples_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    dataset = TrainingDataset(store=small_store(), config=replace(CONFIG, max_passes=1), batch_size=2)
    found = measure_loader(dataset, workers=0, steps=3, repeats=2)
    assert found == (6.0, 6.0)
