"""The training set in the box: ideal peptides that can be trained on, and that are what their sequences say."""

from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor

from data_pipeline import residues
from data_pipeline.parse.structures import read_structure
from data_pipeline.structure import Chain
from data_pipeline.training_sets.build import BuildOptions, build_store
from data_pipeline.training_sets.chains import ChainFilter
from data_pipeline.training_sets.examples import TrainingDataset
from data_pipeline.training_sets.record_builder import RecordBuilder
from data_pipeline.training_sets.store import FeatureStore
from helixfold.losses.violations import violations
from helixfold.model.geometry.torsions import torsions_from_atom37
from helixfold.training.evaluate import read_names
from tests.examples.scripts import load_script

STRUCTURES = Path(__file__).parents[2] / "examples" / "structures"
FILES = sorted(STRUCTURES.glob("*.pdb"))
each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def read_chain(path: Path) -> Chain:
    (chain,) = read_structure(path).chains
    return chain


@pytest.fixture(scope="module")
def make() -> ModuleType:
    return load_script(STRUCTURES / "make.py")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    directory = tmp_path_factory.mktemp("examples")
    # Given, because a search program takes seconds to find that eight peptides are all different.
    (directory / "clusters").write_text("".join(f"{path.stem}_A\n" for path in FILES))
    output = directory / "training_set"
    options = BuildOptions(structures=STRUCTURES, output=output, clusters=directory / "clusters")
    report = build_store(options, RecordBuilder(filter=ChainFilter()))
    assert (report.refused, report.failed) == ({}, {})
    return FeatureStore.open(output)


def test_they_are_few_and_small() -> None:
    assert len(FILES) == 8
    assert sum(path.stat().st_size for path in FILES) < 100_000
    assert all(20 <= len(read_chain(path).sequence) <= 60 for path in FILES)


def test_every_one_is_trained_on(store: FeatureStore) -> None:
    assert [entry.name for entry in store.entries] == [f"{path.stem}_A" for path in FILES]
    names: set[str] = set()
    dataset = TrainingDataset(store=store, seed=0)
    for step in range(100):
        drawn = dataset.draw(step, 0)
        assert drawn.refused == ()
        names |= {example.name for example in drawn.examples}
    assert len(names) == len(FILES)


def test_the_held_out_chains_have_relatives_among_the_others(store: FeatureStore) -> None:
    held_out = read_names(STRUCTURES / "held_out.txt", {entry.name for entry in store.entries})
    assert 1 <= len(held_out) < len(FILES) / 2
    others = {entry.name for entry in store.entries} - {*held_out}
    for name in held_out:
        assert name.replace("long", "short") in others


@each_file
def test_every_atom_of_every_residue_is_there(path: Path) -> None:
    chain = read_chain(path)
    np.testing.assert_array_equal(chain.atom_mask, residues.ATOM37_MASK[chain.aatype])


@each_file
def test_nothing_is_violated(path: Path) -> None:
    chain = read_chain(path)
    aatype = torch.from_numpy(chain.aatype)[None]
    index = torch.from_numpy(residues.ATOM14_TO_ATOM37[chain.aatype])[None]
    exists = torch.from_numpy(residues.ATOM14_MASK[chain.aatype])[None]
    positions = torch.from_numpy(chain.atom_positions)[None]
    atoms = positions.gather(2, index[..., None].expand(*index.shape, 3)) * exists[..., None]
    # Bonds between residues as strictly as three standard deviations; ideal proline rings do not close so well.
    number = torch.arange(aatype.shape[1])[None]
    for tolerance in (12.0, 3.0):
        found = violations(atoms, exists, aatype, number, tolerance_factor=tolerance)
        assert not found.connections_mask.any()
        assert not found.clashes_mask.any()
        assert not found.within_mask.any() or tolerance < 12


@each_file
def test_atoms_that_are_not_bonded_keep_apart(path: Path) -> None:
    chain = read_chain(path)
    residue, atom = np.nonzero(chain.atom_mask)
    atoms = chain.atom_positions[residue, atom]
    distance = np.linalg.norm(atoms[:, None] - atoms[None], axis=-1)
    # Up to four bonds lie between atoms that chemistry brings close; 1.95 A is longer than any bond here.
    bonded = distance < 1.95
    related = np.linalg.matrix_power(bonded.astype(int), 4) > 0
    is_polar = np.array([residues.ATOM_TYPES[index][0] in "NO" for index in atom])
    least = np.where(is_polar[:, None] & is_polar, 2.6, 2.9)
    assert (distance >= least)[~related].all()
    ca = chain.atom_positions[:, residues.ATOM_ORDER["CA"]]
    far_apart = np.triu(np.ones((len(ca), len(ca)), bool), 2)
    assert np.linalg.norm(ca[:, None] - ca, axis=-1)[far_apart].min() > 4.0
    assert [np.linalg.norm(one - other) for one, other in pairwise(ca)] == pytest.approx(
        [3.8] * (len(ca) - 1), abs=0.03
    )


@each_file
def test_side_chains_are_of_life_and_peptide_bonds_are_trans(path: Path) -> None:
    chain = read_chain(path)
    n, ca, c, cb = (chain.atom_positions[:, residues.ATOM_ORDER[name]] for name in ("N", "CA", "C", "CB"))
    handed = np.einsum("rx,rx->r", np.cross(n - ca, c - ca), cb - ca)
    has_beta = chain.atom_mask[:, residues.ATOM_ORDER["CB"]] > 0
    assert (handed[has_beta] > 2).all()
    omega = degrees(torsions(chain), 0)[1:]
    np.testing.assert_allclose(np.abs(omega), 180, atol=1)


def torsions(chain: Chain) -> Tensor:
    return torsions_from_atom37(
        torch.from_numpy(chain.aatype), torch.from_numpy(chain.atom_positions), torch.from_numpy(chain.atom_mask)
    ).sin_cos


def degrees(sin_cos: Tensor, which: int) -> np.ndarray:
    angles: np.ndarray = torch.rad2deg(torch.atan2(sin_cos[:, which, 0], sin_cos[:, which, 1])).numpy()
    return angles


@each_file
def test_the_torsion_angles_are_those_that_it_was_made_from(path: Path, make: ModuleType) -> None:
    chain = read_chain(path)
    (peptide,) = (peptide for peptide in make.PEPTIDES if peptide.name == path.stem)
    assert chain.sequence == peptide.sequence
    phi, psi = np.array(peptide.angles).T
    difference = np.stack([degrees(torsions(chain), 1)[1:] - phi[1:], (degrees(torsions(chain), 2) - psi)[1:]])
    assert np.abs((difference + 180) % 360 - 180).max() < 1


def test_strands_are_held_together_by_hydrogen_bonds() -> None:
    for name, bonds in {"hairpin_short": 10, "hairpin_long": 12, "meander": 12}.items():
        chain = read_chain(STRUCTURES / f"{name}.pdb")
        oxygen, nitrogen = (chain.atom_positions[:, residues.ATOM_ORDER[atom]] for atom in ("O", "N"))
        distance = np.linalg.norm(oxygen[:, None] - nitrogen, axis=-1)
        acceptor, donor = np.nonzero((distance > 2.7) & (distance < 3.25))
        assert np.sum(np.abs(acceptor - donor) > 2) == bonds, name


def test_the_script_makes_them(make: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(make, "__file__", str(tmp_path / "make.py"))
    make.main()
    assert sorted(path.name for path in tmp_path.iterdir()) == [path.name for path in FILES]
    for path in FILES:
        made, stored = read_chain(tmp_path / path.name), read_chain(path)
        assert made.sequence == stored.sequence
        np.testing.assert_allclose(made.atom_positions, stored.atom_positions, atol=0.002)
