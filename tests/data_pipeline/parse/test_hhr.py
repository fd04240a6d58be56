"""Template hits of hhsearch and hhblits are read as AlphaFold reads them; what is cut or edited is told."""

from pathlib import Path

import numpy as np
import pytest

from data_pipeline.io.errors import InputError
from data_pipeline.parse import template_hit
from data_pipeline.parse.template_hit import parse_hhr
from tests.data_pipeline.parse.hhr_files import read_hhr
from tests.data_pipeline.parse.seeds import HHR


def test_rows_are_joined_over_blocks_and_every_residue_has_its_index() -> None:
    first, second = parse_hhr(HHR)
    assert (first.index, first.name, first.aligned_columns, first.sum_probs) == (
        1,
        "1ABC_A PROTEIN; 1.5A {MUS}",
        7,
        5.1,
    )
    assert (first.query, first.hit_sequence) == ("CD-EFGHI", "ISAHHAKE")
    np.testing.assert_array_equal(first.indices_query, [1, 2, -1, 3, 4, 5, 6, 7])
    np.testing.assert_array_equal(first.indices_hit, [32, 33, 34, 35, 36, 37, 38, 39])
    assert (second.index, second.query, second.hit_sequence) == (2, "ACDE", "MCEE")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"\n", b"\r\n"),
        (b"  Template_Neff=4.500", b""),  # hh-suite 2
        (b"No 1", b"No 1  "),
        (b"T ss_dssp", b"T ss_conf"),
        (b"Done!\n", b""),
    ],
)
def test_harmless_variants_read_the_same(before: bytes, after: bytes) -> None:
    assert before in HHR
    assert [repr(hit) for hit in parse_hhr(HHR.replace(before, after))] == [repr(hit) for hit in parse_hhr(HHR)]


@pytest.mark.parametrize("cut", [b"No 1", b"  1 1ABC", b" No Hit"])
def test_a_file_without_hits_has_none(cut: bytes) -> None:
    assert parse_hhr(HHR[: HHR.index(cut)]) == ()


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (b"No 1", b"No x", "hhr, line 13: a hit must begin with 'No' and its number"),
        (b">1ABC", b"1ABC", "hhr, line 14, record 'No 1': expected '>' and the hit's name"),
        (b"Aligned_cols=7 ", b"", "hhr, line 15, record 'No 1': the line after a hit's name must have"),
        (b"Aligned_cols=7 ", b"Aligned_cols=7.5 ", "hhr, line 15, record 'No 1': the line after a hit's name must"),
        (b"Aligned_cols=7 ", b"Aligned_cols=1e999 ", "hhr, line 15, record 'No 1': the line after a hit's name"),
        (b"Sum_probs=5.1", b"Sum_probs=nan", "hhr, line 15, record 'No 1': the line after a hit's name must have"),
        (
            b"2 CD-EF",
            b"2 CD-Ef",
            "hhr, line 18, record 'No 1': an aligned row must have its first index, letters in upper case",
        ),
        (b"2 CD-EF ", b"3 CD-EF ", "hhr, line 18, record 'No 1': the row spans residues 3 to 5 but has 4"),
        (b"2 CD-EF    5", b"0 CD-EF    3", "hhr, line 18, record 'No 1': the row spans residues 0 to 3 but has 4"),
        (b"33 ISAHH   37", b"33 ISAH   36", "hhr, line 13, record 'No 1': the target's row has 8 columns, the hit's 7"),
        (b"33 ISAHH", b"9999999999999 ISAHH", "hhr, line 22, record 'No 1': an aligned row must have its first index"),
    ],
)
def test_bad_input_is_told_with_its_place(before: bytes, after: bytes, message: str) -> None:
    assert before in HHR
    with pytest.raises(InputError) as error:
        parse_hhr(HHR.replace(before, after, 1))
    assert str(error.value).startswith(message)
    assert str(error.value).isprintable()


@pytest.mark.parametrize("cut", [b"Probab=", b"Q query", b"T Consensus", b"33 ISAHH"])
def test_a_hit_that_is_cut_off_is_told(cut: bytes) -> None:
    with pytest.raises(InputError, match=r"record 'No 1': .*cut"):
        parse_hhr(HHR[: HHR.index(cut)])


@pytest.mark.parametrize("content", [b"", b"\n\n", b">q\nACD\n", b"\0" * 100])
def test_another_file_is_told(content: bytes) -> None:
    with pytest.raises(InputError, match=r"hhr, line 1: not an \.hhr file"):
        parse_hhr(content)


def test_more_than_the_limit_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_hit, "MAX_HHR_BYTES", 100)
    with pytest.raises(InputError, match="hhr: the text is longer than the maximum of 100 bytes"):
        parse_hhr(HHR)


@pytest.mark.parity
@pytest.mark.parametrize("version", ["dm200", "v23"])
def test_real_hits_equal_alphafolds_parser(version: str, real_data: Path, reference: Path) -> None:
    hits = read_hhr(real_data / "templates" / "openfold__test_data__pdb70_hits.hhr.gz")
    with np.load(reference / "pipeline" / f"{version}_hhr.npz") as alphafold:
        assert len(hits) == len({name.partition("/")[0] for name in alphafold})
        for number, hit in enumerate(hits):
            theirs = {name.partition("/")[2]: alphafold[name] for name in alphafold if name.startswith(f"{number:02}/")}
            assert (hit.index, hit.name, hit.aligned_columns) == (
                int(theirs["index"]),
                str(theirs["name"]),
                int(theirs["aligned_cols"]),
            )
            assert hit.sum_probs == float(theirs["sum_probs"])
            assert (hit.query, hit.hit_sequence) == (str(theirs["query"]), str(theirs["hit_sequence"]))
            np.testing.assert_array_equal(hit.indices_query, theirs["indices_query"])
            np.testing.assert_array_equal(hit.indices_hit, theirs["indices_hit"])


def test_real_files_are_all_read(real_data: Path) -> None:
    counts = {path.name: len(read_hhr(path)) for path in (real_data / "templates").glob("*.hhr.gz")}
    without = {name for name, count in counts.items() if not count}
    assert without == {f"biopython__HHsuite__2uvo_hhblits_{kind}.hhr.gz" for kind in ("emptytable", "onlyheader")}
    assert sum(counts.values()) > 4000
