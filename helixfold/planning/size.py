"""How large a pass is, and how bytes are written."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from helixfold.config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class PassSize:
    """What a pass reads: `msa_rows` are sampled sequences, without the rows that templates add below them.

    `ensemble` draws are there at once, and `ranks` carry a prediction out together.
    """

    residues: int
    msa_rows: int
    extra_rows: int
    templates: int
    dtype: torch.dtype
    ensemble: int = 1
    ranks: int = 1


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Bytes beyond what the process holds with the model loaded: the most of each stage, and of all of them.

    `spilled` are bytes elsewhere: on a disk, or beside a GPU in the host's memory.
    """

    stages: Mapping[str, int]
    spilled: int = 0

    @property
    def peak(self) -> int:
        """The most bytes of any stage."""
        return max(self.stages.values())


def floor(config: ModelConfig, size: PassSize) -> int:
    """Return the bytes of two pair tensors, the MSA and the extra MSA, of a rank's part of them.

    No Evoformer that holds its streams can do without these.
    """
    columns = -(-size.residues // size.ranks)
    rows = size.msa_rows + (size.templates if config.template else 0)
    pair, msa, extra = (
        count * columns * channels * size.dtype.itemsize
        for count, channels in (
            (size.residues, config.c_z),
            (rows, config.evoformer.c_m),
            (size.extra_rows, config.extra_msa.c_m),
        )
    )
    return 2 * pair + msa + extra


def of_blocks(model: ModelConfig, blocks: int) -> ModelConfig:
    """Return the network with at most so many blocks in each stack, of full size."""
    template = model.template
    return replace(
        model,
        evoformer=replace(model.evoformer, blocks=min(blocks, model.evoformer.blocks)),
        extra_msa=replace(model.extra_msa, blocks=min(blocks, model.extra_msa.blocks)),
        template=None if template is None else replace(template, blocks=min(blocks, template.blocks)),
    )


def gib(size: int) -> str:
    """Return bytes as text, in GiB."""
    return f"{size / 2**30:,.1f} GiB"
