"""A training set holds the first assembly of each file: which chains stand where, and the rows that pair them."""

from pathlib import Path

import numpy as np
import pytest

from data_pipeline.datasets import clustering
from data_pipeline.datasets.assembly_record import AssemblyRecord, read_assemblies
from data_pipeline.datasets.build import BuildOptions, BuildReport, build_store
from data_pipeline.datasets.chains import ChainFilter
from data_pipeline.datasets.record_builder import RecordBuilder
from data_pipeline.datasets.source_files import AlignmentDirectory
from data_pipeline.datasets.store import FeatureStore
from data_pipeline.errors import InputError
from data_pipeline.parse.assemblies import parse_assembly, read_assembly
from data_pipeline.residues import ATOM_ORDER
from tests.data_pipeline.datasets.assembly_files import OPERATORS, mmcif_of, write_mmcif

CA = ATOM_ORDER["CA"]
FIRST, SECOND = "MKTAYIAKQRW", "GSHMAEQLDV"
CHAINS = [("A", "H", FIRST), ("B", "L", SECOND)]


@pytest.fixture(autouse=True)
def _without_mmseqs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clustering, "find_mmseqs", lambda: None)


def build(root: Path, **filtered: int) -> BuildReport:
    alignments = root / "alignments"
    builder = RecordBuilder(
        filter=ChainFilter(**filtered),
        alignments=AlignmentDirectory(alignments) if alignments.is_dir() else None,
        assemblies=True,
    )
    return build_store(BuildOptions(structures=root / "structures", output=root / "store"), builder)


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
    write_mmcif(tmp_path / "structures/1abc.cif", CHAINS, [("1,2", "A,B")])
    report = build(tmp_path)
    assert (report.assemblies, report.skipped_assemblies, report.chains) == (1, {}, 2)
    store = FeatureStore.open(tmp_path / "store")
    (entry,) = store.assemblies
    assert entry.chains == ("1abc_H", "1abc_L", "1abc_H", "1abc_L")
    made = store.load_complex("1abc")
    assert made.features.chain_names == ("1abc_H", "1abc_H", "1abc_L", "1abc_L")
    assert made.features.sym_id.tolist() == [1] * 11 + [2] * 11 + [1] * 10 + [2] * 10
    for chain, name in enumerate(made.features.chain_names):
        rotation, shift = OPERATORS["12"[chain % 2]]
        _, alone = store.load(name)
        here = made.features.asym_id == chain + 1
        expected = (alone.all_atom_positions @ rotation.T + shift) * alone.all_atom_mask[..., None]
        np.testing.assert_allclose(made.labels.all_atom_positions[here], expected, atol=1e-4)
        np.testing.assert_array_equal(made.labels.all_atom_mask[here], alone.all_atom_mask)


def test_rows_of_species_are_paired(tmp_path: Path) -> None:
    write_mmcif(tmp_path / "structures/1abc.cif", CHAINS, [("1", "A,B")])
    for chain, sequence in (("H", FIRST), ("L", SECOND)):
        rows = "".join(f">tr|A0A00000{n}|A0A00000{n}_SPEC{n}\n{sequence[:-n]}{'A' * n}\n" for n in (1, 2))
        path = tmp_path / f"alignments/1abc_{chain}/uniprot_hits.a3m"
        path.parent.mkdir(parents=True)
        path.write_text(f">query\n{sequence}\n{rows}")
    build(tmp_path)
    features = FeatureStore.open(tmp_path / "store").load_complex("1abc").features
    assert features.paired_rows == 3
    assert (features.msa[:3] != 21).all()


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


@pytest.mark.parametrize("text", ["", "name\n", "name\tkey\tchains\n1abc\tk\t1abc_A\n"])
def test_a_damaged_table_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "assemblies.tsv").write_text(text)
    with pytest.raises(InputError, match=r"assemblies\.tsv.*build the feature store again"):
        read_assemblies(tmp_path)


@pytest.mark.parametrize("content", [b"", b"x", AssemblyRecord(name="a", pairing={}).pack()[:-3]])
def test_a_damaged_record_is_told(content: bytes) -> None:
    with pytest.raises(ValueError, match="damaged"):
        AssemblyRecord.unpack(content)
