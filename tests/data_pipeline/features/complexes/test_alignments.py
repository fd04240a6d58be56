"""Alignments of complexes are divided among the chains, or refused in one sentence."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import config

from data_pipeline.features.complexes.alignments import EntityAlignment, chains_of
from data_pipeline.features.complexes.colabfold_a3m import complex_a3m_from_lines, is_complex_header, read_complex_a3m
from data_pipeline.features.complexes.feature_set import ComplexFeatureSet
from data_pipeline.features.complexes.target import ComplexTarget
from data_pipeline.io.errors import InputError
from data_pipeline.parse.a3m import parse_a3m

HETERODIMER = (
    b"#4,3\t1,2\n>101\t102\nACDEGGG\n>x\ty\nAC-EaG-G\n>101\nACDE---\n>u\nA--E---\n>102\n----GGG\n>v\n-----GG\n"
)


def test_rows_with_residues_of_several_chains_are_paired() -> None:
    alignment = complex_a3m_from_lines(iter(HETERODIMER.split(b"\n")), path="x")
    first, second = alignment.entities
    assert (first.sequence, second.sequence, alignment.copies) == ("ACDE", "GGG", (1, 2))
    assert first.paired is not None
    assert second.paired is not None
    assert first.unpaired is not None
    assert second.unpaired is not None
    assert [row.tobytes() for row in first.paired.letters] == [b"ACDE", b"AC-E"]
    assert [row.tobytes() for row in second.paired.letters] == [b"GGG", b"G-G"]
    assert second.paired.deletion_matrix.tolist() == [[0, 0, 0], [1, 0, 0]]
    assert [row.tobytes() for row in first.unpaired.letters] == [b"ACDE", b"A--E"]
    assert [row.tobytes() for row in second.unpaired.letters] == [b"GGG", b"-GG"]
    assert alignment.target("x").sequences == ("ACDE", "GGG", "GGG")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"#4,3\t1\n>q\nACDEGGG\n", "line 1: got 2 lengths and 1 numbers of copies"),
        (b"#4,0\t1,1\n>q\nACDE\n", "line 1: a sequence has length 0; the length must"),
        (b"#4,3\t1,0\n>q\nACDEGGG\n", "line 1: a sequence has 0 copies"),
        (b"#1\t99999\n>q\nA\n", "line 1: got 99,999 chains"),
        (b"#99999\t2\n>q\nA\n", "line 1: the chains have 199,998 residues"),
        (b"#4,3\t1,1\n>q\nACDEGG\n", "line 2, record 'q': the sequences have 4+3 = 7"),
        (b"#3,3\t1,1\n>q\nACDACD\n", "line 1: two of the sequences are equal"),
        (b">q\nACDE\n", "line 1: the first line must be '#'"),
        (b"#4,3\t1,1\n", "there is no alignment row"),
        (b"", "line 1: the first line must be"),
    ],
)
def test_alignments_that_cannot_be_of_a_complex_are_refused(content: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "x.a3m"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        read_complex_a3m(path)
    assert problem in str(error.value)


@given(
    st.sampled_from([b"#4,3\t1,2", b"#7\t2"]),
    st.lists(
        st.sampled_from([b">x\nA--EG-G", b">y\n-C-aEG--", b">z\n----GGG", b">w", b"A", b"0", b"\0", b""]), max_size=4
    ),
)
def test_any_rows_give_alignments_of_the_first_lines_chains_or_one_error(first: bytes, others: list[bytes]) -> None:
    lines = [first, *b"\n".join([b">q\nACDEGGG", *others]).split(b"\n")]
    try:
        alignment = complex_a3m_from_lines(iter(lines), path="x")
    except InputError as error:
        assert str(error).startswith("x")
    else:
        expected = (("ACDE", "GGG"), (1, 2)) if first == b"#4,3\t1,2" else (("ACDEGGG",), (2,))
        assert (tuple(each.sequence for each in alignment.entities), alignment.copies) == expected
        for each in alignment.entities:
            for rows in (each.paired, each.unpaired):
                assert rows is None or rows.letters.shape[1] == len(each.sequence)


def test_only_first_lines_of_several_chains_are_those_of_a_complex() -> None:
    assert is_complex_header(b"#4,3\t1,1")
    assert is_complex_header(b"#4\t2")
    assert not is_complex_header(b"#4\t1")
    assert not is_complex_header(b"# a comment")


def entity(sequence: str, **rows: str) -> EntityAlignment:
    """Alignments whose rows are written as words, the sequence itself first."""
    made = {
        kind: parse_a3m("".join(f">{name}\n{row}\n" for name, row in enumerate(text.split())).encode())
        for kind, text in rows.items()
    }
    return EntityAlignment(sequence=sequence, **made)


def test_a_mode_without_meaning_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "jaxtyping_disable", True)  # only tests check types
    with pytest.raises(InputError, match="the pair mode must be one of unpaired_paired, paired, unpaired, got 'all'"):
        entity("ACDE").in_mode("all")  # type: ignore[arg-type]


def test_missing_alignments_and_contradictions_are_refused() -> None:
    target = ComplexTarget.of("x", ("ACDE", "GGG"))
    with pytest.raises(InputError, match="there is no alignment for chain B of complex 'x'"):
        chains_of(target, [entity("ACDE")], "unpaired")
    with pytest.raises(InputError, match="has a species in its name"):
        chains_of(target, [entity("ACDE", uniprot="ACDE ACDD"), entity("GGG", uniprot="GGG GGA")], "paired")
    with pytest.raises(InputError, match="by a search cannot be combined"):
        entity("ACDE", uniprot="ACDE", paired="ACDE")
    with pytest.raises(InputError, match="chains have 2 and 1 paired rows"):
        ComplexFeatureSet.of(target, [entity("ACDE", paired="ACDE ACDD"), entity("GGG", paired="GGG")])
    with pytest.raises(InputError, match="only some chains have rows paired by a search"):
        ComplexFeatureSet.of(target, [entity("ACDE", paired="ACDE ACDD"), entity("GGG")])


def test_a_monomers_model_reads_chains_with_missing_residues_between() -> None:
    target = ComplexTarget.of("x", ("GGG", "ACDE", "GGG"))
    made = ComplexFeatureSet.of(target, [entity("ACDE", unpaired="ACDE AC-E"), entity("GGG", unpaired="GGG")])
    assert made.multimer.chain_names == ("A", "C", "B")
    gapped = made.residue_gap
    assert gapped.sequence == "GGGGGGACDE"
    assert gapped.residue_index.tolist() == [0, 1, 2, 203, 204, 205, 406, 407, 408, 409]
    assert made.multimer.asym_id.tolist() == [1] * 3 + [2] * 3 + [3] * 4
    letters = ["".join("ARNDCQEGHILKMFPSTWYVX-"[each] for each in row) for row in gapped.msa]
    # Rows of the complex, then of the chains: those of AC-E have gaps elsewhere.
    assert letters == ["GGGGGGACDE", "GGG-------", "---GGG----", "------ACDE", "------AC-E"]
    assert not np.any(gapped.deletion_matrix)
