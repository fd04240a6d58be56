"""The small model's training set: real targets keep their alignments, and no chain held out has a relative in it."""

import gzip
import shutil
from pathlib import Path

import pytest

from data_pipeline.datasets.build import BuildOptions, build_store
from data_pipeline.datasets.chains import ChainFilter
from data_pipeline.datasets.record_builder import RecordBuilder
from data_pipeline.datasets.source_files import AlignmentDirectory
from data_pipeline.datasets.store import FeatureStore
from data_pipeline.parse.structures import read_structure
from tests.data_pipeline.datasets.memory_store import entry
from tests.examples.small.scripts import small_script

PEPTIDES = Path(__file__).parents[3] / "examples" / "structures"


def sequence_of(path: Path) -> str:
    return read_structure(path).chains[0].sequence


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """One target with an alignment, which is also among the clustered chains, and one chain more."""
    data = tmp_path / "data"
    for folder in ("train_mmcif", "pdb", "msa"):
        (data / folder).mkdir(parents=True)
    for name in ("hairpin_short", "helix_long"):
        shutil.copy(PEPTIDES / f"{name}.pdb", data / "train_mmcif")
    shutil.copy(PEPTIDES / "hairpin_short.pdb", data / "pdb")
    sequence = sequence_of(PEPTIDES / "hairpin_short.pdb")
    with gzip.open(data / "msa" / "one.a3m.gz", "wt") as file:
        file.write(f">hairpin\n{sequence}\n>other\n{'A' * len(sequence)}\n")
    header = "target\tstructure\tstructure_chain\tmsas"
    row = "hairpin\tpdb/hairpin_short.pdb\tA\tmsa/one.a3m.gz"
    (data / "triples.tsv").write_text(f"{header}\n{row}\n")
    return data


def test_targets_keep_their_alignments_and_chains_come_once(data: Path, tmp_path: Path) -> None:
    collect = small_script("collect").collect
    for _ in range(2):
        assert collect(data, tmp_path / "out") == (1, 2)
    (tmp_path / "clusters").write_text("hairpin_short_A\nhelix_long_A\n")
    report = build_store(
        BuildOptions(
            structures=tmp_path / "out" / "structures", output=tmp_path / "store", clusters=tmp_path / "clusters"
        ),
        RecordBuilder(filter=ChainFilter(), alignments=AlignmentDirectory(tmp_path / "out" / "alignments")),
    )
    assert (report.chains, report.failed) == (2, {})
    depths = {entry.name: entry.msa_rows for entry in FeatureStore.open(tmp_path / "store").entries}
    assert depths == {"hairpin_short_A": 2, "helix_long_A": 1}


def test_a_tenth_of_the_clusters_is_held_out_whole_and_none_with_an_alignment() -> None:
    clusters = [f"cluster{number}" for number in range(1000)]
    alone = tuple(entry(f"{name}_{copy}", cluster=name) for name in clusters for copy in "ab")
    held_out = small_script("hold_out").held_out
    names = held_out(alone)
    assert 70 < len({name[:-2] for name in names}) < 130
    assert len(names) == 2 * len({name[:-2] for name in names})
    first = names[0]
    deep = tuple(entry(each.name, cluster=each.cluster, msa_rows=9 if each.name == first else 1) for each in alone)
    assert held_out(deep) == [name for name in names if name[:-2] != first[:-2]]
