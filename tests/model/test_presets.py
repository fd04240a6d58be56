"""Presets have the published numbers."""

from dataclasses import replace

import pytest

from helixfold.model.config import ConfigError, HeadsConfig, ModelConfig, StackConfig, StructureConfig, TemplateConfig
from helixfold.model.presets import PRESETS, preset

# AlphaFold 2, Suppl. Table 5: templates, extra sequences. Models 1.1.1, 1.1.2, 1.2.1, 1.2.2, 1.2.3.
FINE_TUNED = {1: (True, 5120), 2: (True, 1024), 3: (False, 5120), 4: (False, 5120), 5: (False, 1024)}


@pytest.mark.parametrize("number", FINE_TUNED)
@pytest.mark.parametrize("suffix", ["", "_ptm"])
def test_alphafolds_models_have_the_numbers_of_table_5(number: int, suffix: str) -> None:
    templates, extra_rows = FINE_TUNED[number]
    found = preset(f"model_{number}{suffix}")
    assert found.name == f"model_{number}{suffix}"
    assert (found.model.template is not None) == templates
    assert found.model.heads.aligned_error == (suffix == "_ptm")
    assert found.sampling.max_extra_msa == extra_rows
    assert found.sampling.max_templates == (4 if templates else 0)
    # Templates take their rows from the 512 of the MSA.
    assert found.sampling.max_msa_clusters + found.sampling.max_templates == 512
    assert found.num_recycles == 3


def test_models_differ_in_templates_and_heads_only() -> None:
    for number in FINE_TUNED:
        model = preset(f"model_{number}").model
        assert replace(model, template=TemplateConfig()) == ModelConfig()
        assert preset(f"model_{number}_ptm").model == replace(model, heads=HeadsConfig(aligned_error=True))


def test_the_widths_are_the_papers() -> None:
    assert ModelConfig() == ModelConfig(
        c_z=128,
        c_s=384,
        evoformer=StackConfig(
            blocks=48,
            c_m=256,
            msa_heads=8,
            pair_heads=4,
            c_outer=32,
            c_triangle=128,
            transition_factor=4,
            msa_dropout=0.15,
            pair_dropout=0.25,
            outer_product="middle",
        ),
        extra_msa=StackConfig(
            blocks=4,
            c_m=64,
            msa_heads=8,
            pair_heads=4,
            c_outer=32,
            c_triangle=128,
            transition_factor=4,
            msa_dropout=0.15,
            pair_dropout=0.25,
            outer_product="middle",
        ),
        template=TemplateConfig(
            blocks=2,
            c_t=64,
            pair_heads=4,
            c_triangle=64,
            transition_factor=2,
            pair_dropout=0.25,
            attention_heads=4,
            attention_channels=64,
            max_templates=4,
        ),
        structure=StructureConfig(
            layers=8,
            c=384,
            heads=12,
            c_scalar=16,
            query_points=4,
            value_points=8,
            c_angles=128,
            angle_blocks=2,
            dropout=0.1,
        ),
        heads=HeadsConfig(distogram_bins=64, lddt_bins=50, c_lddt=128, aligned_error=False, aligned_error_bins=64),
    )


def test_masking_of_the_msa_is_the_papers() -> None:
    for name in PRESETS:
        sampling = preset(name).sampling
        assert sampling.masked_msa_fraction == (0.0 if name == "small" else 0.15)
        assert (sampling.uniform_prob, sampling.profile_prob, sampling.same_prob) == (0.1, 0.1, 0.1)


def test_the_tiny_preset_has_every_part_of_the_large_one() -> None:
    tiny = preset("tiny")
    assert tiny.model.template is not None
    assert tiny.model.heads.aligned_error
    assert tiny.sampling.max_templates == tiny.model.template.max_templates
    assert tiny.model.evoformer.blocks > 1


def test_names_are_those_of_deepminds_files() -> None:
    suffixes = ("", "_ptm", "_multimer", "_multimer_v2", "_multimer_v3")
    expected = {f"model_{number}{suffix}" for number in range(1, 6) for suffix in suffixes}
    assert set(PRESETS) == expected | {"alphalink_contacts", "alphalink_distances", "small", "tiny", "tiny_multimer"}


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"unknown preset 'model_6'; choose one of model_1, .*tiny"):
        preset("model_6")
