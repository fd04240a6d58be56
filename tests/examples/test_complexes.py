"""The complexes in the box: pairs of peptides that touch and do not clash, which can be trained on."""

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from data_pipeline.parse.structures import read_structure
from data_pipeline.residues import ATOM_ORDER
from data_pipeline.training_sets.store import FeatureStore
from helixfold.training.evaluate import read_names
from tests.examples.scripts import load_script
from tests.training.complex_stores import COMPLEXES, NAMES, store_of_complexes


@pytest.fixture(scope="module")
def make() -> ModuleType:
    return load_script(COMPLEXES / "make.py")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    return store_of_complexes(tmp_path_factory.mktemp("complexes"))


def test_every_one_is_an_assembly_of_two_chains_in_contact(store: FeatureStore) -> None:
    assert tuple(entry.name for entry in store.assemblies) == NAMES
    for name in NAMES:
        made = store.load_complex(name)
        assert made.features.asym_id.max() == 2
        present = made.labels.all_atom_mask > 0
        first, second = (
            made.labels.all_atom_positions[present & (made.features.asym_id == number)[:, None]] for number in (1, 2)
        )
        distances = np.sqrt(np.square(first[:, None] - second).sum(-1))
        assert 3.3 < distances.min() < 3.6
        assert (distances < 5).sum() > 10, name


def test_equal_chains_are_of_one_entity(store: FeatureStore) -> None:
    for name, entities in (("hairpins", {1}), ("helices", {1}), ("helix_and_strands", {1, 2})):
        assert {*store.load_complex(name).features.entity_id.tolist()} == entities


def test_some_are_held_out(store: FeatureStore) -> None:
    names = {entry.name for entry in store.assemblies}
    assert 1 <= len(read_names(COMPLEXES / "held_out.txt", names, "assembly")) < len(names) / 2


def test_the_script_makes_them(make: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(make, "__file__", str(tmp_path / "make.py"))
    make.main()
    assert sorted(path.stem for path in tmp_path.glob("*.cif")) == sorted(NAMES)
    for name in NAMES:
        made, stored = (read_structure(path / f"{name}.cif").chains for path in (tmp_path, COMPLEXES))
        for one, other in zip(made, stored, strict=True):
            assert one.sequence == other.sequence
            alpha = ATOM_ORDER["CA"]
            np.testing.assert_allclose(one.atom_positions[:, alpha], other.atom_positions[:, alpha], atol=0.01)
