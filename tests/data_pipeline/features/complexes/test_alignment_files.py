"""Alignments of a complex are found by the names of files, and files that are named are known by their first rows."""

from pathlib import Path

import pytest

from data_pipeline.features.complexes.alignment_files import complex_of_a3m, is_complex_a3m, with_alignments
from data_pipeline.features.complexes.complex_input import ChainAlignmentFiles, ComplexInput
from data_pipeline.features.complexes.pipeline import PreparedComplex, prepare_any
from data_pipeline.features.complexes.target import ComplexTarget
from data_pipeline.io.errors import InputError
from data_pipeline.pipeline import PreparedTarget, Target

A, B = "MKTAYIAK", "GSHMAEQL"
GIVEN = ComplexInput(target=ComplexTarget.of("it", (A, B, A)))
WHOLE = f"#8,8\t2,1\n>101\t102\n{A}{B}\n>hit\n{A}{'-' * 8}\n"


def write(path: Path, sequence: str, rows: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f">q\n{sequence}\n" + f">row\n{sequence[::-1]}\n" * rows)
    return path


@pytest.mark.parametrize(("first", "second"), [("it_A", "it_B"), ("it/A", "it/B"), ("it_A", "it/B"), ("it_C", "it/B")])
def test_files_of_a_directory_are_named_after_any_chain_of_their_sequence(
    first: str, second: str, tmp_path: Path
) -> None:
    paths = [write(tmp_path / f"{first}.a3m", A), write(tmp_path / f"{second}.a3m", B)]
    pairs = [write(tmp_path / f"{first}.paired.a3m", A), write(tmp_path / f"{second}.paired.a3m", B)]
    write(tmp_path / "other_A.a3m", A)
    found = with_alignments(GIVEN, [tmp_path], only=False)
    assert found.files == tuple(
        ChainAlignmentFiles(unpaired=(path,), paired=pair) for path, pair in zip(paths, pairs, strict=True)
    )


def test_a_chain_may_have_paired_rows_alone(tmp_path: Path) -> None:
    pairs = [write(tmp_path / f"it_{chain}.paired.a3m", sequence) for chain, sequence in (("A", A), ("B", B))]
    found = with_alignments(GIVEN, [tmp_path], only=False)
    assert found.paired_alignments == tuple(pairs)
    assert found.alignments == ()


def test_names_that_no_directory_can_have_are_changed_as_results_are(tmp_path: Path) -> None:
    given = ComplexInput(target=ComplexTarget.of("a/b", (A, B)))
    paths = [write(tmp_path / f"a_b_{chain}.a3m", sequence) for chain, sequence in (("A", A), ("B", B))]
    assert with_alignments(given, [tmp_path], only=False).alignments == tuple(paths)


def test_results_for_the_only_sequence_of_a_complex_may_have_no_chain_in_their_path(tmp_path: Path) -> None:
    path = write(tmp_path / "it" / "msas" / "bfd_uniref_hits.a3m", A)
    given = ComplexInput(target=ComplexTarget.of("it", (A, A)))
    assert with_alignments(given, [tmp_path], only=False).files == (ChainAlignmentFiles(unpaired=(path,)),)
    with pytest.raises(InputError, match=r"no it_A\.a3m and no it/A\.a3m for chain A of complex 'it' in this dir"):
        with_alignments(GIVEN, [tmp_path], only=False)


def test_colabfolds_alignment_of_all_chains_is_known_by_its_first_line(tmp_path: Path) -> None:
    whole, single = tmp_path / "it.a3m", write(tmp_path / "single.a3m", A)
    whole.write_text(WHOLE)
    assert is_complex_a3m(whole)
    assert not is_complex_a3m(single)
    for msa in (whole, tmp_path):
        found = with_alignments(GIVEN, [msa], only=True)
        assert (found.a3m, found.files, found.alignments) == (whole, (), (whole,))
    both = with_alignments(GIVEN, [whole, single], only=True)
    assert both.alignments == (whole, single)
    # Without a sequence, the file itself names the chains; chains of one sequence are neighbours.
    read = complex_of_a3m(whole, "new", ["X", "Y", "Z"])
    assert (read.name, read.target.sequences, read.target.chain_ids) == ("new", (A, A, B), ("X", "Y", "Z"))
    assert read.a3m == whole
    for sequences in ((A, B), (A, A, A), (A, B, B)):
        other = ComplexInput(target=ComplexTarget.of("it", sequences))
        with pytest.raises(InputError, match=r"it\.a3m, line 1: the alignment is not for the chains of"):
            with_alignments(other, [whole], only=True)


def test_rows_of_more_files_follow_those_of_colabfolds_alignment(tmp_path: Path) -> None:
    whole, single = tmp_path / "it.a3m", write(tmp_path / "single.a3m", A)
    whole.write_text(f"{WHOLE}>pair\n{A[::-1]}{B[::-1]}\n")
    prepared = prepare_any(with_alignments(GIVEN, [whole, single], only=True))
    assert isinstance(prepared, PreparedComplex)
    features = prepared.features.multimer
    rows = ["".join("ARNDCQEGHILKMFPSTWYVX-"[kind] for kind in row) for row in features.msa]
    assert rows[: features.paired_rows] == [A + A + B, A[::-1] * 2 + B[::-1]]
    unpaired = [row for row in rows[features.paired_rows :] if set(row[:16]) != {"-"}]
    assert unpaired == [f"{row}{row}{'-' * 8}" for row in (A, A[::-1])]
    alone = prepare_any(Target(name="one", sequence=A, alignments=(single,)))
    assert isinstance(alone, PreparedTarget)
    assert alone.features.domain_name == "one"


def test_files_that_are_named_are_for_the_only_target(tmp_path: Path) -> None:
    path, stranger = write(tmp_path / "x.a3m", B), write(tmp_path / "y.a3m", "MMMM")
    with pytest.raises(InputError, match=r"x\.a3m: one alignment for several targets; pass --msa a directory with"):
        with_alignments(GIVEN, [path], only=False)
    with pytest.raises(InputError, match=r"y\.a3m: its first row is not a chain of complex 'it'"):
        with_alignments(GIVEN, [path, stranger], only=True)
    upper = write(tmp_path / "Z.PAIRED.A3M", B)
    with pytest.raises(InputError, match=r"Z\.PAIRED\.A3M: this chain has paired rows, but chain A has none"):
        with_alignments(GIVEN, [upper], only=True)
    fewer = [write(tmp_path / "a.paired.a3m", A, 2), write(tmp_path / "b.paired.a3m", B, 1)]
    with pytest.raises(InputError, match=r"b\.paired\.a3m: 2 paired rows, but .*a\.paired\.a3m has 3; pass the same"):
        with_alignments(GIVEN, fewer, only=True)


def test_the_sequences_of_a_complex_are_shown_with_equal_ones_as_neighbours() -> None:
    assert GIVEN.sequence == f"{A}:{A}:{B}"
