"""A benchmark's data are found beside its table and in directories, and what is missing is named."""

import shutil
from datetime import date
from pathlib import Path

import pytest

from data_pipeline.features.complexes.complex_input import ComplexInput
from data_pipeline.io.errors import InputError
from data_pipeline.parse.structures import read_structure
from helixfold.apps.evaluate.benchmark_data import Benchmark, find_data
from helixfold.apps.evaluate.benchmark_table import TARGET_LISTS, read_benchmark
from tests.apps.score.structure_files import write

EXAMPLES = Path(__file__).parents[3] / "examples" / "structures"
SEQUENCE = "MKTAYIAKQR"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    directory.mkdir()
    return directory


def found(tmp_path: Path, text: str, *data: Path) -> Benchmark:
    table = tmp_path / "table.tsv"
    table.write_text(text)
    return find_data(read_benchmark(str(table)), data)


def test_files_are_beside_the_table_or_in_directories(tmp_path: Path, data: Path) -> None:
    shutil.copy(EXAMPLES / "meander.pdb", tmp_path / "beside.pdb")
    shutil.copy(EXAMPLES / "meander.pdb", data / "elsewhere.pdb")
    (data / "one.a3m").write_text(f">one\n{SEQUENCE}\n")
    text = "id\tsequence\treferences\tmsa\tdate\none\tMKTAYIAKQR\tbeside.pdb;elsewhere\tone.a3m\t2020-05-14\n"
    (target,) = found(tmp_path, text, data).targets
    assert [file.path for file in target.references] == [tmp_path / "beside.pdb", data / "elsewhere.pdb"]
    assert target.target.alignments == (data / "one.a3m",)
    assert target.target.latest_template == date(2020, 5, 14)


def test_what_the_table_does_not_name_is_found_by_the_targets_name(tmp_path: Path, data: Path) -> None:
    for name in ("T1-D1.pdb", "T1-D2.pdb", "1abc.pdb"):
        shutil.copy(EXAMPLES / "meander.pdb", data / name)
    (data / "T1.a3m").write_text(f">T1\n{SEQUENCE}\n")
    fasta = tmp_path / "sequences.fasta"
    fasta.write_text(f">T1\n{SEQUENCE}\n")
    domains, chain = found(tmp_path, "id\nT1\n1abc_A\n", data, fasta).targets
    assert [file.name for file in domains.references] == ["T1-D1", "T1-D2"]
    assert domains.target.sequence == SEQUENCE
    assert domains.target.alignments == (data / "T1.a3m",)
    # Of one known structure, the sequence is its own.
    assert chain.target.sequence == read_structure(EXAMPLES / "meander.pdb").chains[0].sequence


def test_the_sequence_of_a_known_structure_is_that_of_the_chain_in_the_targets_name(tmp_path: Path, data: Path) -> None:
    write(data / "2xyz.pdb", SEQUENCE, SEQUENCE[::-1])
    first, second = found(tmp_path, "id\n2xyz_A\n2xyz_B\n", data).targets
    assert (first.target.sequence, second.target.sequence) == (SEQUENCE, SEQUENCE[::-1])
    with pytest.raises(InputError, match=r"its sequence was not found, and 2xyz\.pdb has 2 chains, none of them C"):
        found(tmp_path, "id\n2xyz_C\n", data)


def test_a_known_structure_of_several_chains_is_a_complex(tmp_path: Path, data: Path) -> None:
    write(data / "2xyz-assembly1.pdb", SEQUENCE, SEQUENCE[::-1], SEQUENCE)
    (only,) = found(tmp_path, "id\tdate\n2xyz\t2021-09-30\n", data).targets
    assert isinstance(only.target, ComplexInput)
    assert only.target.target.sequences == (SEQUENCE, SEQUENCE[::-1], SEQUENCE)
    assert only.target.latest_template == date(2021, 9, 30)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("one\tMKT\tnowhere.pdb\t", "the known structure nowhere.pdb was not found"),
        ("one\tMKT\tmeander\tnowhere.a3m", "no file nowhere.a3m"),
        ("one\tMKT\t\t", "no known structure has its name"),
        ("one\t\tmeander;polyproline\t", "its sequence was not found"),
    ],
)
def test_missing_data_of_a_table_are_one_sentence(row: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        found(tmp_path, f"id\tsequence\treferences\tmsa\n{row}\n", EXAMPLES)
    assert words in str(caught.value)
    assert "line 2, record 'one'" in str(caught.value)


def test_targets_of_a_list_without_data_are_left_out_and_named(data: Path) -> None:
    for name in ("T1024-D1", "T1031-D1"):
        shutil.copy(EXAMPLES / "meander.pdb", data / f"{name}.pdb")
    benchmark = find_data(read_benchmark("casp14"), [data])
    # A domain does not have the whole sequence of T1024.
    assert [each.target.name for each in benchmark.targets] == ["T1031"]
    assert "sequence was not found" in benchmark.missing["T1024-D1"]
    fasta = data / "T1024.fasta"
    fasta.write_text(f">T1024\n{SEQUENCE}\n")
    benchmark = find_data(read_benchmark("casp14"), [data])
    assert [each.target.name for each in benchmark.targets] == ["T1024", "T1031"]
    assert "T1024-D1" not in benchmark.missing
    assert len(benchmark.missing) == 87 - 2


def test_a_list_without_any_data_is_one_sentence(data: Path) -> None:
    for name in TARGET_LISTS:
        with pytest.raises(InputError, match=f"no data were found for any of the .* targets of {name}"):
            find_data(read_benchmark(name), [data])
