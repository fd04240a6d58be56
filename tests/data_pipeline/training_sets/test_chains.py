from dataclasses import replace
from datetime import date
from typing import Any

import numpy as np
import pytest

from data_pipeline.residues import ATOM_ORDER, RESTYPES_WITH_X
from data_pipeline.structure import Chain, Structure
from data_pipeline.training_sets.chains import ChainFilter, chain_labels


def chain(sequence: str = "GASKLGASKL", observed: int = 10) -> Chain:
    length = len(sequence)
    is_observed = np.arange(length) < observed
    mask = np.zeros((length, 37), np.float32)
    mask[is_observed, :3] = 1
    return Chain(
        name="A",
        sequence=sequence,
        aatype=np.array([RESTYPES_WITH_X.index(letter) for letter in sequence]),
        atom_positions=np.ones((length, 37, 3), np.float32) * mask[..., None],
        atom_mask=mask,
        b_factors=np.zeros((length, 37), np.float32),
        observed=is_observed,
        residue_names=("UNK",) * length,
        residue_numbers=np.arange(1, length + 1),
        insertion_codes=(" ",) * length,
    )


def structure(**changes: Any) -> Structure:
    entry = Structure(
        name="1abc", release_date=date(2018, 4, 30), resolution=2.0, method="x-ray diffraction", chains=(), skipped={}
    )
    return replace(entry, **changes)


@pytest.mark.parametrize(
    ("entry", "of_it"),
    [
        (structure(), chain()),
        (structure(resolution=8.99), chain()),
        (structure(resolution=None), chain()),  # NMR
        (structure(), chain("AAAAAAAAGS")),  # exactly 80 %
        (structure(), chain(observed=1)),
    ],
)
def test_chains_within_alphafolds_limits_are_trained_on(entry: Structure, of_it: Chain) -> None:
    assert ChainFilter(latest_release=date(2018, 4, 30)).exclusion_reason(entry, of_it) is None


@pytest.mark.parametrize(
    ("entry", "of_it", "reason"),
    [
        (structure(resolution=9.0), chain(), "its resolution is 9 A, and it must be below 9 A"),
        (structure(release_date=date(2018, 5, 1)), chain(), "it was released on 2018-05-01, after 2018-04-30"),
        (structure(release_date=None), chain(), "its release date is unknown, and it must not be after 2018-04-30"),
        (structure(), chain("AAAAAAAAAS"), "A makes up 90% of its sequence, and 80% are allowed"),
        (structure(), chain("XXXXXXXXXS"), "X makes up 90% of its sequence, and 80% are allowed"),
        (structure(), chain("GASK", 4), "its sequence has 4 residues, and 5 are needed"),
        (structure(), chain(observed=1), "1 of its residues were observed, and 2 are needed"),
    ],
)
def test_every_refusal_has_a_reason(entry: Structure, of_it: Chain, reason: str) -> None:
    limits = ChainFilter(latest_release=date(2018, 4, 30), min_length=5, min_observed=2)
    assert limits.exclusion_reason(entry, of_it) == reason


def test_without_a_cut_off_the_date_may_be_unknown() -> None:
    assert ChainFilter().exclusion_reason(structure(release_date=None), chain()) is None


def test_a_chain_without_any_observed_residue_is_refused() -> None:
    assert (
        ChainFilter().exclusion_reason(structure(), chain(observed=0))
        == "0 of its residues were observed, and 1 are needed"
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"below_resolution": 0.0},
        {"below_resolution": float("nan")},
        {"max_share": 0.0},
        {"max_share": 1.5},
        {"min_length": 0},
        {"min_observed": 0},
    ],
)
def test_limits_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}.* must be .*, got"):
        ChainFilter(**wrong)


def test_experimental_labels_are_all_certain() -> None:
    of_it = chain("GXS", observed=2)
    labels = chain_labels(structure(), of_it)
    np.testing.assert_array_equal(labels.all_atom_positions, of_it.atom_positions)
    np.testing.assert_array_equal(labels.all_atom_mask, of_it.atom_mask)
    assert labels.all_atom_mask[1].sum() == 3  # atoms of the unknown residue
    assert labels.confidence.tolist() == [1, 1, 1]
    assert labels.confidence.dtype == np.float32
    assert (labels.resolution, labels.is_distillation) == (2.0, False)
    assert chain_labels(structure(resolution=None), of_it).resolution == 0


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_labels_of_predictions_have_their_plddt_as_confidence(scale: float) -> None:
    of_it = chain("GAS")
    of_it.b_factors[:, ATOM_ORDER["CA"]] = np.array([0.25, 0.75, 1.0]) * scale
    of_it.b_factors[:, ATOM_ORDER["N"]] = 50
    labels = chain_labels(structure(), of_it, is_distillation=True)
    assert labels.confidence.tolist() == [0.25, 0.75, 1]
    assert labels.confidence.dtype == np.float32
    assert labels.is_distillation
