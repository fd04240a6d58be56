"""Structures are found in files, directories and outputs of programs, and read with what the network gets of them."""

from pathlib import Path

import numpy as np
import pytest

from data_pipeline.features.complexes.feature_set import ComplexFeatureSet
from data_pipeline.io.errors import InputError
from helixfold.apps.score.structures import find_structures, read_scored
from tests.apps.score.structure_files import SEQUENCE, protein, write


def keys(*paths: Path, rescore: bool = False) -> list[str]:
    return [file.key for file in find_structures(paths, rescore=rescore)]


def test_directories_hold_structures_of_one_target_or_a_directory_for_each(tmp_path: Path) -> None:
    for name in ("one/a.pdb", "one/a.cif", "one/b.pdb.gz", "two/a.pdb", "two/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert keys(tmp_path / "one") == ["one/a", "one/b"]
    assert find_structures([tmp_path / "one"], rescore=False)[0].path.name == "a.cif"
    assert keys(tmp_path) == ["one/a", "one/b", "two/a"]
    assert keys(tmp_path / "two" / "a.pdb") == ["two/a"]
    with pytest.raises(InputError, match=r"one/a\.pdb: it has the name of .*a\.cif, 'one/a'; rename one"):
        keys(tmp_path / "one", tmp_path / "one" / "a.pdb")


def test_ranked_models_are_those_of_each_program(tmp_path: Path) -> None:
    for name in (
        *("ours/t/ranked_0.pdb", "ours/t/ranked_1.pdb", "ours/t/unrelaxed_m.pdb"),
        *("theirs/u_unrelaxed_rank_001_m_seed_000.pdb", "theirs/u_unrelaxed_rank_002_n_seed_000.pdb"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "none").mkdir()
    assert keys(tmp_path / "ours", rescore=True) == ["t/rank_0", "t/rank_1"]
    assert keys(tmp_path / "theirs", rescore=True) == ["u/rank_0", "u/rank_1"]
    found = ["t/ours_rank_0", "t/ours_rank_1", "u/theirs_rank_0", "u/theirs_rank_1"]
    assert keys(tmp_path / "ours", tmp_path / "theirs", rescore=True) == found
    with pytest.raises(InputError, match=r"is the output of a prediction program.*pass --rescore"):
        keys(tmp_path / "ours")
    with pytest.raises(InputError, match="has no structures"):
        keys(tmp_path / "none")


def test_chains_are_read_in_the_order_of_the_features(tmp_path: Path) -> None:
    first, second = SEQUENCE, SEQUENCE[:9]
    path = write(tmp_path / "c.pdb", first, second, first)
    found = read_scored(path)
    assert isinstance(found.features, ComplexFeatureSet)
    assert found.features.multimer.chain_names == tuple(chain.name for chain in found.chains) == ("A", "C", "B")
    assert found.sequence == ":".join([first, first, second]) == found.features.sequence
    whole = protein(first, second, first)
    expected = np.concatenate([whole.atom_positions[whole.chain_index == number] for number in (0, 2, 1)])
    np.testing.assert_allclose(found.positions, expected, atol=1e-3)
    assert found.observed.all()
    assert found.mean_plddt == pytest.approx(whole.b_factors.max(-1).mean(), abs=0.01)


def test_what_is_no_structure_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.pdb").write_text("HETATM    1  O   HOH A   1       0.000   0.000   0.000  1.00  0.00           O\n")
    with pytest.raises(InputError, match=r"a\.pdb: .*"):
        read_scored(tmp_path / "a.pdb")
