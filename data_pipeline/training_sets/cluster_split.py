"""Split of a training set into chains to train on and chains held out, by whole clusters, and its leakage.

Leakage is similarity between the two parts that clusters did not see: each held-out chain's nearest chain to train on.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from data_pipeline.io.errors import InputError
from data_pipeline.io.files import atomic_write, os_errors_as_input_errors
from data_pipeline.training_sets.assembly_record import AssemblyEntry
from data_pipeline.training_sets.index import IndexEntry

HELD_OUT_FILE, HELD_OUT_FASTA, LEAKAGE_FILE = "held_out.txt", "held_out.fasta", "leakage.tsv"
HELD_OUT_ASSEMBLIES_FILE = "held_out_assemblies.txt"
# Chains that share most words of this many residues are aligned; more than 20 % identity rarely comes without any.
_WORD, _ALIGNED = 4, 5


@dataclass(frozen=True, kw_only=True)
class NearestChain:
    """The chain to train on that is most similar to a held-out one, over their best local alignment.

    `identity` is the fraction of its columns with equal residues, and `coverage` the fraction of the held-out chain's
    residues in it. `nearest` is None if no chain shares a word with it.
    """

    name: str
    nearest: str | None = None
    identity: float = 0.0
    coverage: float = 0.0


def split_by_cluster(entries: Sequence[IndexEntry], fraction: float, seed: int = 0) -> tuple[str, ...]:
    """Return the names of held-out chains: whole clusters, drawn until they have that fraction of the chains.

    Raise `InputError` if the fraction is not between 0 and 1, or if nothing would be left to train on.
    """
    if not 0 < fraction < 1:
        raise InputError(f"the fraction of chains to hold out is between 0 and 1, got {fraction:g}")
    members: dict[str, list[str]] = defaultdict(list)
    for entry in entries:
        members[entry.cluster].append(entry.name)
    names = sorted(members)
    held_out: list[str] = []
    for index in np.random.default_rng(seed).permutation(len(names)):
        cluster = members[names[index]]
        # A cluster that would overshoot by more than it brings nearer is left to training.
        if abs(len(held_out) + len(cluster) - fraction * len(entries)) <= abs(len(held_out) - fraction * len(entries)):
            held_out += cluster
    if not held_out or len(held_out) == len(entries):
        raise InputError(
            f"{len(names)} clusters cannot be divided so that {fraction:g} of {len(entries)} chains are held out; give "
            "more chains, or finer clusters with --clusters"
        )
    return tuple(sorted(held_out))


def with_joined_clusters(entries: Sequence[IndexEntry], assemblies: Iterable[AssemblyEntry]) -> list[IndexEntry]:
    """Return chains with clusters that are joined where an assembly has chains of several.

    So a split by cluster divides no assembly, and no assembly to train on has a chain like one that is held out.
    """
    cluster_of = {entry.name: entry.cluster for entry in entries}
    joined = {cluster: cluster for cluster in cluster_of.values()}

    def first(cluster: str) -> str:
        while joined[cluster] != cluster:
            joined[cluster] = cluster = joined[joined[cluster]]
        return cluster

    for assembly in assemblies:
        one, *others = (first(cluster_of[chain]) for chain in assembly.chains)
        for other in others:
            joined[first(other)] = first(one)
    return [replace(entry, cluster=first(entry.cluster)) for entry in entries]


def nearest_chains(sequences: Mapping[str, str], held_out: Sequence[str]) -> Iterator[NearestChain]:
    """Yield the most similar chain to train on for each held-out one, given the sequences of all."""
    from Bio.Align import PairwiseAligner, substitution_matrices  # noqa: PLC0415 (it takes long to import)

    aligner = PairwiseAligner(
        mode="local",
        substitution_matrix=substitution_matrices.load("BLOSUM62"),
        open_gap_score=-11,
        extend_gap_score=-1,
    )
    outside = {name: sequence for name, sequence in sequences.items() if name not in set(held_out)}
    with_word: dict[str, list[str]] = defaultdict(list)
    for name, sequence in outside.items():
        for word in _words(sequence):
            with_word[word].append(name)
    for name in held_out:
        own = sequences[name]
        shared = Counter(other for word in _words(own) for other in with_word.get(word, ()))
        best = NearestChain(name=name)
        for other, _ in shared.most_common(_ALIGNED):
            alignments = aligner.align(own, outside[other])
            if not len(alignments):
                continue
            first, second = alignments[0].aligned
            columns = sum(stop - start for start, stop in first)
            pairs = zip(first, second, strict=True)
            equal = sum(
                one == two
                for (start, stop), (beginning, end) in pairs
                for one, two in zip(own[start:stop], outside[other][beginning:end], strict=True)
            )
            if equal > best.identity * best.coverage * len(own):
                best = NearestChain(name=name, nearest=other, identity=equal / columns, coverage=columns / len(own))
        yield best


def write_split(
    directory: Path,
    held_out: Sequence[str],
    nearest: Sequence[NearestChain],
    assemblies: Sequence[str] = (),
    sequences: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write `held_out.txt`, one name on each line, and `leakage.tsv`, most similar chains first.

    `sequences` by name are written to `held_out.fasta`, to predict the chains that are held out. `assemblies` are the
    names of held-out assemblies, which `held_out_assemblies.txt` has, if there are any.
    """
    rows = ["held_out\tnearest\tidentity\tcoverage\n"]
    for each in sorted(nearest, key=lambda one: (-one.identity * one.coverage, one.name)):
        rows.append(f"{each.name}\t{each.nearest or ''}\t{each.identity:.3f}\t{each.coverage:.3f}\n")
    texts = {HELD_OUT_FILE: "".join(f"{name}\n" for name in held_out), LEAKAGE_FILE: "".join(rows)}
    if sequences:
        texts[HELD_OUT_FASTA] = "".join(f">{name}\n{sequences[name]}\n" for name in held_out)
    if assemblies:
        texts[HELD_OUT_ASSEMBLIES_FILE] = "".join(f"{name}\n" for name in assemblies)
    for name, text in texts.items():
        path = directory / name
        with os_errors_as_input_errors(path, "cannot be written"), atomic_write(path) as temporary:
            temporary.write_text(text, encoding="utf-8")


def _words(sequence: str) -> set[str]:
    return {sequence[start : start + _WORD] for start in range(len(sequence) - _WORD + 1)}
