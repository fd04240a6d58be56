"""A training set that takes no time to make."""

from pathlib import Path

import pytest

from data_pipeline.training_sets.build import BuildOptions, build_store
from data_pipeline.training_sets.chains import ChainFilter
from data_pipeline.training_sets.record_builder import RecordBuilder

PEPTIDES = sorted((Path(__file__).parents[3] / "examples" / "structures").glob("*.pdb"))


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The peptides as a training set, one of them twice in one cluster, and two held out."""
    directory = tmp_path_factory.mktemp("small")
    structures = directory / "structures"
    structures.mkdir()
    for path in PEPTIDES:
        (structures / path.name).symlink_to(path)
    (structures / "twin.pdb").symlink_to(next(path for path in PEPTIDES if path.stem == "meander"))
    others = (path.stem for path in PEPTIDES if path.stem != "meander")
    (directory / "clusters").write_text("meander_A twin_A\n" + "".join(f"{name}_A\n" for name in others))
    report = build_store(
        BuildOptions(structures=structures, output=directory / "store", clusters=directory / "clusters"),
        RecordBuilder(filter=ChainFilter()),
    )
    assert (report.refused, report.failed) == ({}, {})
    (directory / "held_out.txt").write_text("hairpin_long_A\nhelix_long_A\n")
    return directory
