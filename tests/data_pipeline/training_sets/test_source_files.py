"""Structures and alignments are found where the PDB, OpenProteinSet and OpenFold put them."""

import json
import pickle
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
    (tmp_path / "1abc.cif.gz").touch()
    with pytest.raises(InputError, match=r"1abc\.cif\.gz: is a file; pass a directory of structures"):
        find_structures(tmp_path / "1abc.cif.gz")


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
    with pytest.raises(InputError, match=r"names\.txt: the file has no chain names; write one name per line"):
        read_chain_names(tmp_path / "names.txt")


def write_database(directory: Path, chains: dict[str, dict[str, bytes]], name: str = "alignment_db_0") -> None:
    """Write chains as OpenFold's create_alignment_db.py does: files after one another, and where each one lies."""
    directory.mkdir(exist_ok=True)
    index: dict[str, list[list[object]]] = {}
    with (directory / f"{name}.db").open("wb") as file:
        for chain, files in chains.items():
            index[chain] = []
            for file_name, content in files.items():
                index[chain].append([file_name, file.tell(), len(content)])
                file.write(content)
    (directory / f"{name}.index").write_text(json.dumps(index))


def test_an_alignment_db_of_openfold_is_read_as_it_is(tmp_path: Path) -> None:
    database = tmp_path / "alignment_db"
    first = {"mgnify_hits.sto": b"# m", "uniref90_hits.sto": b"# uniref", "pdb70_hits.hhr": b"hits"}
    write_database(database, {"1abc_A": first, "2XYZ_b": {"bfd_uniclust_hits.a3m": b">x\nMK\n"}})
    write_database(database, {"3def_C": {"hits.a3m": b">y\nMV\n"}}, "alignment_db_1")
    for is_unified in (False, True):
        if is_unified:  # as unify_alignment_db_indices.py does
            files = {path: json.loads(path.read_text()) for path in sorted(database.glob("*.index"))}
            unified = {
                chain: {"db": f"{path.stem}.db", "files": listed}
                for path, index in files.items()
                for chain, listed in index.items()
            }
            for path in files:
                path.unlink()
            (database / "super.index").write_text(json.dumps(unified))
        directory = pickle.loads(pickle.dumps(AlignmentDirectory(database, {"4ghi_D": ("4ghi_D", "3def_C")})))
        found = directory.find("1abc_A")
        assert [(each.path.name, each.path.read_bytes(), each.max_rows) for each in found.alignments] == [
            ("uniref90_hits.sto", b"# uniref", 10_000),
            ("mgnify_hits.sto", b"# m", 501),
        ]
        assert found.template_hits.read_bytes() == b"hits"
        assert directory.find("2xyz_b").alignments[0].path.read_bytes() == b">x\nMK\n"
        assert directory.find("4ghi_D").alignments[0].path.read_bytes() == b">y\nMV\n"
        assert directory.find("9zzz_Z") is None


def test_a_damaged_alignment_db_is_one_sentence(tmp_path: Path) -> None:
    write_database(tmp_path, {"1abc_A": {"a.a3m": b">x\nMK\n"}})
    whole = (tmp_path / "alignment_db_0.db").read_bytes()
    (tmp_path / "alignment_db_0.db").write_bytes(whole[:-1])
    with pytest.raises(InputError, match=r"alignment_db_0\.db: ends before a\.a3m of '1abc_A' does; get it again"):
        AlignmentDirectory(tmp_path).find("1abc_A")
    for content in (
        [],
        {"1abc_A": 3},
        {"1abc_A": [["../x", 0, 1]]},
        {"1abc_A": [["x", -1, 1]]},
        {"1abc_A": {"db": "x"}},
    ):
        (tmp_path / "alignment_db_0.index").write_text(json.dumps(content))
        with pytest.raises(InputError, match=r"alignment_db_0\.index: not an index of files by chain; expected"):
            AlignmentDirectory(tmp_path)
