"""Domains are the parts whose mutual error is low, whatever the chain's order of parts."""

import numpy as np
import pytest

from helixfold.analysis.domains import _average_linkage, find_domains, mean_error


def errors(parts: str, inside: float = 3.0, between: float = 20.0, seed: int = 0) -> np.ndarray:
    """PAE of a chain of which each letter is ten residues of that part; '-' is a part to itself everywhere."""
    labels = np.repeat(list(parts), 10)
    same = (labels[:, None] == labels) & (labels != "-")
    noise = np.random.default_rng(seed).uniform(0.7, 1.3, same.shape)
    pae: np.ndarray = np.where(same, inside, between) * noise
    np.fill_diagonal(pae, 0.25)
    return pae.astype(np.float32)


def found(parts: str, plddt: np.ndarray | None = None, **values: float) -> list[list[tuple[int, int]]]:
    pae = errors(parts, **values)
    domains = find_domains(pae, np.full(len(pae), 90.0) if plddt is None else plddt)
    return [domain.stretches for domain in domains]


def found_with_loops(parts: str, loop: int) -> list[list[tuple[int, int]]]:
    """As `found`, where each '-' is a loop of that many residues."""
    kept = np.concatenate([np.arange(10 * n, 10 * n + (loop if part == "-" else 10)) for n, part in enumerate(parts)])
    pae = errors(parts)[np.ix_(kept, kept)]
    return [domain.stretches for domain in find_domains(pae, np.full(len(pae), 90.0))]


def test_a_rigid_chain_is_one_domain() -> None:
    assert found("AAAAAA") == [[(0, 59)]]


def test_parts_that_move_against_each_other_are_two_and_named_by_their_order() -> None:
    assert found("AAABBBB") == [[(0, 29)], [(30, 69)]]


def test_a_domain_may_have_another_in_its_middle() -> None:
    assert found("AABBBAA") == [[(0, 19), (50, 69)], [(20, 49)]]


def test_parts_in_a_known_orientation_are_one() -> None:
    assert len(found("AAABBB", between=5.0)) == 1
    assert len(found("AAABBB", between=12.0)) == 2


def test_tails_and_linkers_belong_to_none() -> None:
    assert found("--AAAA--BBB-") == [[(20, 59)], [(80, 109)]]


def test_a_short_loop_belongs_to_the_domain_around_it_and_a_speck_to_none() -> None:
    pae = errors("AAAAAABBB")
    pae[25:32], pae[:, 25:32] = 20, 20
    pae[50:53] = pae[63]
    pae[:, 50:53] = pae[:, 63:64]
    domains = find_domains(pae, np.full(90, 90.0))
    assert [domain.stretches for domain in domains] == [[(0, 59)], [(60, 89)]]


@pytest.mark.parametrize(
    ("parts", "loop", "expected"),
    [
        ("AAA-AAA", 9, [[(0, 68)]]),
        ("AAA-AAA", 10, [[(0, 29), (40, 69)]]),
        ("AAA-BBB", 9, [[(0, 29)], [(39, 68)]]),
        ("BB-BAA-AA", 9, [[(0, 38)], [(39, 87)]]),
    ],
)
def test_loops_of_up_to_nine_residues_belong_to_the_domain_on_both_their_sides(
    parts: str, loop: int, expected: list[list[tuple[int, int]]]
) -> None:
    assert found_with_loops(parts, loop) == expected


def test_a_domain_has_at_least_twenty_residues_and_each_of_its_parts_at_least_four() -> None:
    pae = errors("AAABBB")
    # The second part as long as the case says, and a stretch of the first part's residues within it.
    for stop, stretch, expected in (
        (50, 0, [[(0, 29)], [(30, 49)]]),
        (49, 0, [[(0, 29)]]),
        (60, 4, [[(0, 29), (40, 43)], [(30, 39), (44, 59)]]),
        (60, 3, [[(0, 29)], [(30, 59)]]),
    ):
        order = np.arange(stop)
        order[40 : 40 + stretch] = np.arange(stretch)
        assert [domain.stretches for domain in find_domains(pae[np.ix_(order, order)], np.full(stop, 90.0))] == expected


def test_long_stretches_of_very_low_plddt_belong_to_none_and_short_ones_do() -> None:
    plddt = np.full(80, 90.0)
    plddt[20:29] = 30
    plddt[50:] = 49.9
    assert found("AAAAAAAA", plddt) == [[(0, 49)]]
    plddt[50:], plddt[60:70] = 50, 49.9
    assert found("AAAAAAAA", plddt) == [[(0, 59), (70, 79)]]


def test_what_is_placed_badly_everywhere_has_no_domain() -> None:
    assert found("AAAAAA", inside=16.0) == []
    assert found("A") == []
    assert found("AAA", np.full(30, 20.0)) == []


@pytest.mark.parametrize("size", [1, 2, 19])
def test_short_chains_have_no_domain(size: int) -> None:
    assert find_domains(np.full((size, size), 0.3), np.full(size, 95.0)) == ()


def test_long_chains_are_clustered_in_blocks_of_neighbours() -> None:
    labels = np.repeat([0, 1, 0], [2400, 1300, 900])
    pae = np.where(labels[:, None] == labels, 3, 20).astype(np.float32)
    domains = find_domains(pae, np.full(len(labels), 80.0))
    edges = [edge for domain in domains for stretch in domain.stretches for edge in stretch]
    np.testing.assert_allclose(edges, [0, 2399, 3700, 4599, 2400, 3699], atol=3)


def test_the_same_errors_in_another_direction_give_the_same_domains() -> None:
    pae = errors("AABBBAA--A")
    plddt = np.full(100, 90.0)
    turned, straight = find_domains(pae.T, plddt), find_domains(pae, plddt)
    assert [domain.stretches for domain in turned] == [domain.stretches for domain in straight]


def test_both_directions_of_an_error_count() -> None:
    pae = errors("AAABBB")
    pae[:30, 30:], pae[30:, :30] = 2, 20
    for one_way in (pae, pae.T):
        domains = find_domains(one_way, np.full(60, 90.0))
        assert [domain.stretches for domain in domains] == [[(0, 29)], [(30, 59)]]


def test_mean_errors_are_of_rows_aligned_and_columns_scored() -> None:
    pae = np.zeros((60, 60))
    pae[:30, 30:], pae[30:, :30] = 10, 20
    pae[:30, :30], pae[30:, 30:] = 1, 2
    np.fill_diagonal(pae, 0)
    first, second = find_domains(pae, np.full(60, 90.0))
    assert [mean_error(pae, *pair) for pair in ((first, first), (second, second))] == [1, 2]
    assert (mean_error(pae, first, second), mean_error(pae, second, first)) == (10, 20)


@pytest.mark.parametrize("seed", range(20))
def test_clusters_are_those_of_scipy(seed: int) -> None:
    hierarchy = pytest.importorskip("scipy.cluster.hierarchy")
    random = np.random.default_rng(seed)
    points = random.normal(scale=random.uniform(2, 12), size=(int(random.integers(2, 80)), 3))
    distances = np.linalg.norm(points[:, None] - points, axis=-1)
    labels = _average_linkage(distances, 8.0)
    pairs = distances[np.triu_indices(len(distances), 1)]
    expected = hierarchy.fcluster(hierarchy.linkage(pairs, "average"), np.nextafter(8.0, 0), "distance")
    np.testing.assert_array_equal(labels[:, None] == labels, expected[:, None] == expected)


def test_equal_distances_end() -> None:
    for size in (2, 3, 8, 31):
        assert len(set(_average_linkage(np.ones((size, size)), 8.0).tolist())) == 1
        assert len(set(_average_linkage(np.full((size, size), 8.0), 8.0).tolist())) == size
