"""Settings of the network, validated on construction and saved with every checkpoint."""

import math
import typing
from dataclasses import dataclass, field, replace
from typing import Literal

from data_pipeline.io.config import Config, ConfigError, added_setting, require
from data_pipeline.io.errors import choice_problem

__all__ = ["Config", "ConfigError", "require"]

# MSA letters: 20 residue types, unknown, gap, masked.
MSA_LETTERS = 23
# Largest sizes of a network; AlphaFold 2 has 48 blocks and at most 384 channels.
MAX_BLOCKS, MAX_CHANNELS = 1000, 8192

OuterProductPosition = Literal["middle", "first", "end"]
# DeepMind's two networks: AlphaFold 2 for one chain, and AlphaFold-Multimer for complexes.
Method = Literal["monomer", "multimer"]
# How DeepMind's and OpenFold's files store the projections to the two operands of triangle multiplication.
TriangleProjections = Literal["separate", "fused"]


@dataclass(frozen=True, kw_only=True)
class StackConfig(Config):
    """Settings of the Evoformer (AlphaFold 2, Suppl. Alg. 6) or of the extra-MSA stack (Alg. 18).

    `outer_product` is the place of the outer product mean in a block: "middle" (AlphaFold 2), "first"
    (AlphaFold-Multimer) or "end" (HelixFold's parallel block, whose MSA and pair halves are independent).
    """

    blocks: int = 48
    c_m: int = 256
    msa_heads: int = 8
    pair_heads: int = 4
    c_outer: int = 32
    c_triangle: int = 128
    transition_factor: int = 4
    msa_dropout: float = 0.15
    pair_dropout: float = 0.25
    outer_product: OuterProductPosition = "middle"

    def __post_init__(self) -> None:
        self._require_positive("blocks", "c_outer", "c_triangle", "transition_factor", "pair_heads")
        self._require_at_most(MAX_BLOCKS, "blocks")
        self._require_at_most(
            MAX_CHANNELS, "c_m", "c_outer", "c_triangle", "transition_factor", "msa_heads", "pair_heads"
        )
        self._require_divisible("c_m", "msa_heads")
        self._require_fraction("msa_dropout", "pair_dropout")
        positions = typing.get_args(OuterProductPosition)
        if self.outer_product not in positions:
            raise ConfigError(f"StackConfig.outer_product {choice_problem(self.outer_product, positions)}")


@dataclass(frozen=True, kw_only=True)
class TemplateConfig(Config):
    """Settings of the template embedding (AlphaFold 2, Suppl. Sec. 1.7.1, Alg. 16 and 17).

    AlphaFold-Multimer averages the templates and ignores `attention_heads` and `attention_channels`. The last four
    settings are for AlphaFold 2's modules only.

    With `unit_vectors`, the edges of a template have the directions of Suppl. Table 1, which the released models do not
    read. With `initial_frames`, the structure module starts from the backbone of the first template instead of from all
    residues at the origin, so that a small network need not learn to rebuild a known backbone from distances. Its
    updates of residues in the template are multiplied by `update_factor`: a small factor preserves the template while
    the other residues are placed. `plddt_slope` times the lDDT in the middle of each pLDDT bin (0 to 1) is added to the
    logits of residues in the template, so that their confidence is calibrated separately.
    """

    blocks: int = 2
    c_t: int = 64
    pair_heads: int = 4
    c_triangle: int = 64
    transition_factor: int = 2
    pair_dropout: float = 0.25
    attention_heads: int = 4
    attention_channels: int = 64
    max_templates: int = 4
    unit_vectors: bool = added_setting(False)
    initial_frames: bool = added_setting(False)
    update_factor: float = added_setting(1.0)
    plddt_slope: float = added_setting(0.0)

    def __post_init__(self) -> None:
        self._require_positive("blocks", "c_triangle", "transition_factor", "max_templates")
        self._require_at_most(MAX_BLOCKS, "blocks", "max_templates")
        self._require_at_most(MAX_CHANNELS, "c_t", "pair_heads", "c_triangle", "transition_factor")
        self._require_at_most(MAX_CHANNELS, "attention_heads", "attention_channels")
        self._require_divisible("c_t", "pair_heads")
        self._require_divisible("attention_channels", "attention_heads")
        self._require_fraction("pair_dropout")
        if not 0 <= self.update_factor <= 1:
            raise ConfigError(f"update_factor must be from 0 to 1, got {self.update_factor}")
        if (self.update_factor, self.plddt_slope) != (1.0, 0.0) and not self.initial_frames:
            raise ConfigError("update_factor and plddt_slope need initial_frames=true")


@dataclass(frozen=True, kw_only=True)
class StructureConfig(Config):
    """Settings of the structure module (AlphaFold 2, Suppl. Alg. 20 to 24).

    `position_scale` is the unit of translations in Angstrom: 10 in AlphaFold 2, 20 in AlphaFold-Multimer.
    """

    layers: int = 8
    c: int = 384
    heads: int = 12
    c_scalar: int = 16
    query_points: int = 4
    value_points: int = 8
    c_angles: int = 128
    angle_blocks: int = 2
    dropout: float = 0.1
    position_scale: float = added_setting(10.0)

    def __post_init__(self) -> None:
        self._require_positive(
            "layers", "c", "heads", "c_scalar", "query_points", "value_points", "c_angles", "angle_blocks"
        )
        self._require_at_most(MAX_BLOCKS, "layers", "angle_blocks")
        self._require_at_most(MAX_CHANNELS, "c", "heads", "c_scalar", "query_points", "value_points", "c_angles")
        self._require_fraction("dropout")
        require(self, ["position_scale"], lambda value: 0 < value < math.inf, "be a length in Angstrom above 0")


@dataclass(frozen=True, kw_only=True)
class HeadsConfig(Config):
    """Settings of the output heads (AlphaFold 2, Suppl. Sec. 1.9).

    Only the `_ptm` and `_multimer` models have `aligned_error`. `masked_msa_letters` is the number of classes of the
    masked-MSA head: 20 residue types, unknown and gap, and in AlphaFold 2 also the mask.
    """

    distogram_bins: int = 64
    lddt_bins: int = 50
    c_lddt: int = 128
    aligned_error: bool = False
    aligned_error_bins: int = 64
    masked_msa_letters: int = added_setting(MSA_LETTERS)

    def __post_init__(self) -> None:
        self._require_positive("distogram_bins", "lddt_bins", "c_lddt", "aligned_error_bins")
        self._require_at_most(MAX_CHANNELS, "distogram_bins", "lddt_bins", "c_lddt", "aligned_error_bins")
        choices = (MSA_LETTERS - 1, MSA_LETTERS)
        require(self, ["masked_msa_letters"], lambda value: value in choices, f"be one of {choices}")


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Config):
    """Settings of the whole network; `c_z` and `c_s` are the channels of the pair and single representations.

    `method` selects the modules in which AlphaFold-Multimer differs from AlphaFold 2. `triangle_projections` does not
    change the network: with "fused", DeepMind's and OpenFold's files have one array for the projections to both
    operands of a triangle multiplication, as in AlphaFold-Multimer v3.
    """

    c_z: int = 128
    c_s: int = 384
    evoformer: StackConfig = field(default_factory=StackConfig)
    extra_msa: StackConfig = field(default_factory=lambda: StackConfig(blocks=4, c_m=64))
    template: TemplateConfig | None = field(default_factory=TemplateConfig)
    structure: StructureConfig = field(default_factory=StructureConfig)
    heads: HeadsConfig = field(default_factory=HeadsConfig)
    method: Method = added_setting("monomer")
    triangle_projections: TriangleProjections = added_setting("separate")

    def __post_init__(self) -> None:
        self._require_positive("c_z", "c_s")
        self._require_at_most(MAX_CHANNELS, "c_z", "c_s")
        for name, stack in (("evoformer", self.evoformer), ("extra_msa", self.extra_msa)):
            if self.c_z % stack.pair_heads:
                raise ConfigError(f"{name}.pair_heads ({stack.pair_heads}) must divide c_z ({self.c_z})")
        for name, choices in (("method", Method), ("triangle_projections", TriangleProjections)):
            if getattr(self, name) not in typing.get_args(choices):
                raise ConfigError(f"{name} {choice_problem(getattr(self, name), typing.get_args(choices))}")
        if (
            self.method == "multimer"
            and self.template is not None
            and (self.template.unit_vectors or self.template.initial_frames)
        ):
            raise ConfigError("template.unit_vectors and template.initial_frames need method=monomer")
        if self.evoformer.outer_product != self.extra_msa.outer_product:
            raise ConfigError("evoformer and extra_msa must have the same outer_product")


def of_blocks(model: ModelConfig, blocks: int) -> ModelConfig:
    """Return the config of the same network with at most `blocks` blocks in each stack."""
    template = model.template
    return replace(
        model,
        evoformer=replace(model.evoformer, blocks=min(blocks, model.evoformer.blocks)),
        extra_msa=replace(model.extra_msa, blocks=min(blocks, model.extra_msa.blocks)),
        template=None if template is None else replace(template, blocks=min(blocks, template.blocks)),
    )
