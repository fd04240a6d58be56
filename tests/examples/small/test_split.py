"""The split that is committed keeps families whole and fills its bins, and is what split.py makes of the data."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples.small.scripts import DIRECTORY, small_script

split, families = small_script("split"), small_script("families")
LibraryChain = small_script("library").LibraryChain
TABLE = split.read_split()
DATA = Path(__file__).parents[4] / "shared" / "data"


def test_no_family_is_on_both_sides() -> None:
    sets: dict[str, set[str]] = {}
    for chain in TABLE:
        sets.setdefault(chain.family, set()).add(chain.set)
    assert all(some == {split.SET_ASIDE} or split.SET_ASIDE not in some for some in sets.values())
    assert all(chain.set == split.SET_ASIDE for chain in TABLE if chain.target)
    proteins: dict[str, set[str]] = {}
    for chain in TABLE:
        proteins.setdefault(chain.protein, set()).add(chain.family)
    assert all(len(some) == 1 for some in proteins.values())


def test_every_bin_has_its_targets_and_templates_are_other_proteins() -> None:
    proteins = {chain.name: chain.protein for chain in TABLE}
    templated = [chain for chain in TABLE if chain.target == split.TEMPLATE]
    found = Counter(split.bin_of(chain.identity) for chain in templated)
    assert all(found[low] >= least for low, least in split.FILLED.items())
    assert {low: split.FILLED[low] for low in split.BINS if low >= 25} == dict.fromkeys((25, 30, 40, 50), 25)
    for chain in templated:
        assert proteins[chain.template] != chain.protein
        assert chain.template.partition("_")[0] != chain.name.partition("_")[0]
        assert chain.length <= split.LONGEST_TARGET
    kinds = Counter(chain.target for chain in TABLE if chain.target)
    assert (kinds[split.ALIGNMENT], kinds[split.SINGLE]) == (split.ALIGNED_TARGETS, split.SINGLE_TARGETS)


def test_the_counts_are_those_of_the_table() -> None:
    counts = list(split.rows(DIRECTORY / split.COUNTS_FILE))
    assert sum(int(row["chains"]) for row in counts) == len(TABLE)
    targets = Counter(split.bin_of(chain.identity) for chain in TABLE if chain.target == split.TEMPLATE)
    for row in counts[:-1]:
        assert int(row["targets"]) == targets[int(row["best_template_identity"].partition("-")[0])]


def test_nothing_is_learnt_from_copyleft_repositories() -> None:
    if not DATA.is_dir():
        pytest.skip("the reference data is not there")
    licences = {row["file"]: row["licence"] for row in split.rows(DATA / "manifest.tsv")}
    assert not [chain.name for chain in TABLE if chain.set == split.TRAIN and "GPL" in licences[chain.file]]


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from("abcdefgh")), max_size=10))
def test_components_are_joined_by_pairs_alone(pairs: list[tuple[str, str]]) -> None:
    found = families.components("abcdefgh", pairs)
    reached = {name: {name} for name in "abcdefgh"}
    for _ in reached:
        for one, other in pairs:
            joined = reached[one] | reached[other]
            for name in joined:
                reached[name] = reached[name] | joined
    assert found == {name: min(some) for name, some in reached.items()}


def library_chain(name: str, *, is_copyleft: bool = False, folder: str = "train_mmcif") -> object:
    return LibraryChain(
        name=name,
        entry=name.partition("_")[0],
        file=f"{folder}/{name}.cif",
        chain="A",
        sequence="A" * 50,
        is_copyleft=is_copyleft,
    )


def hit(query: str, target: str, identity: float, bits: float = 100.0) -> object:
    return families.Relation(query=query, target=target, identity=identity, bits=bits, columns=())


def test_the_best_template_is_another_protein_of_another_entry() -> None:
    chains = [library_chain(name) for name in ("1aaa_A", "1aaa_B", "2bbb_A", "3ccc_A", "4ddd_A")]
    relations = [
        hit("1aaa_A", "1aaa_B", 0.3, 900),
        hit("1aaa_A", "2bbb_A", 0.85, 500),
        hit("1aaa_A", "3ccc_A", 0.35, 200),
        hit("1aaa_A", "4ddd_A", 0.45, 100),
    ]
    proteins = families.proteins_of(chains, relations)
    assert families.representatives(chains, relations) == {chain.name for chain in chains}
    assert len(families.representatives(chains, [hit("1aaa_A", "2bbb_A", 0.95)])) == 4
    assert proteins["1aaa_A"] == proteins["2bbb_A"] != proteins["1aaa_B"]
    assert families.best_templates(chains, relations, proteins)["1aaa_A"].target == "3ccc_A"
    assert len(set(families.families_of(chains, relations).values())) == 1


def test_a_family_is_set_aside_whole_with_its_copyleft_chains() -> None:
    chains = [library_chain(f"{number}aaa_A", is_copyleft=number == 2) for number in range(1, 4)]
    chains += [library_chain(f"{number}bbb_A", is_copyleft=number == 2, folder="mmcif") for number in range(1, 4)]
    relations = [hit("1aaa_A", "2aaa_A", 0.35), hit("2aaa_A", "1aaa_A", 0.35), hit("3aaa_A", "1aaa_A", 0.8)]
    found = {chain.name: chain for chain in split.split_chains(chains, relations, {})}
    assert {found[f"{number}aaa_A"].set for number in (1, 2, 3)} == {split.SET_ASIDE}
    assert [found[f"{number}bbb_A"].set for number in (1, 2, 3)] == [split.TRAIN, split.COPYLEFT, split.TRAIN]
    assert found["2aaa_A"].target == split.TEMPLATE
    assert (found["2aaa_A"].template, found["2aaa_A"].identity) == ("1aaa_A", 0.35)


def test_families_that_cost_least_fill_the_bins() -> None:
    full = Counter(split.FILLED)
    targets = {"cheap": full, "dear": full}
    assert split.families_for_bins(targets, {"cheap": 10, "dear": 200}) == {"cheap"}
    short = {"one": Counter({30: 3}), "none": Counter({0: 9})}
    assert split.families_for_bins(short, {"one": 5, "none": 1}) == {"one"}


def test_aligned_targets_are_of_all_depths() -> None:
    depths = {f"t{number:03d}": number for number in range(1, 61)}
    chosen = split.aligned_targets(depths)
    assert len(chosen) == len(set(chosen)) == split.ALIGNED_TARGETS
    assert {depths[name] for name in chosen} >= {1, 60}


def test_identities_have_bins() -> None:
    assert [split.bin_of(share) for share in (0.1, 0.2, 0.249, 0.25, 0.399, 0.599)] == [0, 20, 20, 25, 30, 50]
