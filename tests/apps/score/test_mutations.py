"""Mutations are read by chain and number, and those that do not match their target are refused in one sentence."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.features.complexes.complex_input import ComplexInput
from data_pipeline.features.complexes.target import ComplexTarget
from data_pipeline.io.errors import InputError
from data_pipeline.pipeline import Target
from data_pipeline.residues import RESTYPES
from helixfold.apps.score.mutations import TargetChains, mutants_at, mutants_in_table, read_mutant, scanned_positions

CHAIN = TargetChains.of(Target(name="one", sequence="MKTAY"))
# The features have both copies of the first sequence, A and C, before B.
COMPLEX = TargetChains.of(ComplexInput(target=ComplexTarget.of("two", ["MKT", "GSHM", "MKT"])))


def names(chains: TargetChains, *words: str, to: str = "AK") -> list[str]:
    return [mutant.name for mutant in mutants_at(chains, words, to)]


def test_positions_are_numbers_ranges_and_chains() -> None:
    assert names(CHAIN, "2-3") == ["K2A", "T3A", "T3K"]
    assert names(CHAIN, "4", "4", to="a") == []
    assert len(names(CHAIN, to=RESTYPES)) == len(names(CHAIN, "all", to=RESTYPES)) == 5 * 19
    assert names(COMPLEX, "B.1", "C.all", to="A") == ["C.M1A", "C.K2A", "C.T3A", "B.G1A"]
    positions = scanned_positions(mutants_at(COMPLEX, ("B.1", "C.2"), "A"))
    assert {index: position.letter for index, position in positions.items()} == {4: "K", 6: "G"}


@pytest.mark.parametrize(
    ("chains", "word", "problem"),
    [
        (CHAIN, "6", "target 'one': position 6 is outside the sequence, which has residues 1 to 5"),
        (CHAIN, "0", "position 0 is outside"),
        (CHAIN, "B.1", "no chain B; its chains are A"),
        (CHAIN, "4-2", "the first residue of a range must not be after the last"),
        (CHAIN, "two", "--positions must be such as 30, 10-20, A.30 or all, got 'two'"),
        (COMPLEX, "2", "position 2 could be in any chain; add the chain, such as A.2"),
        (COMPLEX, "C.4", "position 4 is outside chain C, which has residues 1 to 3"),
    ],
)
def test_positions_that_a_target_has_not_are_refused(chains: TargetChains, word: str, problem: str) -> None:
    with pytest.raises(InputError) as error:
        mutants_at(chains, (word,), "A")
    assert problem in str(error.value)


def test_letters_that_are_no_amino_acids_are_refused() -> None:
    for letters in ("AX", "", "A-"):
        with pytest.raises(InputError, match="--to must be letters of amino acids"):
            mutants_at(CHAIN, (), letters)


@pytest.mark.parametrize(
    ("chains", "word", "problem"),
    [
        (CHAIN, "A2K", "target 'one': residue 2 is K, not A; numbers count from 1 in each chain"),
        (CHAIN, "K2K", "residue 2 is K already"),
        (CHAIN, "K2B", "'B' is not an amino acid"),
        (CHAIN, "K2A:K2R", "it changes a position twice"),
        (CHAIN, "2A", "a mutation must be such as K30A"),
        (COMPLEX, "C.G1A", "residue C.1 is M, not G"),
    ],
)
def test_mutations_that_do_not_match_are_refused_with_their_line(
    chains: TargetChains, word: str, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.tsv"
    path.write_text(f"mutation\n{word}\n")
    with pytest.raises(InputError) as error:
        mutants_in_table(path, [chains])
    assert str(error.value).startswith(f"{path}, line 2, record '{word}': ")
    assert problem in str(error.value)


def test_a_table_names_the_mutants_of_several_targets(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text("id,mutation\none,k2a\ntwo,B.G1A:C.T3S\none,K2A\n")
    found = mutants_in_table(path, [CHAIN, COMPLEX])
    assert {name: [mutant.name for mutant in each] for name, each in found.items()} == {
        "one": ["K2A"],
        "two": ["B.G1A:C.T3S"],
    }
    for cells, problem in ((",K2A", "no target; write one"), ("x,K2A", "no such target")):
        path.write_text(f"id,mutation\n{cells}\n")
        with pytest.raises(InputError, match=problem):
            mutants_in_table(path, [CHAIN, COMPLEX])
    path.write_text("id,mutation\n")
    with pytest.raises(InputError, match="it has no mutations"):
        mutants_in_table(path, [CHAIN])


@given(
    st.text(alphabet="ABCKMT.-:0123456789 k\x00é", max_size=12)
    | st.lists(
        st.sampled_from(["K2A", "m1c", " K2A", "K2K", "B.G1A", "C.T3S", "C.m1k", "C.M9A", "X.M1A"]), max_size=3
    ).map(":".join)
)
def test_any_word_is_a_mutation_or_one_sentence(word: str) -> None:
    for chains in (CHAIN, COMPLEX):
        try:
            found = read_mutant(chains, word)
        except InputError as error:
            assert "\n" not in str(error)
        else:
            # Its name has a chain, a residue and both letters for each change.
            assert read_mutant(chains, found.name) == found
        with suppress(InputError):
            mutants_at(chains, (word,), "A")
