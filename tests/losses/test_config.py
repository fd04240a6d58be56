"""Settings of the losses are AlphaFold's, and wrong ones are named."""

from dataclasses import fields

import pytest

from helixfold.losses.config import INTERFACE_TERMS, TERMS, LossConfig, complexes, finetuning, initial_training
from helixfold.model.config import ConfigError


def test_the_stages_have_alphafolds_weights() -> None:
    common = {
        "backbone_fape": 0.5,
        "sidechain_fape": 0.5,
        "torsion": 0.5,
        "angle_norm": 0.01,
        "distogram": 0.3,
        "masked_msa": 2.0,
        "lddt": 0.01,
    }
    first = {"experimentally_resolved": 0.0, "aligned_error": 0.0, "violation": 0.0, "smooth_lddt": 0.0}
    later = {"experimentally_resolved": 0.01, "aligned_error": 0.1, "violation": 1.0, "smooth_lddt": 0.0}
    for config, own in ((initial_training(), first), (finetuning(), later)):
        weights = {name: getattr(config, name) for name in TERMS}
        # Terms that are not AlphaFold's have a weight of 0.
        assert weights == dict.fromkeys(TERMS, 0.0) | common | own
        assert {name: getattr(complexes(config), name) for name in INTERFACE_TERMS} == {
            "interface_fape": 0.5,
            "centre_of_mass": 1.0,
        }
        assert (config.interface_clamp, config.interface_unit) == (1000, 20)
        assert config.fape_clamp == 10
        assert (config.min_resolution, config.max_resolution) == (0.1, 3.0)
        assert LossConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize("name", [field.name for field in fields(LossConfig)])
@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_weights_and_constants_are_numbers_from_zero_on(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"LossConfig\.{name} .* got {value}"):
        LossConfig(**{name: value})


def test_constants_that_no_sample_could_meet_are_refused() -> None:
    for name in ("fape_clamp", "interface_clamp", "interface_unit"):
        with pytest.raises(ConfigError, match=f"{name} must be more than 0"):
            LossConfig(**{name: 0.0})
    with pytest.raises(ConfigError, match=r"min_resolution \(4\.0\) must not be above max_resolution \(3\.0\)"):
        LossConfig(min_resolution=4.0)


def test_a_range_of_resolutions_may_be_one_number() -> None:
    assert LossConfig(min_resolution=2.0, max_resolution=2.0).max_resolution == 2.0
