"""What alignments are worth to a network, and training sets in which fewer chains have one."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.training_sets.chain_record import encode_record
from data_pipeline.training_sets.index import write_index
from data_pipeline.training_sets.store import DATABASE_FILE, INDEX_FILE, FeatureStore, write_database
from tests.examples.small.scripts import small_script

alignment_gain, fewer = small_script("alignment_gain"), small_script("fewer_alignments")


@pytest.fixture
def aligned(store: Path, tmp_path: Path) -> FeatureStore:
    """The peptides with alignments of three rows."""
    peptides, records, entries = FeatureStore.open(store / "store"), [], []
    for entry in peptides.entries:
        features, labels = peptides.load(entry.name)
        row = features.msa[:1]
        deep = np.concatenate([row, np.roll(row, 1, axis=1), np.full_like(row, 3)])
        features = replace(features, msa=deep, deletion_matrix=np.zeros(deep.shape, features.deletion_matrix.dtype))
        records.append((entry.key, encode_record(entry.key, features, labels)))
        entries.append(replace(entry, msa_rows=3))
    records.sort()
    write_database(tmp_path / DATABASE_FILE, records, [len(content) for _, content in records])
    write_index(tmp_path / INDEX_FILE, entries)
    return FeatureStore.open(tmp_path)


def test_few_alignments_are_part_of_more_and_all_chains_stay(aligned: FeatureStore, tmp_path: Path) -> None:
    aside = {"hairpin_long_A"}
    two, four, all_of_them = (fewer.aligned_chains(aligned, count, aside) for count in (2, 4, 100))
    assert two < four < all_of_them
    assert (len(two), len(four), len(all_of_them)) == (2, 4, len(aligned.entries) - 1)
    assert not all_of_them & aside
    (tmp_path / "fewer").mkdir()
    fewer.copy_store(aligned, tmp_path / "fewer", two | aside)
    copy = FeatureStore.open(tmp_path / "fewer")
    assert [entry.name for entry in copy.entries] == [entry.name for entry in aligned.entries]
    for entry in copy.entries:
        (own, labels), (features, true) = copy.load(entry.name), aligned.load(entry.name)
        rows = 3 if entry.name in two | aside else 1
        assert entry.msa_rows == rows
        np.testing.assert_array_equal(own.msa, features.msa[:rows])
        np.testing.assert_array_equal(labels.all_atom_positions, true.all_atom_positions)


def test_shuffled_columns_keep_what_is_in_them_and_no_alignment_leaves_the_target(aligned: FeatureStore) -> None:
    name = aligned.entries[0].name
    whole, alone, shuffled = (
        alignment_gain.ChangedAlignments(aligned, kind).load(name)[0].msa
        for kind in (alignment_gain.WHOLE, alignment_gain.ALONE, alignment_gain.SHUFFLED)
    )
    assert (len(whole), len(alone)) == (3, 1)
    np.testing.assert_array_equal(alone[0], whole[0])
    np.testing.assert_array_equal(shuffled[0], whole[0])
    np.testing.assert_array_equal(np.sort(shuffled, axis=0), np.sort(whole, axis=0))
    assert (shuffled != whole).any()


def test_differences_are_paired_by_target_and_a_lower_loss_is_a_gain(tmp_path: Path) -> None:
    path = tmp_path / "gains.tsv"
    lines = ["run\texamples\ttarget\talignment\tlddt_ca\tdistogram"]
    for target, whole in (("a", 0.6), ("b", 0.4)):
        for kind, lddt, loss in (("whole", whole, 2.0), ("alone", whole - 0.1, 2.5), ("shuffled", whole - 0.05, 2.1)):
            lines.append(f"stage_1\t800\t{target}\t{kind}\t{lddt}\t{loss}")
    path.write_text("\n".join(lines) + "\n")
    (found,) = alignment_gain.read_gains(path)
    assert (found.run, found.examples) == ("stage_1", 800)
    for estimate, value in ((found.gain, 0.1), (found.shuffled_gain, 0.05), (found.distogram_gain, 0.5)):
        assert (estimate.value, estimate.low, estimate.high) == pytest.approx((value, value, value))
    assert (found.alone.value, found.alone.low, found.alone.high) == pytest.approx((0.4, 0.3, 0.5))
