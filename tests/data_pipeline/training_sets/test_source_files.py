"""Structures and alignments are found where the PDB, OpenProteinSet and OpenFold put them."""

from pathlib import Path

import pytest

from data_pipeline.io.errors import InputError
from data_pipeline.training_sets.source_files import (
    AlignmentDirectory,
    find_structures,
    read_chain_names,
    read_duplicates,
    search_results,
)


def touch(directory: Path, *names: str) -> None:
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).touch()


def test_structures_are_found_flat_and_divided(tmp_path: Path) -> None:
    touch(tmp_path, "1abc.cif", "ab/2abc.cif.gz", "ab/pdb3abc.ent.gz", "x.PDB", "notes.txt", "ab/1abc.cif.bak")
    found = [str(path.relative_to(tmp_path)) for path in find_structures(tmp_path)]
    assert found == ["1abc.cif", "ab/2abc.cif.gz", "ab/pdb3abc.ent.gz", "x.PDB"]


def test_a_directory_without_structures_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there are no structure files"):
        find_structures(tmp_path)
    with pytest.raises(InputError, match="cannot be listed: No such file"):
        find_structures(tmp_path / "none")


def test_alignments_are_merged_in_alphafolds_order_with_its_limits(tmp_path: Path) -> None:
    touch(
        tmp_path,
        *("1abc_A/a3m/uniclust30.a3m", "1abc_A/a3m/mgnify_hits.a3m", "1abc_A/a3m/bfd_uniclust_hits.a3m"),
        *("1abc_A/a3m/uniref90_hits.a3m.gz", "1abc_A/hhr/pdb70_hits.hhr", "1abc_A/a3m/own.sto"),
        *("1abc_A/uniprot_hits.sto", "1abc_A/notes.txt"),
    )
    results = search_results(tmp_path / "1abc_A")
    assert [(file.path.name, file.max_rows) for file in results.alignments] == [
        ("uniref90_hits.a3m.gz", 10_000),
        ("bfd_uniclust_hits.a3m", None),
        ("uniclust30.a3m", None),
        ("mgnify_hits.a3m", 501),
        ("own.sto", None),
    ]
    assert results.template_hits == tmp_path / "1abc_A/hhr/pdb70_hits.hhr"


def test_flat_directories_and_hmmsearch_hits_are_read(tmp_path: Path) -> None:
    touch(tmp_path, "1abc_A/uniref90_hits.sto", "1abc_A/small_bfd_hits.sto", "1abc_A/hmm_output.sto")
    results = search_results(tmp_path / "1abc_A")
    assert [file.path.name for file in results.alignments] == ["uniref90_hits.sto", "small_bfd_hits.sto"]
    assert results.template_hits == tmp_path / "1abc_A/hmm_output.sto"


def test_a_chain_finds_its_own_directory_or_that_of_a_duplicate(tmp_path: Path) -> None:
    touch(tmp_path, "1abc_A/a.a3m", "2XYZ_b/b.a3m", "file")
    (tmp_path / "duplicates.txt").write_text("3def_C 1abc_A\n4ghi_D 5jkl_E\n\n")
    directory = AlignmentDirectory(tmp_path, read_duplicates(tmp_path / "duplicates.txt"))
    for chain, file in (("1abc_A", "1abc_A/a.a3m"), ("2xyz_b", "2XYZ_b/b.a3m"), ("3def_C", "1abc_A/a.a3m")):
        results = directory.find(chain)
        assert results is not None
        assert [found.path for found in results.alignments] == [tmp_path / file]
    for chain in ("2xyz_B", "4ghi_D", "file", "..", ""):
        assert directory.find(chain) is None


def test_wrong_directories_and_lists_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there are no directories; each chain has one"):
        AlignmentDirectory(tmp_path)
    with pytest.raises(InputError, match="cannot be listed"):
        AlignmentDirectory(tmp_path / "none")
    (tmp_path / "duplicates.txt").write_text("a b\nc a\n")
    with pytest.raises(InputError, match="line 2: 'a' is also in an earlier line"):
        read_duplicates(tmp_path / "duplicates.txt")


def test_names_of_chains_are_one_on_each_line(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text(" 1abc_A \n\n2abc_B\r\n1abc_A\n")
    assert read_chain_names(tmp_path / "names.txt") == {"1abc_A", "2abc_B"}
    (tmp_path / "names.txt").write_text("\n \n")
    with pytest.raises(InputError, match=r"names\.txt: it names no chain; put one name on each line"):
        read_chain_names(tmp_path / "names.txt")
