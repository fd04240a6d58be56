"""A training set holds the first assembly of each file: which chains stand where, and the rows that pair them."""

from pathlib import Path

import numpy as np
import pytest

from data_pipeline.features.pairing import PairingRows
from data_pipeline.io.errors import InputError
from data_pipeline.parse.assemblies import parse_assembly, read_assembly
from data_pipeline.residues import ATOM_ORDER, RESTYPES
from data_pipeline.training_sets import clustering
from data_pipeline.training_sets.assembly_record import (
    AssemblyEntry,
    AssemblyRecord,
    PlacedChain,
    labelled_complex,
    read_assemblies,
    write_assemblies,
)
from data_pipeline.training_sets.build import BuildOptions, BuildReport, build_store
from data_pipeline.training_sets.chains import ChainFilter
from data_pipeline.training_sets.record_builder import RecordBuilder
from data_pipeline.training_sets.source_files import AlignmentDirectory
from data_pipeline.training_sets.store import FeatureStore
from tests.data_pipeline.training_sets.assembly_files import OPERATORS, mmcif_of, write_mmcif

CA = ATOM_ORDER["CA"]
FIRST, SECOND = "MKTAYIAKQRW", "GSHMAEQLDV"
CHAINS = [("A", "H", FIRST), ("B", "L", SECOND)]


@pytest.fixture(autouse=True)
def _without_mmseqs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clustering, "find_mmseqs", lambda: None)


def build(root: Path, shard: int | None = None, **filtered: int) -> BuildReport:
    alignments = root / "alignments"
    builder = RecordBuilder(
        filter=ChainFilter(**filtered),
        alignments=AlignmentDirectory(alignments) if alignments.is_dir() else None,
        assemblies=True,
    )
    options = BuildOptions(structures=root / "structures", output=root / "store", shard=shard, shards=2)
    return build_store(options, builder)


def test_generators_are_read_as_chains_and_motions() -> None:
    found = parse_assembly(mmcif_of("1abc", CHAINS, [("1,2", "A"), ("1", "B,C")]).encode())
    assert [copy.chain for copy in found.copies] == ["H", "H", "L"]
    for copy, operator in zip(found.copies, "121", strict=True):
        np.testing.assert_array_equal(copy.rotation, OPERATORS[operator][0])
        np.testing.assert_array_equal(copy.translation, OPERATORS[operator][1])


def test_copies_differ_in_rotation_or_translation_and_the_same_one_counts_once() -> None:
    found = parse_assembly(mmcif_of("1abc", CHAINS, [("1,3,4", "A"), ("3,1,2", "A")]).encode())
    assert [copy.chain for copy in found.copies] == ["H"] * 4
    for copy, operator in zip(found.copies, "1342", strict=True):
        np.testing.assert_array_equal(copy.rotation, OPERATORS[operator][0])
        np.testing.assert_array_equal(copy.translation, OPERATORS[operator][1])


@pytest.mark.parametrize(
    ("assembly", "problem"),
    [((), "states no biological assembly"), ((("1", "C,D"),), "no polymer")],
)
def test_files_without_an_assembly_are_told(
    tmp_path: Path, assembly: tuple[tuple[str, str], ...], problem: str
) -> None:
    write_mmcif(tmp_path / "1abc.cif", CHAINS, assembly)
    assert problem in read_assembly(tmp_path / "1abc.cif").problem


def test_an_assembly_has_its_chains_where_they_stand(tmp_path: Path) -> None:
    write_mmcif(tmp_path / "structures/1abc.cif", CHAINS, [("1,4", "A,B")])
    report = build(tmp_path)
    assert (report.assemblies, report.skipped_assemblies, report.chains) == (1, {}, 2)
    store = FeatureStore.open(tmp_path / "store")
    (entry,) = store.assemblies
    assert entry.chains == ("1abc_H", "1abc_L", "1abc_H", "1abc_L")
    made = store.load_complex("1abc")
    assert made.features.chain_names == ("1abc_H", "1abc_H", "1abc_L", "1abc_L")
    assert made.features.sym_id.tolist() == [1] * 11 + [2] * 11 + [1] * 10 + [2] * 10
    for chain, name in enumerate(made.features.chain_names):
        rotation, shift = OPERATORS["14"[chain % 2]]
        _, alone = store.load(name)
        here = made.features.asym_id == chain + 1
        moved = [[rotation @ atom + shift for atom in residue] for residue in alone.all_atom_positions]
        expected = np.array(moved) * alone.all_atom_mask[..., None]
        np.testing.assert_allclose(made.labels.all_atom_positions[here], expected, atol=1e-4)
        np.testing.assert_array_equal(made.labels.all_atom_mask[here], alone.all_atom_mask)


def test_assemblies_of_all_shards_are_read(tmp_path: Path) -> None:
    chains = {"1abc": CHAINS, "2abc": CHAINS[:1], "2abd": CHAINS[::-1], "3abd": CHAINS[1:]}
    for seed, (name, some) in enumerate(chains.items()):
        labels = ",".join(label for label, *_ in some)
        write_mmcif(tmp_path / f"structures/{name}.cif", some, [("1", labels)], seed)
    assert [build(tmp_path, shard).assemblies for shard in (0, 1)] == [2, 2]
    store = FeatureStore.open(tmp_path / "store")
    assert sorted(entry.name for entry in store.assemblies) == sorted(chains)
    for name, some in chains.items():
        letters = "".join(sequence for *_, sequence in some)
        assert "".join(RESTYPES[kind] for kind in store.load_complex(name).features.aatype) == letters


def write_alignment(root: Path, chain: str, sequence: str, *rows: str, search: str = "uniprot_hits") -> None:
    path = root / f"alignments/1abc_{chain}/{search}.a3m"
    path.parent.mkdir(parents=True, exist_ok=True)
    named = (f">tr|A0A00000{n}|A0A00000{n}_SPEC{n}\n{row}\n" for n, row in enumerate(rows, start=1))
    path.write_text(f">query\n{sequence}\n{''.join(named)}")


def test_rows_of_species_are_paired(tmp_path: Path) -> None:
    write_mmcif(tmp_path / "structures/1abc.cif", CHAINS, [("1", "A,B")])
    write_alignment(tmp_path, "H", FIRST, "MKTAYIAKQRA", "MKTgwAYIAKQAA")
    write_alignment(tmp_path, "L", SECOND, "GSHMAEQhLDA", "GSHMAEQLAA")
    build(tmp_path)
    features = FeatureStore.open(tmp_path / "store").load_complex("1abc").features
    assert features.paired_rows == 3
    rows = ["".join(RESTYPES[kind] for kind in row) for row in features.msa[:3]]
    assert rows == [FIRST + SECOND, "MKTAYIAKQRAGSHMAEQLDA", "MKTAYIAKQAAGSHMAEQLAA"]
    # Residues that are deleted before a column are counted there.
    deletions = np.zeros((3, 21))
    deletions[1, 11 + 7], deletions[2, 3] = 1, 2
    np.testing.assert_array_equal(features.deletion_matrix[:3], deletions)


def test_chains_of_one_sequence_have_the_alignment_of_the_first_and_atoms_of_their_own(tmp_path: Path) -> None:
    chains = [("A", "H", FIRST), ("B", "L", FIRST)]
    write_mmcif(tmp_path / "structures/1abc.cif", chains, [("1", "B,A")])
    write_alignment(tmp_path, "H", FIRST, "MKTAYIAKQRA", search="uniref90_hits")
    write_alignment(tmp_path, "L", FIRST, "MKTAYIAKQAA", search="uniref90_hits")
    build(tmp_path)
    store = FeatureStore.open(tmp_path / "store")
    made = store.load_complex("1abc")
    assert made.features.chain_names == ("1abc_L", "1abc_H")
    assert ["".join(RESTYPES[kind] for kind in row) for row in made.features.msa] == [2 * FIRST, 2 * "MKTAYIAKQAA"]
    expected = [store.labels(name).all_atom_positions for name in ("1abc_L", "1abc_H")]
    np.testing.assert_array_equal(made.labels.all_atom_positions, np.concatenate(expected))
    assert np.abs(expected[0] - expected[1]).max() > 1


def test_assemblies_that_cannot_be_used_have_a_reason_and_chains_stay(tmp_path: Path) -> None:
    write_mmcif(tmp_path / "structures/1abc.cif", CHAINS)
    write_mmcif(tmp_path / "structures/2abc.cif", CHAINS, [("1", "A")])
    write_mmcif(tmp_path / "structures/3abc.cif", CHAINS, [("1", "B")])
    write_mmcif(tmp_path / "structures/4abc.cif", CHAINS, [("1", "A,B")])
    report = build(tmp_path, min_length=11)
    assert report.chains == 4
    assert {name: reason[:20] for name, reason in report.skipped_assemblies.items()} == {
        "1abc": "the file states no b",
        "3abc": "none of its assembly",
    }
    assert [entry.chains for entry in read_assemblies(tmp_path / "store")] == [("2abc_H",), ("4abc_H",)]
    assert (tmp_path / "store/skipped_assemblies.tsv").read_text().count("\n") == 3


def test_nothing_is_made_twice_and_stores_without_assemblies_stay_as_they_are(tmp_path: Path) -> None:
    write_mmcif(tmp_path / "structures/1abc.cif", CHAINS, [("1", "A,B")])
    plain = RecordBuilder(filter=ChainFilter())
    build_store(BuildOptions(structures=tmp_path / "structures", output=tmp_path / "store"), plain)
    assert FeatureStore.open(tmp_path / "store").assemblies == ()
    before = (tmp_path / "store/index.tsv").read_bytes()
    assert build(tmp_path).made == 0
    assert (tmp_path / "store/index.tsv").read_bytes() == before
    tables = [(tmp_path / "store" / name).read_bytes() for name in ("assemblies.tsv", "features.lmdb")]
    assert build(tmp_path).assemblies == 1
    assert [(tmp_path / "store" / name).read_bytes() for name in ("assemblies.tsv", "features.lmdb")] == tables


def test_a_record_has_what_was_packed(tmp_path: Path) -> None:
    rows = PairingRows(
        msa=np.array([[0, 19, 21], [20, 21, 7]], np.int8),
        deletion_matrix=np.array([[0, 0, 0], [300, 0, 2]], np.int32),
        species=("", "HUMAN"),
    )
    chains = (
        PlacedChain(name="1abc_A", motion=tuple(np.arange(12) / 3)),
        PlacedChain(name="1abc_A", motion=(0.0,) * 12),
    )
    record = AssemblyRecord(name="1abc", chains=chains, pairing={"1abc_A": rows}, problem="none")
    found = AssemblyRecord.unpack(record.pack())
    assert (found.name, found.chains, found.problem) == ("1abc", chains, "none")
    assert found.pairing["1abc_A"].species == rows.species
    np.testing.assert_array_equal(found.pairing["1abc_A"].msa, rows.msa)
    np.testing.assert_array_equal(found.pairing["1abc_A"].deletion_matrix, rows.deletion_matrix)
    with pytest.raises(InputError, match="assembly '1abc' has no chain of the training set"):
        labelled_complex(AssemblyRecord(name="1abc", pairing={}), {})


def test_tables_of_assemblies_are_read_as_written(tmp_path: Path) -> None:
    entries = tuple(AssemblyEntry(name=f"{n}abc", key=str(n) * 32, chains=(f"{n}abc_A",) * n) for n in (1, 2))
    write_assemblies(tmp_path, entries, {"z": "no\nchain", "a": "too large"})
    assert read_assemblies(tmp_path) == entries
    assert (tmp_path / "skipped_assemblies.tsv").read_text().splitlines()[1:] == ["a\ttoo large", "z\tno\\nchain"]
    write_assemblies(tmp_path, (entries[0], entries[0]), {})
    with pytest.raises(InputError, match=r"assemblies\.tsv, line 3: '1abc' is also in an earlier line"):
        read_assemblies(tmp_path)


def test_a_file_whose_chains_another_has_given_has_no_assembly(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write_mmcif(tmp_path / f"structures/{folder}/1abc.cif", CHAINS, [("1", "A,B")])
    write_mmcif(tmp_path / "structures/c/1abc-copy.cif", CHAINS, [("1", "A")])
    path = tmp_path / "structures/c/1abc-copy.cif"
    path.write_text(path.read_text().replace("1abc-copy", "1abc"))
    report = build(tmp_path)
    assert report.skipped_assemblies == {
        "1abc of b/1abc.cif": "another file has an assembly of this name already",
        "1abc-copy": "other files have chains of the same names",
    }
    assert report.refused["1abc_H of b/1abc.cif"] == "a/1abc.cif has a chain of this name already"


def test_assemblies_of_too_many_residues_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mmcif(tmp_path / "structures/1abc.cif", CHAINS, [("1,2", "A")])
    monkeypatch.setattr("data_pipeline.training_sets.build.MAX_ASSEMBLY_RESIDUES", 21)
    report = build(tmp_path)
    assert report.skipped_assemblies == {"1abc": "its assembly has 22 residues, and at most 21 are allowed"}
    monkeypatch.setattr("data_pipeline.training_sets.build.MAX_ASSEMBLY_RESIDUES", 22)
    write_mmcif(tmp_path / "structures/1abc.cif", CHAINS, [("1,2", "A")], 1)
    assert build(tmp_path).assemblies == 1


def test_missing_and_damaged_assemblies_of_a_store_are_named(tmp_path: Path) -> None:
    write_mmcif(tmp_path / "structures/1abc.cif", CHAINS, [("1", "A,B")])
    build(tmp_path)
    with pytest.raises(InputError, match=r"there is no assembly '2abc' in .*store"):
        FeatureStore.open(tmp_path / "store").load_complex("2abc")
    table = tmp_path / "store/assemblies.tsv"
    key = read_assemblies(tmp_path / "store")[0].key
    chain = FeatureStore.open(tmp_path / "store").entries[0].key
    for other, problem in (("0" * 32, "assembly '1abc' is not in it"), (chain, "assembly '1abc' is damaged")):
        content = table.read_text()
        table.write_text(content.replace(key, other))
        with pytest.raises(InputError, match=f"{problem}; run `helixfold features` again"):
            FeatureStore.open(tmp_path / "store").load_complex("1abc")
        table.write_text(content)


def test_chains_of_files_without_a_scheme_are_known_by_their_atoms() -> None:
    text = mmcif_of("1abc", CHAINS, [("1", "A,B")]).replace("_pdbx_poly_seq_scheme.", "_other.")
    assert [copy.chain for copy in parse_assembly(text.encode()).copies] == ["H", "L"]
    assert parse_assembly(b"data_x\n_pdbx_struct_assembly.id 1\n").problem == "the file states no biological assembly"


def test_assemblies_of_very_many_chains_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    text = mmcif_of("1abc", CHAINS, [("1,2,3", "A,B")]).encode()
    monkeypatch.setattr("data_pipeline.parse.assemblies._MAX_COPIES", 6)
    assert len(parse_assembly(text).copies) == 6
    monkeypatch.setattr("data_pipeline.parse.assemblies._MAX_COPIES", 5)
    found = parse_assembly(text)
    assert (found.copies, found.problem) == ((), "its assembly has more than 5 chains")


@pytest.mark.parametrize("text", ["", "name\n", "name\tkey\tchains\n1abc\tk\t1abc_A\n"])
def test_a_damaged_table_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "assemblies.tsv").write_text(text)
    with pytest.raises(InputError, match=r"assemblies\.tsv.*build the feature store again"):
        read_assemblies(tmp_path)


@pytest.mark.parametrize("content", [b"", b"x", AssemblyRecord(name="a", pairing={}).pack()[:-3]])
def test_a_damaged_record_is_told(content: bytes) -> None:
    with pytest.raises(ValueError, match="damaged"):
        AssemblyRecord.unpack(content)
