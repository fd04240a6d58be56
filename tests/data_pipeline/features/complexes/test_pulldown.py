"""Baits and preys, or a table of them, name the complexes of a pulldown."""

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.features.complexes import pulldown
from data_pipeline.features.complexes.pulldown import PulldownComplex, read_pulldown
from data_pipeline.io.errors import InputError

BAITS = ">p53\nMKV\n>sp|P1|HEAVY_HUMAN light's partner\nACDE\n>light\nGHI\n"
PREYS = ">x\nWWW\n>p53\nMKV\n>light\nYYY\n"


class Files:
    """The files of a pulldown in a directory."""

    def __init__(self, directory: Path, baits: str = BAITS, preys: str = PREYS) -> None:
        self.baits, self.preys, self.table = (directory / name for name in ("baits.fasta", "preys.fasta", "table.csv"))
        self.baits.write_text(baits)
        self.preys.write_text(preys)

    def read(self, table: str | None = None) -> list[PulldownComplex]:
        if table is None:
            return read_pulldown(self.baits, self.preys)
        self.table.write_text(table)
        return read_pulldown(self.baits, self.preys, self.table)


def test_each_bait_is_paired_with_each_prey_once(tmp_path: Path) -> None:
    found = Files(tmp_path).read()
    assert [(each.proteins, each.target.sequences) for each in found] == [
        (("p53", "x"), ("MKV", "WWW")),
        (("p53", "p53"), ("MKV", "MKV")),
        (("p53", "light"), ("MKV", "YYY")),
        (("sp|P1|HEAVY_HUMAN", "x"), ("ACDE", "WWW")),
        (("sp|P1|HEAVY_HUMAN", "p53"), ("ACDE", "MKV")),
        (("sp|P1|HEAVY_HUMAN", "light"), ("ACDE", "YYY")),
        (("light", "x"), ("GHI", "WWW")),
        (("light", "p53"), ("GHI", "MKV")),
        (("light", "light"), ("GHI", "YYY")),
    ]
    assert found[3].name == "sp|P1|HEAVY_HUMAN__x"
    assert {each.baits for each in found} == {1}


def test_a_file_with_itself_gives_each_pair_once(tmp_path: Path) -> None:
    found = Files(tmp_path, preys=BAITS.split("\n", 2)[2]).read()
    assert [each.proteins for each in Files(tmp_path, baits=PREYS).read()] == [
        ("x", "x"), ("x", "p53"), ("x", "light"), ("p53", "p53"), ("p53", "light"), ("light", "light")
    ]  # fmt: skip
    assert len(found) == 6 - 1


def test_a_table_names_stoichiometries(tmp_path: Path) -> None:
    table = "id,bait,prey\nantibody,sp|P1|HEAVY_HUMAN:light*2,x*3\n,light,x\n"
    first, second = Files(tmp_path).read(table)
    assert (first.name, first.baits, first.target.sequences) == (
        "antibody",
        3,
        ("ACDE", "GHI", "GHI", "WWW", "WWW", "WWW"),
    )
    assert first.proteins == ("sp|P1|HEAVY_HUMAN", "light", "light", "x", "x", "x")
    assert (second.name, second.target.chain_ids) == ("light__x", ("A", "B"))
    files = Files(tmp_path)
    path = tmp_path / "table.tsv.gz"
    path.write_bytes(gzip.compress(b"prey\tbait\nx\tlight\n"))
    assert [each.proteins for each in read_pulldown(files.baits, files.preys, path)] == [("light", "x")]


def test_a_name_with_a_star_is_found_as_it_is(tmp_path: Path) -> None:
    (found,) = Files(tmp_path, baits=">A*2\nMKV\n").read("bait,prey\nA*2,x\n")
    assert found.target.sequences == ("MKV", "WWW")


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("bait,prey\nlight,y\n", "line 2: there is no prey 'y'; use the names of records in the FASTA file"),
        ("bait,prey\nx,light\n", "line 2: there is no bait 'x'"),
        ("bait,prey\nlight,\n", "there is no prey ''"),
        ("bait,prey\nlight:,x\n", "there is no bait ''"),
        ("bait,prey\nlight*0,x\n", r"'light\*0' has no valid number of copies; write light\*2, from 1 to 100"),
        ("bait,prey\nlight*,x\n", "has no valid number of copies"),
        ("bait,prey\nlight*2*2,x\n", "has no valid number of copies"),
        ("bait,prey\nlight*²,x\n", "has no valid number of copies"),
        ("bait,prey\n", "the table has no complexes; write a bait and a prey in each line"),
        ("bait,pray\n", "the first line must name the columns 'bait' and 'prey'"),
        ("id,bait,prey\na,light,x\nA,p53,x\n", "line 3, record 'A': an earlier complex is named 'a'; name them"),
        (
            "id,bait,prey\n../a,light,x\n",
            r"record '\.\./a': the name contains '\.\.', which could lead to another directory",
        ),
    ],
)
def test_a_wrong_table_is_one_sentence(tmp_path: Path, table: str, problem: str) -> None:
    with pytest.raises(InputError, match=rf"table\.csv.*{problem}") as caught:
        Files(tmp_path).read(table)
    assert "\n" not in str(caught.value)


def test_names_that_are_one_directory_and_too_many_pairs_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files(tmp_path, baits=">a\nMKV\n>a__b\nMKA\n", preys=">b__c\nWWW\n>c\nWWV\n")
    with pytest.raises(InputError, match=r"preys\.fasta, record 'a__b__c': an earlier complex is named 'a__b__c'"):
        files.read()
    monkeypatch.setattr(pulldown, "MAX_COMPLEXES", 3)
    with pytest.raises(InputError, match="4 pairs with the baits; the maximum is 3"):
        files.read()
    with pytest.raises(InputError, match="line 5: there are more than 3 complexes"):
        files.read("bait,prey\n" + "a,c\n" * 4)


@given(st.text(alphabet='light:*0123p5x, \n"', max_size=40))
def test_any_table_is_complexes_or_one_sentence(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    files = Files(tmp_path_factory.mktemp("pulldown"))
    try:
        found = files.read("bait,prey\n" + text)
    except InputError as error:
        assert all(line.isprintable() for line in str(error).split("\n"))
        return
    assert all(0 < each.baits < len(each.proteins) == len(each.target.sequences) for each in found)
