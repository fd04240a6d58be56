"""Split a training set by clusters into training chains and held-out chains, and measure the leakage.

Leakage is similarity between the two parts that the clusters do not capture: the training chain most similar to each
held-out chain. Constants that end in `FILE` or `FASTA` are the names of the files that `write_split` writes.
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
# Length of words, and number of chains with the most shared words that are aligned. Chains with more than 20 % identity
# nearly always share a word.
_WORD_LETTERS, _MAX_ALIGNED_CHAINS = 4, 5


@dataclass(frozen=True, kw_only=True)
class NearestChain:
    """The training chain that is most similar to a held-out chain by their best local alignment.

    `identity` is the fraction of equal pairs among the aligned pairs of residues, and `coverage` the fraction of the
    held-out chain's residues that are aligned. `name` is the held-out chain. `nearest` is None if no training chain
    shares a word of four residues with it, or has equal residues in the alignment.
    """

    name: str
    nearest: str | None = None
    identity: float = 0.0
    coverage: float = 0.0


def split_by_cluster(entries: Sequence[IndexEntry], fraction: float, seed: int = 0) -> tuple[str, ...]:
    """Return the sorted names of held-out chains: random whole clusters with about a `fraction` of the chains.

    Raise `InputError` if the fraction is not between 0 and 1, or if no chain is held out or none remains.
    """
    if not 0 < fraction < 1:
        raise InputError(f"the fraction of chains to hold out must be between 0 and 1, got {fraction:g}")
    members: dict[str, list[str]] = defaultdict(list)
    for entry in entries:
        members[entry.cluster].append(entry.name)
    names = sorted(members)
    held_out: list[str] = []
    for index in np.random.default_rng(seed).permutation(len(names)):
        cluster = members[names[index]]
        # A cluster remains in the training set if holding it out increases the distance to the fraction.
        if abs(len(held_out) + len(cluster) - fraction * len(entries)) <= abs(len(held_out) - fraction * len(entries)):
            held_out += cluster
    if not held_out or len(held_out) == len(entries):
        raise InputError(
            f"{len(names)} clusters cannot be divided so that {fraction:g} of {len(entries)} chains are held out; pass "
            "more chains, or finer clusters with --clusters"
        )
    return tuple(sorted(held_out))


def with_joined_clusters(entries: Sequence[IndexEntry], assemblies: Iterable[AssemblyEntry]) -> list[IndexEntry]:
    """Return the chains, of which all clusters with chains in the same assembly are joined to one.

    A split by these clusters divides no assembly, and no training assembly has a chain similar to a held-out chain.
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
    """Yield the most similar training chain of each held-out chain; `sequences` has all chains by name.

    Only the five training chains that share the most words of four residues are aligned (local, BLOSUM62).
    """
    from Bio.Align import PairwiseAligner, substitution_matrices  # noqa: PLC0415 (the import is slow)

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
        for other, _ in shared.most_common(_MAX_ALIGNED_CHAINS):
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
    """Write `held_out.txt`, with one name per line, and `leakage.tsv`, with the most similar chains first.

    `sequences` by name are written to `held_out.fasta`, for predictions of the held-out chains. The names of held-out
    `assemblies` are written to `held_out_assemblies.txt`, if there are any.
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
    """Return all parts of a sequence with `_WORD_LETTERS` letters."""
    return {sequence[start : start + _WORD_LETTERS] for start in range(len(sequence) - _WORD_LETTERS + 1)}
