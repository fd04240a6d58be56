"""Name the chains that the small model is not trained on: those of every tenth cluster, so that none has a relative.

    python examples/small/hold_out.py training_set > held_out.txt

A cluster with a deep alignment is always trained on. Which others are held out depends on their names alone.
"""

import argparse
import zlib
from pathlib import Path

from data_pipeline.datasets.index import IndexEntry
from data_pipeline.datasets.store import FeatureStore

ONE_OF = 10


def held_out(entries: tuple[IndexEntry, ...]) -> list[str]:
    """Names of the chains of the clusters that are held out."""
    aligned = {entry.cluster for entry in entries if entry.msa_rows > 1}
    return [
        entry.name
        for entry in entries
        if entry.cluster not in aligned and zlib.crc32(entry.cluster.encode()) % ONE_OF == 0
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("training_set", type=Path)
    print("\n".join(held_out(FeatureStore.open(parser.parse_args().training_set).entries)))
