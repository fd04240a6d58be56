"""Copy a feature store with fewer alignments, to measure how many a network needs to learn to read them.

    python examples/small/fewer_alignments.py training_set 100 --output training_set_100

All chains stay. Chains that keep their alignment are drawn at random by clusters; the others only keep the target's
row. Held-out chains (split.tsv) keep their alignments.
"""

import argparse
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np
from split import SET_ASIDE, read_split

from data_pipeline.io.errors import InputError
from data_pipeline.training_sets.chain_record import encode_record
from data_pipeline.training_sets.index import write_index
from data_pipeline.training_sets.store import DATABASE_FILE, INDEX_FILE, FeatureStore, write_database

SEED = 0


def aligned_chains(store: FeatureStore, count: int, aside: Collection[str]) -> set[str]:
    """Return `count` chains with alignments, by whole clusters where possible; a smaller count gives a subset."""
    clusters: dict[str, list[str]] = {}
    for entry in store.entries:
        if entry.msa_rows > 1 and entry.name not in aside:
            clusters.setdefault(entry.cluster, []).append(entry.name)
    order = np.random.default_rng(SEED).permutation(sorted(clusters))
    return set([name for cluster in order for name in clusters[cluster]][:count])


def copy_store(store: FeatureStore, output: Path, keep: Collection[str]) -> None:
    """Write a store of the same chains, in which only the chains in `keep` have alignments."""
    records, entries = [], []
    for entry in store.entries:
        features, labels = store.load(entry.name)
        if entry.name not in keep:
            features = replace(features, msa=features.msa[:1], deletion_matrix=features.deletion_matrix[:1])
        records.append((entry.key, encode_record(entry.key, features, labels)))
        entries.append(replace(entry, msa_rows=len(features.msa)))
    records.sort()
    write_database(output / DATABASE_FILE, records, [len(content) for _, content in records])
    write_index(output / INDEX_FILE, entries)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("training_set", type=Path)
    parser.add_argument("count", type=int, help="training chains that keep their alignment")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    store = FeatureStore.open(options.training_set)
    aside = {chain.name for chain in read_split() if chain.set == SET_ASIDE}
    aligned = aligned_chains(store, options.count, aside)
    options.output.mkdir(parents=True, exist_ok=True)
    copy_store(store, options.output, aligned | aside)
    print(f"-> {options.output}: {len(store.entries)} chains, {len(aligned)} training chains with an alignment")


if __name__ == "__main__":
    try:
        main()
    except (InputError, OSError) as error:
        sys.exit(f"fewer_alignments.py: {error}")
