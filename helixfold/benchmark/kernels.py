"""Compile the network's kernels without a GPU, for `helixfold benchmark kernels --static`."""

import os
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Literal

import torch

from data_pipeline.errors import InputError
from helixfold.annotations import Parameter
from helixfold.benchmark.options import Model
from helixfold.benchmark.static.network_parts import PassSizes
from helixfold.options import File, Positive

Arch = Literal["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class KernelsOptions:
    """Options of `helixfold benchmark kernels`."""

    static: Annotated[bool, Parameter(negative=())] = False
    """Compile only; nothing is run, so no GPU is needed."""
    arch: tuple[Arch, ...] = ("sm_90",)
    """Architectures to compile for."""
    preset: Model = "model_1"
    """Model whose channels and heads are taken."""
    residues: Positive = 256
    """Number of residues."""
    rows: Positive = 128
    """MSA rows."""
    extra_rows: Positive = 1024
    """Extra MSA rows."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Precision of streams and parameters."""
    only: Annotated[str, Parameter(metavar="WORDS", show_default="all")] = ""
    """Compile only parts whose name contains this text."""
    json: File | None = None
    """Also write the table to this file."""


_USUAL = KernelsOptions()


def run(options: KernelsOptions = _USUAL) -> None:
    """Print registers and spills of every kernel in training, and the bytes of the tensors that launches are given."""
    if not options.static:
        raise InputError(
            "kernels are compiled and counted, not timed: add --static, or measure on a GPU with "
            "`helixfold benchmark ops --device cuda`"
        )
    if find_spec("triton") is None:
        raise InputError("kernels are compiled by Triton, which is not installed: pip install triton")
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        raise InputError("kernels are interpreted, not compiled, where TRITON_INTERPRET is set: unset it")
    from helixfold.benchmark.static.table import show  # noqa: PLC0415 (needs Triton, and help pages do not)

    sizes = PassSizes(
        preset=options.preset,
        residues=options.residues,
        rows=options.rows,
        extra_rows=options.extra_rows,
        dtype=getattr(torch, options.dtype),
    )
    show(sizes, options.arch, options.only, options.json)
