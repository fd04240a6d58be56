import gzip
import importlib
import os
from collections import Counter, defaultdict
from pathlib import Path

import gemmi
import numpy as np
import pytest

from data_pipeline.io.errors import InputError
from data_pipeline.parse import structures
from data_pipeline.parse.structures import read_structure
from data_pipeline.residues import ATOM_ORDER
from tests.data_pipeline.parse.structure_files import Atom, Residue, mmcif_text, pdb_text

ATOMS = [
    Atom(name=name, altloc="\0", position=(k, 1, 2), occupancy=1, b_factor=0) for k, name in enumerate(("N", "CA", "C"))
]
CHAIN = {
    "A": [Residue(name=name, number=k, insertion_code=" ", atoms=tuple(ATOMS)) for k, name in ((1, "GLY"), (2, "TRP"))]
}
# Files whose counts differ from gemmi's, and why.
DIFFERENT = {
    "2plv.cif.gz",  # AlphaFold takes label_atom_id, gemmi auth_atom_id, and this entry has OXT in the latter only
    "1twr_old.cif.gz",  # atoms at NaN are not observed here
}
# Every how manieth file is read; HELIXFOLD_EVERY_FILE=1 reads all.
STRIDES = {"mmcif": 5, "mmcif_odd": 1, "pdb": 8, "train_mmcif": 40}
REFUSED = {"2atc.pdb.gz": "columns 31 to 54 are not coordinates"}  # its z coordinates are blank


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("written", [mmcif_text, pdb_text])
@pytest.mark.parametrize("name", ["a.cif", "a.pdb", "a.ent.gz", "structure"])
def test_the_format_is_told_by_content(tmp_path: Path, name: str, written: object, *, packed: bool) -> None:
    content = written(CHAIN)  # type: ignore[operator]
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if packed else content)
    [chain] = read_structure(path).chains
    assert (chain.sequence, int(chain.atom_mask.sum())) == ("GW", 6)


def test_comments_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.cif"
    path.write_bytes(b"# written by a tool\r\n\r\n" + mmcif_text(CHAIN).replace(b"\n", b"\r\n"))
    assert read_structure(path).chains[0].sequence == "GW"


def test_what_comes_after_the_atoms_of_a_pdb_file_tells_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.pdb"
    path.write_bytes(pdb_text(CHAIN) + b"data_of_a_tool\n")
    assert read_structure(path).chains[0].sequence == "GW"


@pytest.mark.parametrize("content", [b"", b"\0\0\0", b">query\nGASK\n", b"HEADER    NOTHING\nEND\n"])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.pdb"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"a\.pdb: neither mmCIF .* nor PDB"):
        read_structure(path)


def test_larger_files_than_memory_allows_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.pdb"
    path.write_bytes(pdb_text(CHAIN))
    monkeypatch.setattr(structures, "MAX_PDB_BYTES", 100)
    with pytest.raises(InputError, match="the PDB file is larger than the maximum of 100 bytes"):
        read_structure(path)
    monkeypatch.setattr(structures, "MAX_MMCIF_BYTES", 100)
    with pytest.raises(InputError, match="longer than the maximum of 100 bytes"):
        read_structure(path)


def counted_by_gemmi(path: Path) -> dict[str, tuple[int, int]]:
    """Observed residues and atoms (of the 37 kinds, alternatives once) of each protein chain of the first model."""
    structure = gemmi.read_structure(str(path))
    for chain in structure[0]:
        chain.name = chain.name.strip() or "_"
    structure.setup_entities()
    counts = {}
    for chain in structure[0]:
        for span in chain.subchains():
            entity = structure.get_entity_of(span)
            if entity is None or entity.entity_type != gemmi.EntityType.Polymer:
                continue
            kind = entity.polymer_type
            if kind == gemmi.PolymerType.Unknown:
                kind = span.check_polymer_type()
            if kind not in {gemmi.PolymerType.PeptideL, gemmi.PolymerType.PeptideD}:
                continue
            atoms: dict[tuple[object, ...], set[str]] = {}
            for residue in span:
                names = {"SD" if atom.name == "SE" and residue.name == "MSE" else atom.name for atom in residue}
                atoms.setdefault((residue.label_seq, residue.seqid.num, residue.seqid.icode), names)
            assert chain.name not in counts
            counts[chain.name] = len(atoms), sum(len(names & set(ATOM_ORDER)) for names in atoms.values())
    return counts


@pytest.mark.integration
@pytest.mark.parametrize("folder", list(STRIDES))
def test_every_real_file_is_read_as_gemmi_reads_it(real_data: Path, folder: str) -> None:
    refused, different, total = {}, set(), Counter[str]()
    stride = 1 if "HELIXFOLD_EVERY_FILE" in os.environ else STRIDES[folder]
    for path in sorted((real_data / folder).iterdir())[::stride]:
        try:
            structure = read_structure(path)
        except InputError as error:
            refused[path.name] = str(error)
            continue
        ours = {chain.name: (int(chain.observed.sum()), int(chain.atom_mask.sum())) for chain in structure.chains}
        total.update(files=1, chains=len(ours))
        if ours != counted_by_gemmi(path):
            different.add(path.name)
        assert ours, f"{path.name} has no protein chain: {structure.skipped}"
    assert total["files"] > 0
    assert total["chains"] >= total["files"]
    assert refused.keys() <= REFUSED.keys()
    assert all(REFUSED[name] in reason for name, reason in refused.items())
    assert different <= DIFFERENT


@pytest.mark.integration
@pytest.mark.parity
def test_every_real_mmcif_is_read_as_alphafold_reads_it(real_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("alphafold", reason="needs alphafold-colabfold")
    parsing = importlib.import_module("alphafold.data.mmcif_parsing")
    templates = importlib.import_module("alphafold.data.templates")
    pdb_data = importlib.import_module("Bio.Data.PDBData")
    # The published program's Biopython had this table under the name that now has only the twenty.
    monkeypatch.setattr(pdb_data, "protein_letters_3to1", pdb_data.protein_letters_3to1_extended)
    compared: Counter[str] = Counter()
    sequences: dict[str, set[str]] = defaultdict(set)
    for path in sorted((real_data / "mmcif").iterdir()):
        with gzip.open(path, "rt", errors="replace") as file:
            theirs = parsing.parse(file_id=path.name, mmcif_string=file.read()).mmcif_object
        if theirs is None:
            continue
        structure = read_structure(path)
        assert structure.method == theirs.header["structure_method"]
        assert (structure.resolution or 0) == theirs.header["resolution"]
        if "release_date" in theirs.header:
            assert str(structure.release_date) == theirs.header["release_date"]
        assert {chain.name for chain in structure.chains} == theirs.chain_to_seqres.keys()
        for chain in structure.chains:
            if chain.sequence != theirs.chain_to_seqres[chain.name]:
                sequences[path.name[:4]].add(chain.name)
                continue
            positions, mask = templates._get_atom_positions(theirs, chain.name, max_ca_ca_distance=1e9)
            np.testing.assert_array_equal(chain.atom_positions, positions.astype(np.float32))
            np.testing.assert_array_equal(chain.atom_mask, mask)
            compared["chains"] += 1
    assert compared["chains"] > 200
    assert sequences == {"1cbn": {"A"}, "1en2": {"A"}, "3u7t": {"A"}}  # those with microheterogeneity
