"""A training set is built whole, in parts, after failures and again, and the store is always the same."""

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.features.msa import single_sequence
from data_pipeline.io.errors import InputError
from data_pipeline.training_sets import clustering
from data_pipeline.training_sets.build import BuildOptions, BuildReport, build_store, shard_of
from data_pipeline.training_sets.chains import ChainFilter
from data_pipeline.training_sets.clustering import join_shards
from data_pipeline.training_sets.database import Database
from data_pipeline.training_sets.record_builder import RecordBuilder
from data_pipeline.training_sets.source_files import AlignmentDirectory, read_duplicates
from data_pipeline.training_sets.store import FeatureStore
from tests.data_pipeline.training_sets.training_files import sequence, write_a3m, write_pdb, write_training_files

FILTER = ChainFilter()


@pytest.fixture(autouse=True)
def _without_mmseqs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clustering, "find_mmseqs", lambda: None)


def build(root: Path, output: str = "store", builder: RecordBuilder | None = None, **options: object) -> BuildReport:
    builder = builder or RecordBuilder(filter=FILTER, alignments=AlignmentDirectory(root / "alignments"))
    return build_store(BuildOptions(structures=root / "structures", output=root / output, **options), builder)


def files(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def test_every_chain_is_stored_with_its_alignments_merged(tmp_path: Path) -> None:
    write_training_files(tmp_path)
    report = build(tmp_path)
    assert (report.chains, report.made, report.refused, report.failed) == (6, 6, {}, {})
    assert any("3 of 6 chains have no alignment" in note for note in report.notes)
    assert sorted(os.listdir(tmp_path / "store")) == [".lock", "features.lmdb", "index.tsv", "refused.tsv"]
    store = FeatureStore.open(tmp_path / "store")
    assert [entry.name for entry in store.entries] == ["0abc_A", "0abc_B", "1abc_A", "1abc_B", "2abc_A", "2abc_B"]
    first = store.entries[0]
    assert (first.length, str(first.release_date), first.resolution) == (40, "2018-04-30", 2.1)
    assert [entry.msa_rows for entry in store.entries[:2]] == [3, 1]
    features, labels = store.load("0abc_A")
    assert features.sequence == sequence(0)
    # The target, then UniRef90's rows, then MGnify's; the row with insertions equals the target and is left out.
    assert [int((row != 21).sum()) for row in features.msa] == [40, 20, 20]
    assert np.flatnonzero(features.msa[1] == 21).tolist() == list(range(20))
    assert labels.all_atom_mask.sum() == 4 * 40
    assert (labels.resolution, labels.is_distillation) == (2.1, False)
    assert len(store.load("0abc_B")[0].msa) == 1


def test_nothing_is_made_twice(tmp_path: Path) -> None:
    write_training_files(tmp_path)
    build(tmp_path)
    before = files(tmp_path / "store")
    assert build(tmp_path).made == 0
    assert files(tmp_path / "store") == before


def test_only_what_changed_is_made_and_the_store_is_as_if_built_at_once(tmp_path: Path) -> None:
    write_training_files(tmp_path)
    build(tmp_path)
    write_a3m(tmp_path / "alignments/1abc_A/a3m/bfd_uniclust_hits.a3m", sequence(2), "-" * 10 + sequence(2)[10:])
    write_pdb(tmp_path / "structures/ab/9abc.pdb", "9abc", {"C": sequence(9)})
    (tmp_path / "structures/2abc.pdb").unlink()
    report = build(tmp_path)
    assert (report.chains, report.made) == (5, 2)
    build(tmp_path, "fresh")
    assert files(tmp_path / "store") == files(tmp_path / "fresh")
    assert len(FeatureStore.open(tmp_path / "store").load("1abc_A")[0].msa) == 4


def test_several_processes_give_the_same_bytes(tmp_path: Path) -> None:
    write_training_files(tmp_path)
    build(tmp_path, "one")
    assert build(tmp_path, "two", workers=2).made == 6
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_one_failure_does_not_stop_the_rest_and_is_recorded(tmp_path: Path) -> None:
    write_training_files(tmp_path)
    (tmp_path / "structures/ab").mkdir()
    (tmp_path / "structures/ab/3abc.cif").write_text("data_3abc\nloop_\n")
    write_a3m(tmp_path / "alignments/1abc_A/a3m/uniref90_hits.a3m", sequence(77), sequence(78))
    report = build(tmp_path)
    assert report.chains == 5
    assert sorted(report.failed) == ["1abc_A", "ab/3abc.cif"]
    assert json.loads((tmp_path / "store/failures.json").read_text()) == report.failed
    assert "uniref90_hits.a3m: it was made for another sequence" in report.failed["1abc_A"]
    write_training_files(tmp_path)
    (tmp_path / "structures/ab/3abc.cif").unlink()
    assert build(tmp_path).made == 1
    build(tmp_path, "fresh")
    assert files(tmp_path / "store") == files(tmp_path / "fresh")


def test_chains_that_are_left_out_have_a_reason(tmp_path: Path) -> None:
    write_training_files(tmp_path, 1)
    write_pdb(tmp_path / "structures/other/0abc.pdb", "0abc", {"A": sequence(0)})
    write_pdb(tmp_path / "structures/ab/8abc.pdb", "8abc", {"A": "A" * 40})
    directory = AlignmentDirectory(tmp_path / "alignments")
    report = build(tmp_path, builder=RecordBuilder(filter=FILTER, alignments=directory, require_alignments=True))
    assert (report.chains, report.failed) == (1, {})
    assert (tmp_path / "store/refused.tsv").read_text().splitlines() == [
        "name\treason",
        "0abc_A of other/0abc.pdb\t0abc.pdb has a chain of this name already",
        "0abc_B\tthere is no alignment, and --require-alignments was given",
        "8abc_A\tA makes up 100% of its sequence, and 80% are allowed",
    ]


def test_duplicates_share_an_alignment(tmp_path: Path) -> None:
    write_training_files(tmp_path, 1)
    write_pdb(tmp_path / "structures/7abc.pdb", "7abc", {"Z": sequence(0)})
    (tmp_path / "duplicates.txt").write_text("0abc_A 7abc_Z\n")
    directory = AlignmentDirectory(tmp_path / "alignments", read_duplicates(tmp_path / "duplicates.txt"))
    build(tmp_path, builder=RecordBuilder(filter=FILTER, alignments=directory))
    store = FeatureStore.open(tmp_path / "store")
    assert np.array_equal(store.load("7abc_Z")[0].msa, store.load("0abc_A")[0].msa)


def test_predicted_structures_have_their_confidence(tmp_path: Path) -> None:
    write_training_files(tmp_path, 1)
    build(tmp_path, builder=RecordBuilder(filter=FILTER, is_distillation=True))
    store = FeatureStore.open(tmp_path / "store")
    labels = store.labels("0abc_A")
    assert store.entries[0].is_distillation
    assert labels.is_distillation
    assert labels.confidence == pytest.approx(np.full(40, 0.8))


def test_given_clusters_are_taken(tmp_path: Path) -> None:
    write_training_files(tmp_path)
    (tmp_path / "clusters.txt").write_text("0ABC_A 1ABC_B\n2ABC_A\n")
    report = build(tmp_path, clusters=tmp_path / "clusters.txt")
    clusters = {entry.name: entry.cluster for entry in FeatureStore.open(tmp_path / "store").entries}
    assert clusters["0abc_A"] == clusters["1abc_B"] == "0ABC_A"
    assert clusters["0abc_B"] == "0abc_B"
    assert "3 of 6 chains are not in the clusters file; each gets its own cluster" in report.notes


def test_shards_have_the_same_records_whatever_their_count(tmp_path: Path) -> None:
    write_training_files(tmp_path, 5)
    build(tmp_path)
    whole = FeatureStore.open(tmp_path / "store")
    for shard in range(3):
        build(tmp_path, "parts", shard=shard, shards=3)
    parts = FeatureStore.open(tmp_path / "parts")
    assert [replace(entry, cluster="") for entry in parts.entries] == [
        replace(entry, cluster="") for entry in whole.entries
    ]
    for entry in whole.entries:
        assert np.array_equal(whole.load(entry.name)[0].msa, parts.load(entry.name)[0].msa)
    joined, notes = join_shards(tmp_path / "parts")
    assert len(joined.entries) == 10
    assert "only chains of identical sequence share a cluster" in notes[0]
    (tmp_path / "clusters.txt").write_text(" ".join(entry.name for entry in whole.entries))
    joined, notes = join_shards(tmp_path / "parts", tmp_path / "clusters.txt")
    assert {entry.cluster for entry in joined.entries} == {"0abc_A"}
    assert notes == ()


def test_a_files_shard_depends_on_its_entry_alone() -> None:
    assert {shard_of(Path(f"{index:04d}.cif"), 4) for index in range(100)} == {0, 1, 2, 3}
    assert len({shard_of(Path(name), 97) for name in ("1abc.cif", "ab/1ABC.cif.gz", "1abc.pdb")}) == 1


def test_a_store_is_of_one_piece_or_of_shards(tmp_path: Path) -> None:
    write_training_files(tmp_path, 1)
    build(tmp_path, "whole")
    with pytest.raises(InputError, match="a store without shards"):
        build(tmp_path, "whole", shard=0, shards=2)
    build(tmp_path, "parts", shard=0, shards=2)
    with pytest.raises(InputError, match="it contains shards"):
        build(tmp_path, "parts")
    with pytest.raises(InputError, match="there are no shards"):
        join_shards(tmp_path / "whole")


@pytest.mark.parametrize("options", [{"shard": 2, "shards": 2}, {"shard": -1, "shards": 2}, {"workers": 0}])
def test_impossible_options_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"must be at least 1, got 0|a shard must be i/n"):
        BuildOptions(structures=Path("a"), output=Path("b"), **options)


def test_a_damaged_record_is_made_again(tmp_path: Path) -> None:
    write_training_files(tmp_path)
    build(tmp_path)
    before = files(tmp_path / "store")
    path = tmp_path / "store/features.lmdb"
    content = bytearray(path.read_bytes())
    start = content.index(b"hfchain1") + 600
    content[start : start + 8] = b"\xff" * 8
    copy = tmp_path / "damaged"
    copy.write_bytes(content)
    os.replace(copy, path)
    assert build(tmp_path).made == 1
    assert files(tmp_path / "store") == before


def test_a_database_that_is_cut_off_is_named(tmp_path: Path) -> None:
    write_training_files(tmp_path, 1)
    build(tmp_path)
    path = tmp_path / "store/features.lmdb"
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[:-4096])
    with pytest.raises(InputError, match=r"features\.lmdb: the file is truncated"):
        Database(path)
    with pytest.raises(InputError, match="truncated"):
        build(tmp_path)


def test_the_targets_own_row_comes_first_always(tmp_path: Path) -> None:
    write_training_files(tmp_path, 1)
    build(tmp_path)
    features = FeatureStore.open(tmp_path / "store").load("0abc_A")[0]
    own = single_sequence(features.sequence)
    assert len(own.letters) == 1
    assert np.array_equal(features.msa[0], features.aatype)
    assert not features.deletion_matrix[0].any()
