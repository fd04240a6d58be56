"""Clusters of similar chains by MMseqs2 itself, and what happens without it."""

from pathlib import Path

import numpy as np
import pytest

from data_pipeline.io.errors import InputError, SearchError
from data_pipeline.residues import RESTYPES
from data_pipeline.search.mmseqs_program import find_mmseqs
from data_pipeline.training_sets import clustering
from data_pipeline.training_sets.build_cache import BuildCache
from data_pipeline.training_sets.clustering import cluster_chains, cluster_shard
from tests.data_pipeline.training_sets.training_files import sequence


def relatives(seed: int, count: int, mutated: float) -> list[str]:
    """Sequences that differ from the first of them in a fraction of their residues."""
    rng = np.random.default_rng(seed)
    first = sequence(seed, 120)
    change = rng.random((count - 1, 120)) < mutated
    letters = rng.choice(list(RESTYPES), (count - 1, 120))
    return [first, *("".join(row) for row in np.where(change, letters, list(first)))]


SEQUENCES = {
    f"{family}abc_{chain}": letters
    for family in range(3)
    for chain, letters in zip("ABC", relatives(family, 3, 0.2), strict=True)
}


@pytest.mark.integration
@pytest.mark.skipif(find_mmseqs() is None, reason="needs mmseqs2 (mmseqs)")
def test_similar_chains_share_a_cluster_and_it_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = cluster_chains(SEQUENCES, None, BuildCache(tmp_path))
    assert found.notes == ()
    by_family = [{found.clusters[f"{family}abc_{chain}"] for chain in "ABC"} for family in range(3)]
    assert [len(clusters) for clusters in by_family] == [1, 1, 1]
    assert len(set.union(*by_family)) == 3
    monkeypatch.setattr(clustering, "cluster_sequences", lambda *_, **__: pytest.fail("clustered twice"))
    assert cluster_chains(SEQUENCES, None, BuildCache(tmp_path)) == found
    for key in found.cache_keys:
        BuildCache(tmp_path).put(key, b"damaged")
    monkeypatch.setattr(clustering, "cluster_sequences", lambda sequences, **_: dict.fromkeys(sequences, "one"))
    assert set(cluster_chains(SEQUENCES, None, BuildCache(tmp_path)).clusters.values()) == {"one"}
    fewer = dict(list(SEQUENCES.items())[:2])
    assert cluster_chains(fewer, None, BuildCache(tmp_path)).clusters == dict.fromkeys(fewer, "one")


def test_without_the_program_identical_chains_share_a_cluster_and_this_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clustering, "find_mmseqs", lambda: None)
    found = cluster_chains({**SEQUENCES, "9abc_Z": SEQUENCES["0abc_A"]}, None, BuildCache(tmp_path))
    assert found.clusters["9abc_Z"] == found.clusters["0abc_A"]
    assert len(set(found.clusters.values())) == 9
    assert found.notes == (
        "only chains of identical sequence share a cluster; install MMseqs2 (pip install 'helixfold[mmseqs]') or pass "
        "--clusters FILE for clusters of similar chains",
    )


def test_shards_never_cluster_by_similarity() -> None:
    assert len(set(cluster_shard(SEQUENCES, None).clusters.values())) == 9
    assert "--join-shards" in cluster_shard(SEQUENCES, None).notes[0]


def test_a_program_that_fails_is_an_input_error_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> dict[str, str]:
        raise SearchError("mmseqs ended with 1")

    monkeypatch.setattr(clustering, "find_mmseqs", lambda: Path("mmseqs"))
    monkeypatch.setattr(clustering, "cluster_sequences", fails)
    with pytest.raises(InputError, match="pass --clusters FILE instead: mmseqs ended with 1"):
        cluster_chains(SEQUENCES, None, BuildCache(tmp_path))
