"""Cluster training chains from the user's file, by similarity with MMseqs2, or by identical sequence.

`MIN_IDENTITY` is the min fraction of identical residues to the representative of a cluster of MMseqs2.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.io.errors import InputError, SearchError
from data_pipeline.io.json_files import compress_json, decompress_json
from data_pipeline.search.mmseqs import cluster_sequences
from data_pipeline.search.mmseqs_program import find_mmseqs
from data_pipeline.training_sets.build_cache import BuildCache, content_key
from data_pipeline.training_sets.cluster_files import given_clusters, identical_clusters, read_clusters, write_clusters
from data_pipeline.training_sets.store import SHARD_CLUSTERS_FILE, FeatureStore, has_shards

MIN_IDENTITY = 0.4  # AlphaFold 2, Suppl. Sec. 1.2.5

_ADVICE = "install MMseqs2 (pip install 'helixfold[mmseqs]') or pass --clusters FILE for clusters of similar chains"
_CLUSTERING_VERSION = 1  # increase it when the same sequences are clustered differently


@dataclass(frozen=True, kw_only=True)
class Clustering:
    """Names of clusters by chain name, with messages for the user.

    `cache_keys` are the keys of the results that are stored in the build cache.
    """

    clusters: dict[str, str]
    notes: tuple[str, ...] = ()  # messages for the user
    cache_keys: frozenset[str] = frozenset()  # keys of results stored in the build cache


def cluster_chains(
    sequences: Mapping[str, str], user_clusters: Mapping[str, str] | None, cache: BuildCache | None = None
) -> Clustering:
    """Cluster all chains of a set by `user_clusters`, else with MMseqs2 if it is installed, else by identical sequence.

    `sequences` and `user_clusters` (names of clusters) are by chain name. Clusters from MMseqs2 are stored in the
    cache, if there is one. Raise `InputError` if MMseqs2 fails.
    """
    if user_clusters is not None or find_mmseqs() is None:
        return _without_program(sequences, user_clusters, _ADVICE)
    key = content_key("clusters", _CLUSTERING_VERSION, MIN_IDENTITY, sorted(sequences.items()))
    clusters = None if cache is None else _cached(cache, key)
    if clusters is None:
        try:
            clusters = cluster_sequences(sequences, min_identity=MIN_IDENTITY)
        except SearchError as error:
            raise InputError(f"the chains could not be clustered; pass --clusters FILE instead: {error}") from error
        if cache is not None:
            cache.put(key, compress_json(clusters))
    return Clustering(clusters=clusters, cache_keys=frozenset([key]))


def cluster_shard(sequences: Mapping[str, str], user_clusters: Mapping[str, str] | None) -> Clustering:
    """Cluster the chains of one shard by `user_clusters`, else by identical sequence, so that all shards agree."""
    return _without_program(
        sequences, user_clusters, "--join-shards clusters similar ones when all shards are finished"
    )


def join_shards(output: Path, clusters_file: Path | None = None) -> tuple[FeatureStore, tuple[str, ...]]:
    """Cluster the chains of all shards in `output` together; return the joined store and messages for the user.

    The clusters are written to a file in `output`, and the shards are unchanged. The clusters come from
    `clusters_file`, else from MMseqs2, else from identical sequences. Raise `InputError` if a shard is missing or
    MMseqs2 fails.
    """
    if not has_shards(output):
        raise InputError.at(output, "there are no shards to join")
    user_clusters = None if clusters_file is None else read_clusters(clusters_file)
    store = FeatureStore.open(output)
    sequences = {entry.name: store.sequence(entry.name) for entry in store.entries}
    clustering = cluster_chains(sequences, user_clusters)
    write_clusters(output / SHARD_CLUSTERS_FILE, clustering.clusters)
    return FeatureStore.open(output), clustering.notes


def _without_program(sequences: Mapping[str, str], user_clusters: Mapping[str, str] | None, advice: str) -> Clustering:
    """Cluster chains by the user's clusters, or by identical sequence without them."""
    if user_clusters is None:
        note = f"only chains of identical sequence share a cluster; {advice}"
        return Clustering(clusters=identical_clusters(sequences), notes=(note,))
    clusters, missing = given_clusters(sequences, user_clusters)
    note = f"{len(missing)} of {len(clusters)} chains are not in the clusters file; each gets its own cluster"
    return Clustering(clusters=clusters, notes=(note,) if missing else ())


def _cached(cache: BuildCache, key: str) -> dict[str, str] | None:
    """Return the clusters of an earlier run, or None if they are missing or damaged."""
    content = cache.get(key)
    try:
        return None if content is None else dict(decompress_json(content))
    except ValueError:
        return None
