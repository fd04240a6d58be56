"""Features survive the disk, and a file that is something else is refused in one sentence."""

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.features.sample import SAMPLE_AXES, Sample
from data_pipeline.features.schema import Features
from data_pipeline.io.errors import InputError


@pytest.fixture
def features() -> Features:
    rng = np.random.default_rng(0)
    return Features(
        domain_name="T1 \u00fc",
        sequence="ACDX",
        aatype=np.array([0, 4, 3, 20], np.int32),
        residue_index=np.arange(4, dtype=np.int32),
        msa=np.concatenate([[[0, 4, 3, 7]], rng.integers(0, 22, (4, 4))]).astype(np.int8),
        deletion_matrix=rng.integers(0, 9, (5, 4), np.int32),
        template_domain_names=("1abc_A", "2xyz_B"),
        template_aatype=rng.integers(0, 22, (2, 4), np.int32),
        template_all_atom_positions=rng.random((2, 4, 37, 3), np.float32),
        template_all_atom_masks=np.ones((2, 4, 37), np.float32),
        template_sum_probs=np.ones((2, 1), np.float32),
    )


def test_features_come_back_as_saved(features: Features, tmp_path: Path) -> None:
    features.save(tmp_path / "features.npz")
    loaded = Features.load(tmp_path / "features.npz")
    for field in fields(Features):
        before, after = getattr(features, field.name), getattr(loaded, field.name)
        if isinstance(before, np.ndarray):
            assert after.dtype == before.dtype
            np.testing.assert_array_equal(after, before)
        else:
            assert after == before


def test_equal_features_give_equal_files_readable_without_pickle(features: Features, tmp_path: Path) -> None:
    for name in ("a", "b"):
        features.save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    with np.load(tmp_path / "a", allow_pickle=False) as arrays:
        assert arrays["template_domain_names"].tolist() == ["1abc_A", "2xyz_B"]
        assert str(arrays["sequence"]) == "ACDX"


def test_truncated_file_is_refused(features: Features, tmp_path: Path) -> None:
    path = tmp_path / "features.npz"
    features.save(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"features\.npz: is damaged"):
        Features.load(path)


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("msa", None, "msa missing"),
        ("msa", np.zeros((5, 3), np.int8), r"msa is int8 \(5, 3\), expected \(5, 4\)"),
        ("msa", np.zeros((5, 4)), "msa is float64"),
        ("msa", np.zeros((0, 4), np.int8), "there are 4 residues and 0 MSA rows"),
        ("msa", np.array(3, np.int8), r"msa is int8 \(\)"),
        ("msa", np.full((5, 4), 22, np.int8), r"msa has values outside 0\.\.21"),
        ("aatype", np.array([0, 1, 2, -1], np.int32), r"aatype has values outside 0\.\.20"),
        ("deletion_matrix", np.full((5, 4), -1), "deletion_matrix has negative values"),
        ("sequence", np.zeros(4), "sequence is float64"),
        ("sequence", np.array(""), "aatype does not match the sequence"),
        ("template_domain_names", np.array("x"), "template_domain_names is <U1"),
        ("template_sum_probs", np.zeros((3, 1), np.float32), r"template_sum_probs is float32 \(3, 1\)"),
    ],
)
def test_wrong_contents_are_refused(
    features: Features, tmp_path: Path, name: str, value: np.ndarray | None, problem: str
) -> None:
    path = tmp_path / "features.npz"
    features.save(path)
    with np.load(path) as stored:
        arrays = dict(stored)
    arrays.pop(name)
    if value is not None:
        arrays[name] = value
    np.savez(path, **arrays)
    with pytest.raises(InputError, match=rf"features\.npz: {problem}"):
        Features.load(path)


def test_every_sample_field_has_its_axes() -> None:
    assert SAMPLE_AXES.keys() == {field.name for field in fields(Sample)}
    expected = {"aatype": "r", "target_feat": "r", "msa_feat": "sr", "extra_msa": "er", "template_mask": "t"}
    assert expected | {"template_all_atom_positions": "tr"} == {
        name: SAMPLE_AXES[name] for name in (*expected, "template_all_atom_positions")
    }
