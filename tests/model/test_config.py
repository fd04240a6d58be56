"""Settings survive the trip to a file and back exactly, and wrong ones are refused with a clear word."""

import json
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from data_pipeline.io.errors import InputError
from helixfold.model.config import (
    ConfigError,
    HeadsConfig,
    ModelConfig,
    StackConfig,
    StructureConfig,
    TemplateConfig,
)
from helixfold.model.presets import PRESETS, preset


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_survives_a_round_trip_through_json(name: str) -> None:
    config = preset(name).model
    values = config.to_dict()
    assert ModelConfig.from_dict(values) == config
    restored = ModelConfig.from_dict(json.loads(json.dumps(values)))
    assert restored == config
    assert restored.to_dict() == values
    assert type(restored.evoformer) is StackConfig


def test_every_value_travels() -> None:
    stack = {"blocks": 3, "c_m": 12, "msa_heads": 3, "c_outer": 5, "c_triangle": 7, "transition_factor": 2}
    config = ModelConfig(
        c_z=24,
        c_s=30,
        evoformer=StackConfig(**stack, pair_heads=6, msa_dropout=0.1, pair_dropout=0.2, outer_product="end"),
        extra_msa=StackConfig(**stack, pair_heads=8, outer_product="end"),
        template=None,
        structure=StructureConfig(layers=2, c=6, heads=5, dropout=0.3),
        heads=HeadsConfig(lddt_bins=10, aligned_error=True),
    )
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert config.to_dict()["template"] is None
    assert config.to_dict()["evoformer"]["outer_product"] == "end"


def changed(path: str, value: Any) -> dict[str, Any]:
    """The default settings with one of them replaced."""
    values = ModelConfig().to_dict()
    *outer, last = path.split(".")
    inner = values
    for name in outer:
        inner = inner[name]
    inner[last] = value
    return values


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("c_z", 128.0),
        ("c_z", "128"),
        ("c_z", True),
        ("c_z", None),
        ("evoformer", None),
        ("evoformer", 3),
        ("evoformer.outer_product", "last"),
        ("evoformer.outer_product", None),
        ("evoformer.msa_dropout", "0.1"),
        ("evoformer.msa_dropout", True),
        ("template", "none"),
        ("template.c_t", []),
        ("heads.aligned_error", 1),
        ("heads.aligned_error", "yes"),
    ],
)
def test_values_of_another_type_are_refused(path: str, value: Any) -> None:
    with pytest.raises(ConfigError) as error:
        ModelConfig.from_dict(changed(path, value))
    name = path.rsplit(".", 1)[-1]
    assert f"Config.{name} must be " in str(error.value)
    assert str(error.value).endswith(f"got {value!r}")


def test_whole_numbers_pass_where_fractions_are_meant() -> None:
    config = ModelConfig.from_dict(changed("structure.dropout", 0))
    assert type(config.structure.dropout) is float


@pytest.mark.parametrize("inside", ["", "evoformer.", "template.", "heads."])
def test_unknown_settings_are_named(inside: str) -> None:
    with pytest.raises(ConfigError, match=r"unknown settings .*'colour'"):
        ModelConfig.from_dict(changed(f"{inside}colour", "red"))


@pytest.mark.parametrize(
    ("outer", "name"), [(None, "c_s"), ("evoformer", "blocks"), ("structure", "c"), ("heads", "lddt_bins")]
)
def test_missing_settings_are_named(outer: str | None, name: str) -> None:
    values = ModelConfig().to_dict()
    del (values[outer] if outer else values)[name]
    with pytest.raises(ConfigError, match=rf"missing settings .*'{name}'.*give them added_setting\(DEFAULT\) in"):
        ModelConfig.from_dict(values)


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (StackConfig, {"blocks": 0}, "StackConfig.blocks must be at least 1, got 0"),
        (StackConfig, {"c_outer": 0}, "StackConfig.c_outer must be at least 1, got 0"),
        (StackConfig, {"c_triangle": -1}, "StackConfig.c_triangle must be at least 1, got -1"),
        (StackConfig, {"transition_factor": 0}, "StackConfig.transition_factor must be at least 1, got 0"),
        (StackConfig, {"pair_heads": 0}, "StackConfig.pair_heads must be at least 1, got 0"),
        (StackConfig, {"msa_heads": 0}, "StackConfig.msa_heads must be at least 1, got 0"),
        (StackConfig, {"msa_heads": 7}, r"StackConfig.msa_heads \(7\) must divide c_m \(256\)"),
        (StackConfig, {"outer_product": "last"}, r"outer_product must be one of middle, .*got 'last'"),
        (StackConfig, {"msa_dropout": 1.0}, "StackConfig.msa_dropout must be at least 0 and below 1, got 1.0"),
        (StackConfig, {"pair_dropout": -0.1}, "StackConfig.pair_dropout must be at least 0 and below 1, got -0.1"),
        (StackConfig, {"pair_dropout": float("nan")}, "StackConfig.pair_dropout must be .* got nan"),
        (TemplateConfig, {"pair_dropout": 2}, "TemplateConfig.pair_dropout must be at least 0 and below 1, got 2"),
        (StructureConfig, {"dropout": -1}, "StructureConfig.dropout must be at least 0 and below 1, got -1"),
        (StructureConfig, {"angle_blocks": 0}, "StructureConfig.angle_blocks must be at least 1, got 0"),
        (TemplateConfig, {"blocks": 0}, "TemplateConfig.blocks must be at least 1, got 0"),
        (TemplateConfig, {"pair_heads": 3}, r"TemplateConfig.pair_heads \(3\) must divide c_t \(64\)"),
        (TemplateConfig, {"attention_heads": 5}, r"attention_heads \(5\) must divide attention_channels \(64\)"),
        (TemplateConfig, {"max_templates": 0}, "TemplateConfig.max_templates must be at least 1, got 0"),
        (StructureConfig, {"layers": 0}, "StructureConfig.layers must be at least 1, got 0"),
        (StructureConfig, {"value_points": 0}, "StructureConfig.value_points must be at least 1, got 0"),
        (HeadsConfig, {"lddt_bins": 0}, "HeadsConfig.lddt_bins must be at least 1, got 0"),
        (ModelConfig, {"c_z": 0}, "ModelConfig.c_z must be at least 1, got 0"),
        (ModelConfig, {"c_z": 130}, r"evoformer.pair_heads \(4\) must divide c_z \(130\)"),
        (ModelConfig, {"extra_msa": StackConfig(c_m=64, pair_heads=3)}, r"extra_msa.pair_heads \(3\) must divide c_z"),
        (ModelConfig, {"evoformer": StackConfig(outer_product="end")}, "must have the same outer_product"),
    ],
)
def test_impossible_values_are_refused(kind: type, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kind(**settings)


def test_an_error_in_settings_is_the_callers_mistake() -> None:
    assert issubclass(ConfigError, InputError)
    assert issubclass(ConfigError, ValueError)


def test_settings_are_changed_together_by_their_names() -> None:
    config = ModelConfig().with_settings([" structure.layers = 3", "evoformer.msa_heads=4", "evoformer.c_m=64"])
    assert (config.structure.layers, config.evoformer.msa_heads, config.evoformer.c_m) == (3, 4, 64)
    assert ModelConfig().with_settings(["evoformer.outer_product=first", "extra_msa.outer_product=first"]) != config


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("structure.layers", "a setting is written name=value, got 'structure.layers'"),
        ("structure.colour=3", "unknown setting 'structure.colour': 'colour' could be one of layers, c, "),
        ("colour=3", "unknown setting 'colour': 'colour' could be one of "),
        ("c_s.x=3", "unknown setting 'c_s.x': the setting before 'x' has no parts"),
        ("structure.layers=many", "StructureConfig.layers must be int, got 'many'"),
    ],
)
def test_changes_that_are_none_are_refused(setting: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ModelConfig().with_settings([setting])
    assert problem in str(caught.value)


def test_settings_cannot_be_changed_afterwards() -> None:
    config = ModelConfig()
    with pytest.raises(FrozenInstanceError):
        config.c_z = 64
    assert hash(config) == hash(ModelConfig())
    with pytest.raises(TypeError, match="positional"):
        StackConfig(48)
