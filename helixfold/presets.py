"""Named models: DeepMind's ten monomer models, the small one in the package, and a tiny one for tests."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from data_pipeline.config import MAX_RECYCLES, Config, ConfigError
from data_pipeline.errors import printable
from data_pipeline.transforms.sample import SamplingConfig
from helixfold.config import HeadsConfig, ModelConfig, StackConfig, StructureConfig, TemplateConfig

# AlphaFold 2, Suppl. Table 5. Template rows are appended to the MSA clusters: models with templates sample that many
# clusters fewer, so that every MSA has 512 rows.
MSA_ROWS = 512
# Whether each of DeepMind's models reads templates, and how many extra MSA rows it samples. The `_ptm` models have the
# same settings and the aligned-error head besides.
_MONOMERS = {
    "model_1": (True, 5120),
    "model_2": (True, 1024),
    "model_3": (False, 5120),
    "model_4": (False, 5120),
    "model_5": (False, 1024),
}


@dataclass(frozen=True, kw_only=True)
class Preset(Config):
    """Settings of a named network, of its input samples, and its number of recycling iterations after the first."""

    name: str
    model: ModelConfig
    sampling: SamplingConfig
    num_recycles: int = 3

    def __post_init__(self) -> None:
        # The name is read from weights files and becomes part of file names.
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", self.name):
            raise ConfigError(f"a model's name is at most 64 letters, digits and _.- , got '{printable(self.name)}'")
        if self.num_recycles < 0:
            raise ConfigError(f"num_recycles must not be negative, got {self.num_recycles}")
        self._require_at_most(MAX_RECYCLES, "num_recycles")

    def without_model(self) -> dict[str, Any]:
        """Return the settings other than the model's, which a weights file holds beside the parameters."""
        return {name: value for name, value in self.to_dict().items() if name != "model"}


def _alphafold(name: str) -> Preset:
    templates, extra_rows = _MONOMERS[name.removesuffix("_ptm")]
    template = TemplateConfig() if templates else None
    slots = template.max_templates if template else 0
    return Preset(
        name=name,
        model=ModelConfig(template=template, heads=HeadsConfig(aligned_error=name.endswith("_ptm"))),
        sampling=SamplingConfig(max_msa_clusters=MSA_ROWS - slots, max_extra_msa=extra_rows, max_templates=slots),
    )


def tiny() -> Preset:
    """Return a network of half a million parameters with every part of the large one, for tests."""
    stack = StackConfig(blocks=2, c_m=64, msa_heads=4, pair_heads=4, c_outer=16, c_triangle=32, transition_factor=2)
    return Preset(
        name="tiny",
        model=ModelConfig(
            c_z=32,
            c_s=64,
            evoformer=stack,
            extra_msa=replace(stack, blocks=1, c_m=32),
            template=TemplateConfig(blocks=1, c_t=32, c_triangle=32, attention_channels=32),
            structure=StructureConfig(layers=4, c=64, heads=4, c_angles=32),
            heads=HeadsConfig(c_lddt=32, aligned_error=True),
        ),
        sampling=SamplingConfig(max_msa_clusters=60, max_extra_msa=128, max_templates=4),
    )


def small() -> Preset:
    """Return the demonstration model in the package.

    Its pair stream has few channels, since their cost grows with the cube of the chain's length, and its MSA has few
    rows, none of them masked.
    """
    stack = StackConfig(
        blocks=4,
        c_m=128,
        msa_heads=8,
        pair_heads=2,
        c_outer=16,
        c_triangle=32,
        transition_factor=2,
        msa_dropout=0.05,
        pair_dropout=0.1,
    )
    return Preset(
        name="small",
        model=ModelConfig(
            c_z=48,
            c_s=128,
            evoformer=stack,
            extra_msa=replace(stack, blocks=1, c_m=64, msa_heads=4),
            template=None,
            structure=StructureConfig(layers=4, c=128, heads=8, dropout=0.0),
            heads=HeadsConfig(c_lddt=32, aligned_error=True),
        ),
        sampling=SamplingConfig(
            max_msa_clusters=8, max_extra_msa=32, max_templates=0, masked_msa_fraction=0.0, target_as_extra=True
        ),
        num_recycles=0,
    )


PRESETS: dict[str, Callable[[], Preset]] = {
    **{name: partial(_alphafold, name) for name in (*_MONOMERS, *(f"{name}_ptm" for name in _MONOMERS))},
    "small": small,
    "tiny": tiny,
}


def preset(name: str) -> Preset:
    """Return the preset of that name; raise `ConfigError` if there is none."""
    if name not in PRESETS:
        raise ConfigError(f"there is no preset {name!r}; choose one of {', '.join(PRESETS)}")
    return PRESETS[name]()


def with_parallel_blocks(model: ModelConfig) -> ModelConfig:
    """Return the model with the block order of HelixFold's branch parallelism."""
    return replace(
        model,
        evoformer=replace(model.evoformer, outer_product="end"),
        extra_msa=replace(model.extra_msa, outer_product="end"),
    )
