"""Named models: DeepMind's for monomers and complexes, the demonstration model, and tiny models for tests."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

from data_pipeline.io.config import (
    MAX_RECYCLES,
    Bound,
    Config,
    ConfigError,
    RestraintKind,
    added_setting,
    at_least,
    at_most,
)
from data_pipeline.io.errors import did_you_mean, printable
from data_pipeline.sampling.sample import SamplingConfig
from helixfold.model.config import (
    MSA_LETTERS,
    HeadsConfig,
    ModelConfig,
    StackConfig,
    StructureConfig,
    TemplateConfig,
)

# Angstrom, unit of translations in the structure module of AlphaFold-Multimer.
MULTIMER_POSITION_SCALE = 20.0
# Rows of the main MSA of DeepMind's models for monomers (AlphaFold 2, Suppl. Table 5). Template rows are appended to
# the MSA clusters. Models with templates sample fewer clusters, so that every MSA has 512 rows.
MSA_ROWS = 512
# Whether each of DeepMind's models reads templates, and its number of extra MSA rows. The `_ptm` models have the same
# settings, and also the aligned-error head.
_MONOMERS = {
    "model_1": (True, 5120),
    "model_2": (True, 1024),
    "model_3": (False, 5120),
    "model_4": (False, 5120),
    "model_5": (False, 1024),
}


_DISTANCE = Bound("be a distance in Angstrom", lambda value: 0 <= value < math.inf)


@dataclass(frozen=True, kw_only=True)
class Preset(Config):
    """Settings of a named network, its input samples and its recycling.

    `num_recycles` is the number of recycling iterations after the first. Recycling ends earlier once distances between
    C-alpha atoms change by less than `recycle_tolerance` Angstrom; 0 disables this.
    """

    name: str
    model: ModelConfig
    sampling: SamplingConfig
    num_recycles: Annotated[int, at_least(0), at_most(MAX_RECYCLES)] = 3
    recycle_tolerance: Annotated[float, _DISTANCE] = added_setting(0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        # The name is read from weights files and becomes part of file names.
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", self.name):
            raise ConfigError(
                f"the name of a model must have at most 64 letters, digits and _.- , got '{printable(self.name)}'"
            )

    def without_model(self) -> dict[str, Any]:
        """Return the settings except the model's, for the metadata of a parameter file."""
        return {name: value for name, value in self.to_dict().items() if name != "model"}


def _alphafold(name: str) -> Preset:
    """Return the settings of one of DeepMind's models for monomers, such as "model_1" or "model_1_ptm"."""
    templates, extra_rows = _MONOMERS[name.removesuffix("_ptm")]
    template = TemplateConfig() if templates else None
    slots = template.max_templates if template else 0
    return Preset(
        name=name,
        model=ModelConfig(template=template, heads=HeadsConfig(aligned_error=name.endswith("_ptm"))),
        sampling=SamplingConfig(max_msa_clusters=MSA_ROWS - slots, max_extra_msa=extra_rows, max_templates=slots),
    )


def _multimer(index: int, release: str) -> Preset:
    """Return the settings of one of DeepMind's models for complexes; `release` is "", "_v2" or "_v3"."""
    latest = release == "_v3"
    template = TemplateConfig()
    # MSA rows without template rows. Models 4 and 5 of the third release sample fewer extra rows.
    rows, extra_rows = (508, 2048 if index <= 3 else 1152) if latest else (252, 1152)
    return Preset(
        name=f"model_{index}_multimer{release}",
        model=ModelConfig(
            method="multimer",
            evoformer=StackConfig(outer_product="first"),
            extra_msa=StackConfig(outer_product="first", blocks=4, c_m=64),
            template=template,
            structure=StructureConfig(position_scale=MULTIMER_POSITION_SCALE),
            heads=HeadsConfig(aligned_error=True, masked_msa_letters=MSA_LETTERS - 1),
            triangle_projections="fused" if latest else "separate",
        ),
        sampling=SamplingConfig(max_msa_clusters=rows, max_extra_msa=extra_rows, max_templates=template.max_templates),
        # The third release recycles up to 20 times, until atoms stop moving. For the first two, these are ColabFold's
        # settings; DeepMind's program uses the settings of the third release.
        num_recycles=20 if latest else 3,
        recycle_tolerance=0.5 if latest else 0.0,
    )


def _alphalink(restraints: RestraintKind) -> Preset:
    """Return the settings of AlphaLink's networks, which are `model_5_ptm` with distance restraints."""
    monomer = _alphafold("model_5_ptm")
    return replace(monomer, name=f"alphalink_{restraints}", model=replace(monomer.model, restraints=restraints))


def tiny() -> Preset:
    """Return a network of half a million parameters with all modules of `model_1_ptm`, for tests."""
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


def tiny_multimer() -> Preset:
    """Return a tiny network with the modules of AlphaFold-Multimer, for tests."""
    monomer = tiny()
    model = monomer.model
    return replace(
        monomer,
        name="tiny_multimer",
        model=replace(
            model,
            method="multimer",
            evoformer=replace(model.evoformer, outer_product="first"),
            extra_msa=replace(model.extra_msa, outer_product="first"),
            structure=replace(model.structure, position_scale=MULTIMER_POSITION_SCALE),
            heads=replace(model.heads, masked_msa_letters=MSA_LETTERS - 1),
            triangle_projections="fused",
        ),
    )


def small() -> Preset:
    """Return the demonstration model of the package, which `helixfold train --recipe small` trains.

    Its pair stream has few channels, because their cost grows with the cube of the chain length. It reads directions
    and distances of templates, and its structure module starts from the template, because such a small network does not
    learn to rebuild a backbone well.
    """
    stack = StackConfig(
        blocks=6,
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
            c_z=64,
            c_s=128,
            evoformer=stack,
            extra_msa=replace(stack, blocks=1, c_m=64, msa_heads=4),
            template=TemplateConfig(
                blocks=1,
                c_t=32,
                pair_heads=2,
                c_triangle=32,
                pair_dropout=0.1,
                attention_channels=32,
                unit_vectors=True,
                initial_frames=True,
                update_factor=0.2,  # as in the last stages of the recipe
                plddt_slope=4.1,  # from examples/small/calibrate.py
            ),
            structure=StructureConfig(layers=6, c=128, heads=8, dropout=0.0),
            heads=HeadsConfig(c_lddt=32, aligned_error=True),
        ),
        sampling=SamplingConfig(
            max_msa_clusters=32, max_extra_msa=64, max_templates=2, masked_msa_fraction=0.0, target_as_extra=True
        ),
        num_recycles=2,
    )


# Functions that return the preset of each name.
PRESETS: dict[str, Callable[[], Preset]] = {
    **{name: partial(_alphafold, name) for name in (*_MONOMERS, *(f"{name}_ptm" for name in _MONOMERS))},
    **{
        f"model_{number}_multimer{release}": partial(_multimer, number, release)
        for release in ("_v3", "_v2", "")
        for number in range(1, 6)
    },
    "alphalink_contacts": partial(_alphalink, "contacts"),
    "alphalink_distances": partial(_alphalink, "distances"),
    "small": small,
    "tiny": tiny,
    "tiny_multimer": tiny_multimer,
}


def preset(name: str) -> Preset:
    """Return a preset by name; raise `ConfigError` for an unknown name."""
    if name not in PRESETS:
        choices = f"{', '.join(PRESETS)}{did_you_mean(name, PRESETS)}"
        raise ConfigError(f"unknown preset {name!r}; choose one of {choices}")
    return PRESETS[name]()


def with_parallel_blocks(model: ModelConfig) -> ModelConfig:
    """Return model settings with the block order of HelixFold's branch parallelism.

    The outer product mean is at the end of each block of the Evoformer and the extra-MSA stack.
    """
    return replace(
        model,
        evoformer=replace(model.evoformer, outer_product="end"),
        extra_msa=replace(model.extra_msa, outer_product="end"),
    )
