import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from data_pipeline import residues
from data_pipeline.io.errors import InputError
from tests.parity.spec import Spec
from tests.parity.synthetic_features import make_features

DATA = Path(__file__).parent / "data"
PADDED = Spec(
    res=30, pad=5, seq=9, pad_seq=3, extra_seq=12, pad_extra_seq=4, templ=5, real_templ=4, recycle=1, ensemble=2, seed=3
)


@pytest.mark.parametrize(
    "case", sorted(path.parent for path in DATA.glob("monomer*/outputs.npz")), ids=lambda path: path.name
)
def test_names_shapes_and_types_are_those_of_deepminds_features(case: Path) -> None:
    stored = json.loads((case / "meta.json").read_text())["spec"]
    known = {field.name for field in fields(Spec)}
    made = make_features(Spec(**{name: value for name, value in stored.items() if name in known}))
    with np.load(case / "features.npz") as given:
        expected = {name: (value.shape, value.dtype) for name, value in given.items()}
    assert {name: (value.shape, value.dtype) for name, value in made.items()} == expected


def test_padding_is_zero_in_every_array() -> None:
    features = make_features(PADDED)
    sizes = {"r": (25, 30), "s": (6, 9), "e": (8, 12), "t": (4, 5)}
    for name, value in features.items():
        axes = {
            "seq_length": "",
            "is_distillation": "",
            "msa_row_mask": "s",
            "extra_msa_row_mask": "e",
            "template_mask": "t",
            "template_sum_probs": "t",
            **dict.fromkeys(("msa_feat", "true_msa", "bert_mask", "msa_mask"), "sr"),
            **dict.fromkeys(("extra_msa", "extra_has_deletion", "extra_deletion_value", "extra_msa_mask"), "er"),
        }.get(name, "tr" if name.startswith("template") else "r")
        for index, axis in enumerate(axes, start=1):
            real, padded = sizes[axis]
            assert value.shape[index] == padded, name
            assert not np.take(value, range(real, padded), axis=index).any(), name
            assert np.take(value, range(real), axis=index).any(), name


def test_profiles_are_distributions_and_every_pass_is_a_new_draw() -> None:
    features = make_features(Spec(templ=4, real_templ=2, recycle=2))
    np.testing.assert_allclose(features["msa_feat"][..., 25:48].sum(-1), 1, rtol=1e-6)
    np.testing.assert_array_equal(features["msa_feat"][..., :23].sum(-1), 1)
    np.testing.assert_array_equal(features["true_msa"][:, 0], features["aatype"])
    assert not np.array_equal(features["msa_feat"][0], features["msa_feat"][1])
    np.testing.assert_array_equal(
        features["template_all_atom_positions"][0], features["template_all_atom_positions"][1]
    )


def test_single_sequence_has_an_empty_extra_msa() -> None:
    features = make_features(Spec(model="model_3", seq=4, pad_seq=3, extra_seq=2, pad_extra_seq=2))
    assert features["msa_mask"].sum() == 26
    assert not features["extra_msa_mask"].any()


def test_unknown_residue_has_no_atoms() -> None:
    features = make_features(Spec(model="model_3", with_x=True))
    unknown = features["aatype"] == residues.UNKNOWN
    assert unknown.sum() == 1
    assert not features["atom37_atom_exists"][unknown].any()


@pytest.mark.parametrize("seed", range(5))
def test_template_segments_are_posed_where_the_undefined_omega_is_zero(seed: int) -> None:
    features = make_features(Spec(res=40, templ=4, real_templ=4, seed=seed))
    positions, aatype = features["template_all_atom_positions"][0], features["template_aatype"][0]
    starts = 0
    for template in range(4):
        for residue in range(40):
            if aatype[template, residue] != residues.GAP and (
                residue == 0 or aatype[template, residue - 1] == residues.GAP
            ):
                nitrogen, alpha, carbon = positions[template, residue, :3]
                np.testing.assert_array_equal(nitrogen, [4, 0, 0])
                assert alpha[0] == 4
                assert abs(alpha[2]) < 1e-12
                assert np.linalg.norm(carbon - alpha) == pytest.approx(1.526, abs=1e-4)
                starts += 1
    assert starts >= 8


def test_template_atoms_without_mask_are_at_zero() -> None:
    features = make_features(Spec(res=40, templ=4, real_templ=4))
    positions, masks = features["template_all_atom_positions"], features["template_all_atom_masks"]
    assert not positions[masks == 0].any()
    np.testing.assert_array_equal(positions.any(-1), masks == 1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"model": "model_6"}, "model_6"),
        ({"model": "model_5", "templ": 4}, "no template branch"),
        ({"templ": 0}, "a template branch"),
        ({"templ": 2, "real_templ": 3}, "do not fit"),
        ({"templ": 4, "pad": 20}, "at least 8 residues"),
        ({"templ": 4, "pad_seq": 10}, "query row"),
        ({"templ": 4, "pad_extra_seq": 15}, "extra rows"),
        ({"templ": 4, "seed": -1}, "negative"),
        ({"templ": 4, "evoformer": 0}, "at least 1"),
        ({"templ": 4, "channels": "medium"}, "medium"),
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Spec(**wrong)  # type: ignore[arg-type]
