"""Alignments of a complex are found in directories that AlphaFold filled, each in its place."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.features.complexes.alignment_files import with_alignments
from data_pipeline.features.complexes.alignments import EntityAlignment
from data_pipeline.features.complexes.complex_input import ComplexInput
from data_pipeline.features.complexes.feature_set import ComplexFeatureSet
from data_pipeline.features.complexes.pipeline import prepare_complex
from data_pipeline.features.complexes.target import ComplexTarget
from data_pipeline.features.complexes.target_files import with_search_files
from data_pipeline.io.errors import InputError
from data_pipeline.parse.a3m import parse_a3m
from data_pipeline.pipeline import Target, prepare

A, B = "MKTAYIAK", "GSHMAEQL"
TARGET = ComplexTarget.of("it", (A, B, A))
# In the order in which AlphaFold merges them, which is neither that of their names nor that in which they are written.
MERGED = ("uniref90_hits.sto", "small_bfd_hits.sto", "mgnify_hits.sto")


def sto(rows: Iterable[tuple[str, str]]) -> str:
    return "# STOCKHOLM 1.0\n" + "".join(f"{name} {row}\n" for name, row in rows) + "//\n"


def row_of(sequence: str, place: int) -> str:
    return sequence[:place] + "W" + sequence[place + 1 :]


def fill(directory: Path, sequence: str) -> None:
    """Results of searches for a sequence: a row of each database, and two species in UniProt."""
    directory.mkdir(parents=True)
    for place, name in enumerate(reversed(MERGED)):
        (directory / name).write_text(sto([("query", sequence), (f"row{place}", row_of(sequence, 2 - place))]))
    species = [(f"tr|A0A00{place:05d}|A0A00{place:05d}_SPEC{place}", row_of(sequence, 4 + place)) for place in (0, 1)]
    (directory / "uniprot_hits.sto").write_text(sto([("query", sequence), *species]))
    (directory / "pdb_hits.sto").write_text(sto([("1abc_A", "-" * 8)]))
    (directory / "log.txt").write_text("no alignment")


def expected() -> ComplexFeatureSet:
    def entity(sequence: str) -> EntityAlignment:
        rows = "".join(f">row{place}\n{row_of(sequence, place)}\n" for place in range(3))
        pairs = "".join(f">tr|A0A00{n:05d}|A0A00{n:05d}_SPEC{n}\n{row_of(sequence, 4 + n)}\n" for n in (0, 1))
        unpaired, uniprot = (parse_a3m(f">q\n{sequence}\n{text}".encode(), sequence) for text in (rows, pairs))
        return EntityAlignment(sequence=sequence, unpaired=unpaired, uniprot=uniprot)

    return ComplexFeatureSet.of(TARGET, [entity(A), entity(B)])


@pytest.mark.parametrize(
    ("place", "only"), [("it/msas/{}", False), ("it/{}", False), ("msas/{}", True), ("{}", True), ("it/msas/{}", True)]
)
def test_results_of_alphafold_give_the_features_of_their_rows(place: str, only: bool, tmp_path: Path) -> None:
    for chain, sequence in (("A", A), ("B", B)):
        fill(tmp_path / place.format(chain), sequence)
    given = with_alignments(ComplexInput(target=TARGET), [tmp_path], only=only)
    assert [path.name for path in given.files[0].unpaired] == list(MERGED)
    assert [path.parent.name for path in given.paired_alignments] == ["A", "B"]
    found = prepare_complex(given).features
    assert found.multimer.paired_rows == 3
    for name in ("msa", "deletion_matrix", "bert_mask"):
        np.testing.assert_array_equal(getattr(found.multimer, name), getattr(expected().multimer, name), err_msg=name)


@pytest.mark.parametrize(
    ("place", "only"),
    [("it/msas", False), ("it/msas/A", False), ("it", False), ("msas", True), ("msas/A", True), ("", True)],
)
def test_results_of_alphafold_are_read_for_a_single_chain(place: str, only: bool, tmp_path: Path) -> None:
    directory = tmp_path / "alignments"
    fill(directory / place, A)
    (directory / place / "bfd_uniref_hits.a3m").write_text(f">q\n{A}\n>row\n{row_of(A, 6)}\n")
    targets = [Target(name="it", sequence=A)]
    if not only:
        fill(directory / "two/msas", B)
        targets.append(Target(name="two", sequence=B))
    one = with_search_files(targets, [directory], ())[0]
    assert [path.name for path in one.alignments] == [MERGED[0], "bfd_uniref_hits.a3m", *MERGED[1:]]
    expected = [row_of(A, place) for place in (0, 6, 1, 2)]
    rows = prepare(one).features.msa
    assert ["".join("ARNDCQEGHILKMFPSTWYVX-"[each] for each in row) for row in rows] == [A, *expected]


def test_a_directory_without_results_for_a_single_chain_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "it/msas").mkdir(parents=True)
    (tmp_path / "it/msas/pdb_hits.sto").write_text(sto([("1abc_A", "-" * 8)]))
    (tmp_path / "other.a3m").write_text(f">q\n{B}\n")
    with pytest.raises(InputError, match=r"no it\.a3m for target 'it' .* no it/msas with AlphaFold's results"):
        with_search_files([Target(name="it", sequence=A)], [tmp_path], ())


def test_a_chain_without_results_and_results_for_another_are_named(tmp_path: Path) -> None:
    fill(tmp_path / "it/msas/A", A)
    with pytest.raises(InputError, match=r"it/B\.a3m for chain B of complex 'it' .* no it/msas/B with AlphaFold's"):
        with_alignments(ComplexInput(target=TARGET), [tmp_path], only=True)
    fill(tmp_path / "it/msas/B", A)
    with pytest.raises(InputError, match=r"B/uniref90_hits\.sto"):
        with_alignments(ComplexInput(target=TARGET), [tmp_path], only=True)


def test_directories_of_several_targets_are_theirs_alone(tmp_path: Path) -> None:
    for chain, sequence in (("A", A), ("B", B)):
        fill(tmp_path / "msas" / chain, sequence)
    with pytest.raises(InputError, match="for chain A of complex 'it'"):
        with_alignments(ComplexInput(target=TARGET), [tmp_path], only=False)


def test_pairs_of_a_search_come_before_rows_of_uniprot(tmp_path: Path) -> None:
    for chain, sequence in (("A", A), ("B", B)):
        fill(tmp_path / chain, sequence)
        (tmp_path / chain / "paired_hits.a3m").write_text(f">q\n{sequence}\n>pair\n{row_of(sequence, 7)}\n")
    given = with_alignments(ComplexInput(target=TARGET), [tmp_path], only=True)
    assert [path.name for path in given.paired_alignments] == ["paired_hits.a3m"] * 2
    assert prepare_complex(given).features.multimer.paired_rows == 2


def test_alignments_of_several_files_and_directories_are_added(tmp_path: Path) -> None:
    """A chain has the rows of all its files, in file order; paired rows come from the last file."""
    (tmp_path / "results").mkdir()
    for number, (chain, sequence) in enumerate((("A", A), ("A", A), ("B", B), ("A", A))):
        (tmp_path / f"{number}.a3m").write_text(f">q\n{sequence}\n>row\n{row_of(sequence, number)}\n")
        (tmp_path / f"{number}.paired.a3m").write_text(f">q\n{sequence}\n>pair\n{row_of(sequence, number)}\n")
        if number > 1:
            fill(tmp_path / "results" / chain, sequence)
    files = [tmp_path / f"{number}.a3m" for number in range(4)]
    pairs = [tmp_path / f"{number}.paired.a3m" for number in (0, 2, 1)]
    given = with_alignments(
        ComplexInput(target=TARGET), [files[0], tmp_path / "results", *pairs, *files[1:]], only=True
    )
    names = [[path.name for path in each.unpaired] for each in given.files]
    assert names == [["0.a3m", *MERGED, "1.a3m", "3.a3m"], [*MERGED, "2.a3m"]]
    assert [each.paired.name for each in given.files if each.paired] == ["1.paired.a3m", "2.paired.a3m"]
    assert [each.uniprot for each in given.files] == [tmp_path / f"results/{chain}/uniprot_hits.sto" for chain in "AB"]
    (one,) = with_search_files([Target(name="it", sequence=A, alignments=(files[3],))], [files[0], files[1]], ())
    assert [path.name for path in one.alignments] == ["3.a3m", "0.a3m", "1.a3m"]
