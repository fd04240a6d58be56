"""Types for the size of the network's input and the memory that one pass of the network takes."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from helixfold.model.config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class PassSize:
    """Size of the network's input for one target or training sample.

    `residues` and `templates` are numbers of residues and templates. `msa_rows` counts sampled sequences, without the
    rows that templates add. `extra_rows` counts extra sequences, and `dtype` is the precision of the streams.
    `ensemble` is the number of MSA samples in memory, and `ranks` the number of ranks that share the input.
    """

    residues: int
    msa_rows: int
    extra_rows: int
    templates: int
    dtype: torch.dtype
    ensemble: int = 1
    ranks: int = 1


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Peak memory of one pass of the network by stage, in bytes, beyond what the process with the loaded model uses.

    `stages` has the peak of each stage by its name on the screen, such as "Evoformer". `spilled` is the maximum bytes
    of streams on disk, or, for a GPU, in the host's memory.
    """

    stages: Mapping[str, int]
    spilled: int = 0

    @property
    def peak(self) -> int:
        """Return the maximum over all stages, in bytes."""
        return max(self.stages.values())


def streams(config: ModelConfig, size: PassSize) -> tuple[int, int, int]:
    """Return the numbers of elements (not bytes) of the pair stream, the MSA and the extra MSA on one rank.

    The rows of templates count in the MSA if the model has templates.
    """
    columns = -(-size.residues // size.ranks)
    rows = size.msa_rows + (size.templates if config.template else 0)
    return (
        size.residues * columns * config.c_z,
        rows * columns * config.evoformer.c_m,
        size.extra_rows * columns * config.extra_msa.c_m,
    )


def floor(config: ModelConfig, size: PassSize) -> int:
    """Return the bytes of two pair streams, the MSA and the extra MSA on one rank.

    This is the minimum for an Evoformer that keeps its streams in memory.
    """
    pair, msa, extra = streams(config, size)
    return (2 * pair + msa + extra) * size.dtype.itemsize


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype on the command line, such as "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def gib(size: int) -> str:
    """Return a number of bytes as text with one decimal, such as "1.5 GiB"; below 0.1 GiB in MiB."""
    return f"{size / 2**30:,.1f} GiB" if size >= 0.1 * 2**30 else f"{size / 2**20:,.1f} MiB"
