"""A training set of the complexes in the box, for tests of training and evaluation."""

from pathlib import Path

from data_pipeline.training_sets.build import BuildOptions, build_store
from data_pipeline.training_sets.chains import ChainFilter
from data_pipeline.training_sets.record_builder import RecordBuilder
from data_pipeline.training_sets.store import FeatureStore

COMPLEXES = Path(__file__).parents[2] / "examples" / "complexes"
NAMES = tuple(path.stem for path in sorted(COMPLEXES.glob("*.cif")))


def store_of_complexes(directory: Path) -> FeatureStore:
    """Build it; every chain is a cluster of its own, for the search program would take seconds to find that."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "clusters").write_text("".join(f"{name}_{chain}\n" for name in NAMES for chain in "AB"))
    output = directory / "store"
    options = BuildOptions(structures=COMPLEXES, output=output, clusters=directory / "clusters", workers=1)
    report = build_store(options, RecordBuilder(filter=ChainFilter(), assemblies=True))
    assert (report.refused, report.failed, report.skipped_assemblies) == ({}, {}, {})
    return FeatureStore.open(output)
