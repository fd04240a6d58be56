"""Settings of the network, validated on construction and saved with every checkpoint."""

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from data_pipeline.io.config import (
    BELOW_ONE,
    FRACTION,
    POSITIVE,
    Config,
    ConfigError,
    RestraintKind,
    added_setting,
    at_least,
    at_most,
    between,
)

__all__ = ["Config", "ConfigError"]

# MSA letters: 20 residue types, unknown, gap, masked.
MSA_LETTERS = 23
# Maximum values of settings: of blocks, layers and templates, and of channels, heads, points and bins. AlphaFold 2 has
# 48 blocks and at most 384 channels.
MAX_BLOCKS, MAX_CHANNELS = 1000, 8192
Blocks = Annotated[int, at_least(1), at_most(MAX_BLOCKS)]
Channels = Annotated[int, at_least(1), at_most(MAX_CHANNELS)]
Dropout = Annotated[float, BELOW_ONE]

# Place of the outer product mean in a block: after the MSA updates, before them, or after the pair updates.
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

    blocks: Blocks = 48  # blocks of the stack
    c_m: Channels = 256  # channels of the MSA stream
    msa_heads: Channels = 8  # heads of MSA attention
    pair_heads: Channels = 4  # heads of triangle attention
    c_outer: Channels = 32  # channels of each operand of the outer product mean
    c_triangle: Channels = 128  # hidden channels of triangle multiplication
    transition_factor: Channels = 4  # channels in transitions, as a multiple of the stream's
    msa_dropout: Dropout = 0.15  # dropout rate of MSA row attention
    pair_dropout: Dropout = 0.25  # dropout rate of triangle updates
    outer_product: OuterProductPosition = "middle"  # place of the outer product mean

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_divisible("c_m", "msa_heads")


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

    blocks: Blocks = 2  # blocks of the template pair stack
    c_t: Channels = 64  # channels of the template stream
    pair_heads: Channels = 4  # heads of triangle attention
    c_triangle: Channels = 64  # channels of triangle multiplication
    transition_factor: Channels = 2  # channels in transitions, as a multiple of the stream's
    pair_dropout: Dropout = 0.25  # dropout of triangle updates
    attention_heads: Channels = 4  # heads of the attention over templates
    attention_channels: Channels = 64  # channels of this attention
    max_templates: Blocks = 4  # templates that the network reads at most
    unit_vectors: bool = added_setting(False)  # read directions of templates
    initial_frames: bool = added_setting(False)  # start from the first template's backbone
    update_factor: Annotated[float, FRACTION] = added_setting(1.0)  # factor of updates where the template is
    plddt_slope: float = added_setting(0.0)  # calibrates pLDDT where the template is

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_divisible("c_t", "pair_heads")
        self._require_divisible("attention_channels", "attention_heads")
        if (self.update_factor, self.plddt_slope) != (1.0, 0.0) and not self.initial_frames:
            raise ConfigError("update_factor and plddt_slope need initial_frames=true")


@dataclass(frozen=True, kw_only=True)
class StructureConfig(Config):
    """Settings of the structure module (AlphaFold 2, Suppl. Alg. 20 to 24).

    `layers` is the number of iterations, which share their parameters. `c` is the channels of the single representation
    inside, and `c_angles` and `angle_blocks` are the channels and blocks of the torsion predictor. `position_scale` is
    the unit of translations in Angstrom: 10 in AlphaFold 2, 20 in AlphaFold-Multimer.
    """

    layers: Blocks = 8  # iterations of the structure module
    c: Channels = 384  # channels of its single representation
    heads: Channels = 12  # heads of point attention
    c_scalar: Channels = 16  # channels of scalar queries and keys
    query_points: Channels = 4  # points of a query, for each head
    value_points: Channels = 8  # points of a value, for each head
    c_angles: Channels = 128  # channels of the torsion angles
    angle_blocks: Blocks = 2  # residual blocks for the torsion angles
    dropout: Dropout = 0.1  # dropout of updates
    position_scale: Annotated[float, POSITIVE] = added_setting(10.0)  # Å, unit of translations


@dataclass(frozen=True, kw_only=True)
class HeadsConfig(Config):
    """Settings of the output heads (AlphaFold 2, Suppl. Sec. 1.9).

    `c_lddt` is the hidden channels of the pLDDT head. With `aligned_error`, PAE and pTM are predicted. Only the `_ptm`
    and `_multimer` models have `aligned_error`. `masked_msa_letters` is the number of classes of the masked-MSA head:
    20 residue types, unknown and gap, and in AlphaFold 2 also the mask.
    """

    distogram_bins: Channels = 64  # bins of the distogram
    lddt_bins: Channels = 50  # bins of pLDDT
    c_lddt: Channels = 128  # channels of the pLDDT head
    aligned_error: bool = False  # predict PAE and pTM
    aligned_error_bins: Channels = 64  # bins of PAE
    masked_msa_letters: Annotated[int, between(MSA_LETTERS - 1, MSA_LETTERS)] = added_setting(MSA_LETTERS)


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Config):
    """Settings of the whole network; `c_z` and `c_s` are the channels of the pair and single representations.

    `method` selects the modules in which AlphaFold-Multimer differs from AlphaFold 2. `triangle_projections` does not
    change the network: with "fused", DeepMind's and OpenFold's files have one array for the projections to both
    operands of a triangle multiplication, as in AlphaFold-Multimer v3. With `restraints`, the network reads distance
    restraints of this kind, as AlphaLink's do.
    """

    c_z: Channels = 128  # channels of the pair representation
    c_s: Channels = 384  # channels of the single representation
    evoformer: StackConfig = field(default_factory=StackConfig)
    extra_msa: StackConfig = field(default_factory=lambda: StackConfig(blocks=4, c_m=64))
    template: TemplateConfig | None = field(default_factory=TemplateConfig)
    structure: StructureConfig = field(default_factory=StructureConfig)
    heads: HeadsConfig = field(default_factory=HeadsConfig)
    method: Method = added_setting("monomer")  # one chain, or complexes
    triangle_projections: TriangleProjections = added_setting("separate")  # form of these arrays in files
    restraints: RestraintKind | None = added_setting(None)  # kind of distance restraints that the network reads

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, stack in (("evoformer", self.evoformer), ("extra_msa", self.extra_msa)):
            if self.c_z % stack.pair_heads:
                raise ConfigError(f"{name}.pair_heads ({stack.pair_heads}) must divide c_z ({self.c_z})")
        if (
            self.method == "multimer"
            and self.template is not None
            and (self.template.unit_vectors or self.template.initial_frames)
        ):
            raise ConfigError("template.unit_vectors and template.initial_frames need method=monomer")
        if self.evoformer.outer_product != self.extra_msa.outer_product:
            raise ConfigError("evoformer and extra_msa must have the same outer_product")


def of_blocks(model: ModelConfig, blocks: int) -> ModelConfig:
    """Return the config of the same network with at most `blocks` blocks in each stack.

    The stacks are the Evoformer, the extra-MSA stack and the template pair stack. The structure module is unchanged.
    """
    template = model.template
    return replace(
        model,
        evoformer=replace(model.evoformer, blocks=min(blocks, model.evoformer.blocks)),
        extra_msa=replace(model.extra_msa, blocks=min(blocks, model.extra_msa.blocks)),
        template=None if template is None else replace(template, blocks=min(blocks, template.blocks)),
    )
