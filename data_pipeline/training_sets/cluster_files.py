"""Files of clusters of similar chains; training samples all clusters with equal weight.

AlphaFold 2, Suppl. Sec. 1.2.5 (40 % identity, MMseqs2).
"""

import hashlib
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path

from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.files import atomic_write
from data_pipeline.parse.text_files import read_text
from data_pipeline.training_sets.index import chain_name_problem

MAX_CLUSTERS_BYTES = 2**30


def read_clusters(path: str | PathLike[str]) -> dict[str, str]:
    """Read a file of clusters and return the name of the cluster of each chain.

    A line is either one cluster, with its chains separated by blanks (as in the PDB's `bc-40.out`) and named after the
    first chain, or two columns separated by a tab: chain and cluster. Names are case-sensitive. Raise `InputError` with
    the line if a name is invalid or a chain is in two clusters, and for a file without clusters.
    """
    text = read_text(path, MAX_CLUSTERS_BYTES, "write one cluster per line, with chains separated by blanks")
    clusters: dict[str, str] = {}
    for line_number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        if "\t" in line:
            cells = line.split("\t")
            if len(cells) != 2:
                raise InputError.at(path, f"{len(cells)} columns; a table has two, chain and cluster", line=line_number)
            cluster, members = cells[1].strip(), [cells[0].strip()]
        else:
            members = line.split()
            cluster = members[0]
        for name in (cluster, *members):
            problem = chain_name_problem(name)
            if problem is not None:
                raise InputError.at(path, f"the name '{printable(name)}' {problem}", line=line_number)
        for member in members:
            if clusters.setdefault(member, cluster) != cluster:
                earlier = printable(clusters[member])
                problem = f"'{printable(member)}' is already in cluster '{earlier}'; a chain belongs to one cluster"
                raise InputError.at(path, problem, line=line_number)
    if not clusters:
        raise InputError.at(path, "there are no clusters; write one per line, with chains separated by blanks")
    return clusters


def write_clusters(path: Path, clusters: Mapping[str, str]) -> None:
    """Write a tab-separated table of chain and cluster for `read_clusters`."""
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        file.writelines(f"{name}\t{clusters[name]}\n" for name in sorted(clusters))


def identical_clusters(sequences: Mapping[str, str]) -> dict[str, str]:
    """Return a cluster name for each chain by name, which chains with identical sequences share.

    Clusters are named by the hash of the sequence, so separately built shards are consistent.
    """
    return {name: hashlib.blake2b(sequence.encode(), digest_size=8).hexdigest() for name, sequence in sequences.items()}


def given_clusters(names: Iterable[str], clusters: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the cluster of each chain in `names`, and a sorted list of the chains that are not in `clusters`.

    A chain that is not in `clusters` gets its own cluster, named after it. If a name has no exact match, the case of
    the PDB id is ignored ("1ABC_A" matches "1abc_A").
    """
    by_lower_id = {_lower_id(name): cluster for name, cluster in clusters.items()}
    cluster_of: dict[str, str] = {}
    without_cluster: list[str] = []
    for name in sorted(names):
        cluster = clusters.get(name) or by_lower_id.get(_lower_id(name))
        if cluster is None:
            without_cluster.append(name)
            cluster = name
        cluster_of[name] = cluster
    return cluster_of, without_cluster


def _lower_id(name: str) -> str:
    """Return a chain's name with its entry, before the first '_', in lower case."""
    entry, separator, chain = name.partition("_")
    return f"{entry.lower()}{separator}{chain}"
