"""A benchmark's table is read strictly, and the lists in the package have the targets that publications count."""

from datetime import date
from pathlib import Path

import pytest

from data_pipeline.io.errors import InputError
from helixfold.apps.evaluate.benchmark_table import TARGET_LISTS, read_benchmark

HEADER = "id\tsequence\treferences\tmsa\ttemplates\tdate\n"


def test_every_cell_of_a_row_is_read(tmp_path: Path) -> None:
    path = tmp_path / "table.tsv"
    path.write_text(HEADER + "one\tmkt ay\ta.pdb; b.cif.gz\tone.a3m\tx.cif\t2020-05-14\n\ntwo\t\t\t\t\t\n")
    first, second = read_benchmark(str(path)).rows
    assert (first.name, first.sequence, first.references) == ("one", "MKTAY", ("a.pdb", "b.cif.gz"))
    assert (first.alignments, first.templates) == (("one.a3m",), ("x.cif",))
    assert first.latest_template == date(2020, 5, 14)
    assert (second.sequence, second.references, second.latest_template, second.line) == ("", (), None, 4)


def test_a_table_with_commas_needs_only_names(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("id\none\ntwo\n")
    assert [row.name for row in read_benchmark(str(path)).rows] == ["one", "two"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name\tsequence\n", "must name the columns 'id'"),
        ("id\tyear\none\t1\n", "unknown column 'year'"),
        (HEADER + "one\tMKT1\t\t\t\t\n", "line 2, record 'one': residue 4"),
        (HEADER + "../one\tMKT\t\t\t\t\n", "could lead to another directory"),
        (HEADER + "one\tMKT\t\t\t\tMay\n", "line 2, record 'one': the date must be"),
        (HEADER + "one\tMKT\t\t\t\t\none\tMKT\t\t\t\t\n", "line 3, record 'one': the same name as in line 2"),
        (HEADER + "one\tMKT\n", "the row has 2 cells, but the first line has 6 columns"),
        (HEADER, "it has no targets"),
    ],
)
def test_a_wrong_table_is_one_sentence(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "table.tsv"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_benchmark(str(path))
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_name_that_is_no_table_shows_the_lists() -> None:
    with pytest.raises(InputError, match="casp14, casp15, cameo_2021, cameo_2022"):
        read_benchmark("casp41")


def test_lists_have_as_many_structures_as_the_publications_or_say_why_not() -> None:
    found = {name: read_benchmark(name) for name in TARGET_LISTS}
    counts = {name: table.structures for name, table in found.items()}
    assert counts == {"casp14": 87, "casp15": 96, "cameo_2021": 372, "cameo_2022": 60, "pdb_2022_2025": 1000}
    assert {name: each.count for name, each in TARGET_LISTS.items()} == {**counts, "cameo_2021": 371}
    assert "372" in TARGET_LISTS["cameo_2021"].origin
    days = {name: {row.latest_template for row in table.rows} for name, table in found.items()}
    assert days["casp14"] == {date(2020, 5, 14)}
    assert (min(days["cameo_2021"]), max(days["cameo_2021"])) == (date(2021, 9, 4), date(2022, 2, 19))  # type: ignore[type-var]
    assert {day.month for day in days["cameo_2022"] if day is not None} == {8}


def test_published_means_are_the_papers() -> None:
    casp, cameo = TARGET_LISTS["casp14"].published, TARGET_LISTS["cameo_2021"].published
    assert [(each.tm_score, each.lddt) for each in (casp[0], cameo[0])] == [(0.8771, 0.7932), (0.8885, 0.8344)]
    # AlphaFold's lDDT is 0.9 and 1.5 points higher.
    for found, higher in ((casp, 0.009), (cameo, 0.015)):
        assert found[0].lddt is not None
        assert found[1].lddt == pytest.approx(found[0].lddt + higher)
