"""Clusters of similar chains: chains of one cluster share one chance of being drawn in training.

AlphaFold 2, Suppl. Sec. 1.2.5 (40 % identity, MMseqs2).
"""

import hashlib
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path

from data_pipeline.datasets.index import chain_name_problem
from data_pipeline.errors import InputError, printable
from data_pipeline.files import atomic_write
from data_pipeline.parse.text_files import read_text_bytes

MAX_CLUSTERS_BYTES = 2**30


def read_clusters(path: str | PathLike[str]) -> dict[str, str]:
    """The cluster of each chain, from a file people have.

    Either one cluster in each line, its chains parted by blanks (`bc-40.out` of the PDB; a cluster is called after
    the first chain), or two columns parted by a tab: chain and cluster. Names are taken as written.
    """
    try:
        text = read_text_bytes(path, MAX_CLUSTERS_BYTES).decode()
    except UnicodeDecodeError as error:
        raise InputError.at(path, "not UTF-8 text") from error
    clusters: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        if "\t" in line:
            cells = line.split("\t")
            if len(cells) != 2:
                raise InputError.at(path, f"{len(cells)} columns; a table has two, chain and cluster", line=number)
            cluster, members = cells[1].strip(), [cells[0].strip()]
        else:
            members = line.split()
            cluster = members[0]
        for name in (cluster, *members):
            problem = chain_name_problem(name)
            if problem is not None:
                raise InputError.at(path, f"the name '{printable(name)}' {problem}", line=number)
        for member in members:
            if clusters.setdefault(member, cluster) != cluster:
                earlier = printable(clusters[member])
                problem = f"'{printable(member)}' is already in cluster '{earlier}'; a chain belongs to one cluster"
                raise InputError.at(path, problem, line=number)
    if not clusters:
        raise InputError.at(path, "there are no clusters; give one in each line, chains parted by blanks")
    return clusters


def write_clusters(path: Path, clusters: Mapping[str, str]) -> None:
    """Write chain and cluster in two columns."""
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        file.writelines(f"{name}\t{clusters[name]}\n" for name in sorted(clusters))


def identical_clusters(sequences: Mapping[str, str]) -> dict[str, str]:
    """Chains of the same sequence in one cluster, called by the sequence's hash: so shards agree about it."""
    return {name: hashlib.blake2b(sequence.encode(), digest_size=8).hexdigest() for name, sequence in sequences.items()}


def given_clusters(names: Iterable[str], clusters: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The cluster of each chain, and the chains of which the file says nothing; each of those is alone in its own.

    Names are compared as they are, else with the case of the PDB id aside ("1ABC_A" is "1abc_A").
    """
    by_lower_id = {_lower_id(name): cluster for name, cluster in clusters.items()}
    found: dict[str, str] = {}
    alone: list[str] = []
    for name in sorted(names):
        cluster = clusters.get(name) or by_lower_id.get(_lower_id(name))
        if cluster is None:
            alone.append(name)
            cluster = name
        found[name] = cluster
    return found, alone


def _lower_id(name: str) -> str:
    entry, separator, chain = name.partition("_")
    return f"{entry.lower()}{separator}{chain}"
