import json
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.io.errors import InputError
from tests.parity.parameters import draw, from_manifest, read_module, write_manifest

DATA = Path(__file__).parent / "data"
MANIFESTS = sorted([*DATA.glob("*/params_manifest.json"), *DATA.glob("modules/*.json")])
MODULES = sorted(path for path in (DATA / "modules").glob("*.npz") if path.stem not in ("constants", "functions"))


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: str(path.relative_to(DATA)))
def test_checksum_of_small_case_is_met(manifest: Path) -> None:
    assert from_manifest(manifest)


def test_checksum_of_every_reference_case_is_met(reference: Path) -> None:
    for manifest in sorted((reference / "cases").glob("*/params_manifest.json")):
        assert from_manifest(manifest)


def test_reference_parameters_are_equal_bit_for_bit(reference: Path) -> None:
    case = reference / "cases" / "monomer_ptm_tiny"
    rebuilt = from_manifest(case / "params_manifest.json")
    with np.load(case / "params.npz") as stored:
        assert rebuilt.keys() == set(stored)
        for name, value in stored.items():
            np.testing.assert_array_equal(rebuilt[name], value, err_msg=name)


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_small_module_equals_the_reference(module: Path, reference: Path) -> None:
    ours, theirs = read_module(module), read_module(reference / "modules" / module.name)
    assert ours.keys() == theirs.keys()
    assert any(name.startswith("param:") for name in ours)
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)


def test_manifest_survives_a_round_trip(tmp_path: Path) -> None:
    shapes = {"a/evoformer/extra_msa_stack/b//weights": (2, 3, 4), "a/b//bias": (4,), "a/norm//scale": (5,)}
    write_manifest(tmp_path / "params_manifest.json", shapes, 7)
    rebuilt = from_manifest(tmp_path / "params_manifest.json")
    assert {name: value.shape for name, value in rebuilt.items()} == shapes
    np.testing.assert_array_equal(rebuilt["a/b//bias"], draw("a/b//bias", (4,), 7))


@pytest.mark.parametrize("change", [{"seed": 12}, {"sha256": "0" * 64}])
def test_manifest_that_was_changed_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    content = json.loads((DATA / "monomer_ptm_tiny" / "params_manifest.json").read_text()) | change
    (tmp_path / "params_manifest.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="checksum"):
        from_manifest(tmp_path / "params_manifest.json")


def test_no_array_is_constant_and_no_two_are_equal() -> None:
    parameters = from_manifest(DATA / "monomer_ptm_tiny" / "params_manifest.json")
    assert all(len(np.unique(value)) > value.size // 2 and (value != 0).all() for value in parameters.values())
    assert len({value.tobytes() for value in parameters.values()}) == len(parameters)
