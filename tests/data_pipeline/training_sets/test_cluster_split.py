"""Held-out chains are whole clusters, and what is similar across the split is told."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.io.errors import InputError
from data_pipeline.training_sets.assembly_record import AssemblyEntry
from data_pipeline.training_sets.cluster_split import (
    nearest_chains,
    split_by_cluster,
    with_joined_clusters,
    write_split,
)
from tests.data_pipeline.training_sets.memory_store import entry


@given(
    sizes=st.lists(st.integers(1, 9), min_size=2, max_size=30), fraction=st.floats(0.05, 0.6), seed=st.integers(0, 9)
)
def test_no_cluster_is_divided_and_the_fraction_is_met(sizes: list[int], fraction: float, seed: int) -> None:
    entries = [entry(f"{c}_{n}", cluster=f"c{c}") for c, size in enumerate(sizes) for n in range(size)]
    try:
        held_out = set(split_by_cluster(entries, fraction, seed))
    except InputError:
        assert min(sizes) > 2 * fraction * len(entries) or len(sizes) <= 3 or fraction * len(entries) < 1
        return
    clusters = {
        each.cluster: {other.name in held_out for other in entries if other.cluster == each.cluster} for each in entries
    }
    assert all(len(sides) == 1 for sides in clusters.values())
    assert abs(len(held_out) - fraction * len(entries)) <= max(sizes)
    assert held_out == set(split_by_cluster(entries, fraction, seed))


@given(
    chains=st.lists(st.integers(0, 7), min_size=6, max_size=12),
    assemblies=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3), max_size=4),
)
def test_no_assembly_is_divided_and_none_outside_is_like_one_that_is_held_out(
    chains: list[int], assemblies: list[list[int]]
) -> None:
    entries = [entry(f"x{number}", cluster=f"c{cluster}") for number, cluster in enumerate(chains)]
    made = [
        AssemblyEntry(name=f"a{number}", key="", chains=tuple(f"x{chain}" for chain in each))
        for number, each in enumerate(assemblies)
    ]
    joined = {each.name: each.cluster for each in with_joined_clusters(entries, made)}
    together = {frozenset(name for name in joined if joined[name] == group) for group in joined.values()}
    expected = {frozenset({each.name}) for each in entries}
    links = [{each.name for each in entries if each.cluster == f"c{cluster}"} for cluster in chains]
    for link in [*links, *(set(each.chains) for each in made)]:
        touched = {group for group in expected if group & link}
        expected = (expected - touched) | {frozenset().union(*touched)}
    assert together == expected


@pytest.mark.parametrize("fraction", [0.0, 1.0, -1.0, float("nan")])
def test_a_fraction_that_divides_nothing_is_refused(fraction: float) -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        split_by_cluster([entry("a"), entry("b")], fraction)
    with pytest.raises(InputError, match="1 clusters cannot be divided"):
        split_by_cluster([entry("a", cluster="c"), entry("b", cluster="c")], 0.5)


def test_the_nearest_chain_is_found_with_its_identity_and_coverage(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    sequences = {f"c{n}": "".join(random.choice(list("ACDEFGHIKLMNPQRSTVWY"), 80)) for n in range(6)}
    letters = list(sequences["c3"])
    for place in range(0, 80, 10):
        letters[place] = "W" if letters[place] != "W" else "A"
    sequences["copy"] = "".join(letters)
    sequences["half"] = sequences["c4"][:40]
    sequences["longer"] = "P" * 60 + sequences["c5"] + "P" * 60
    found = {each.name: each for each in nearest_chains(sequences, ["copy", "half", "c0", "longer"])}
    assert (found["longer"].nearest, found["longer"].identity, found["longer"].coverage) == ("c5", 1.0, 0.4)
    assert found["copy"].nearest == "c3"
    assert 0.88 < found["copy"].identity < 0.92
    assert found["copy"].coverage > 0.95
    assert (found["half"].nearest, found["half"].identity, found["half"].coverage) == ("c4", 1.0, 1.0)
    assert found["c0"].identity * found["c0"].coverage < 0.3
    write_split(tmp_path, ["copy", "half", "c0"], [found[name] for name in ("copy", "half", "c0")])
    lines = (tmp_path / "leakage.tsv").read_text().splitlines()
    assert [line.split("\t")[0] for line in lines] == ["held_out", "half", "copy", "c0"]
    assert (tmp_path / "held_out.txt").read_text() == "copy\nhalf\nc0\n"
    assert not (tmp_path / "held_out.fasta").exists()
    write_split(tmp_path, ["copy", "half"], [found["copy"]], sequences=sequences)
    fasta = f">copy\n{sequences['copy']}\n>half\n{sequences['half']}\n"
    assert (tmp_path / "held_out.fasta").read_text() == fasta
