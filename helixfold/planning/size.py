"""Size of the input of a pass, and the memory that it takes."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from helixfold.model.config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class PassSize:
    """Size of the input of a pass through the network.

    `msa_rows` are sampled sequences, without the rows that templates add below them. `ensemble` is the number of
    samples of the MSA in memory, and `ranks` the number of ranks that share a prediction.
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
    """Peak memory of each stage of a pass in bytes, beyond that of the process with the model loaded.

    `spilled` is the bytes of streams on a disk, or in the host's memory beside a GPU.
    """

    stages: Mapping[str, int]
    spilled: int = 0

    @property
    def peak(self) -> int:
        """Return the most bytes of any stage."""
        return max(self.stages.values())


def streams(config: ModelConfig, size: PassSize) -> tuple[int, int, int]:
    """Return the elements of a rank's part of the pair tensor, the MSA and the extra MSA."""
    columns = -(-size.residues // size.ranks)
    rows = size.msa_rows + (size.templates if config.template else 0)
    return (
        size.residues * columns * config.c_z,
        rows * columns * config.evoformer.c_m,
        size.extra_rows * columns * config.extra_msa.c_m,
    )


def floor(config: ModelConfig, size: PassSize) -> int:
    """Return the bytes of a rank's part of two pair tensors, the MSA and the extra MSA.

    Every Evoformer that keeps its streams in memory needs at least these.
    """
    pair, msa, extra = streams(config, size)
    return (2 * pair + msa + extra) * size.dtype.itemsize


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype on the command line, such as "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def gib(size: int) -> str:
    """Return a number of bytes as text in GiB, such as "1.5 GiB"."""
    return f"{size / 2**30:,.1f} GiB"
