"""Names of parameters in our model, in DeepMind's files and in OpenFold's checkpoints.

DeepMind's names omit the common scope `alphafold/alphafold_iteration`; a leaf follows `//`. In stacks, `*` stands for
the block's number; DeepMind has one array for the whole stack, with a leading axis for blocks. OpenFold's tensors have
our axes, but query, key and value are separate there and concatenated in ours.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from helixfold.weights.conversion import IDENTITY, TRANSPOSE, Axes


@dataclass(frozen=True, kw_only=True)
class ParameterNames:
    """Names of one parameter, or of the same parameter in each of `blocks` blocks; `axes` relates DeepMind's array.

    Where one program has several arrays for one of another, these are concatenated in the order given here; OpenFold
    has some in reverse.
    """

    ours: tuple[str, ...]
    alphafold: tuple[str, ...]
    openfold: tuple[str, ...]
    axes: Axes = IDENTITY
    blocks: int | None = None
    reversed_in_openfold: bool = False


class ModulePath(NamedTuple):
    """Path of a module in each of the three programs."""

    ours: str
    alphafold: str
    openfold: str

    def child(self, ours: str, alphafold: str, openfold: str) -> "ModulePath":
        """Return the path of a submodule; an empty name means the module itself."""
        return ModulePath(
            ".".join(filter(None, (self.ours, ours))),
            "/".join(filter(None, (self.alphafold, alphafold))),
            ".".join(filter(None, (self.openfold, openfold))),
        )

    def parameter(self, ours: str, leaf: str, openfold: str, axes: Axes = IDENTITY) -> ParameterNames:
        """Return the names of a parameter of this module."""
        return self.joined(ours, [(leaf, openfold)], axes)

    def joined(self, ours: str, parts: Iterable[tuple[str, str]], axes: Axes) -> ParameterNames:
        """Return the names of a parameter that others split into `parts`: (DeepMind's leaf, OpenFold's name)."""
        leaves, names = zip(*parts, strict=True)
        return ParameterNames(
            ours=(f"{self.ours}.{ours}",),
            alphafold=tuple(f"{self.alphafold}//{leaf}" for leaf in leaves),
            openfold=tuple(f"{self.openfold}.{name}" for name in names),
            axes=axes,
        )


def stacked(rows: Iterable[ParameterNames], blocks: int) -> Iterator[ParameterNames]:
    """Yield rows of one block as rows of a stack of blocks."""
    return (replace(row, blocks=blocks) for row in rows)


def linears(module: ModulePath, *names: tuple[str, str, str]) -> Iterator[ParameterNames]:
    """Yield weights and biases of linear submodules, given by their three names."""
    for name in names:
        yield module.child(*name).parameter("weight", "weights", "weight", TRANSPOSE)
        yield module.child(*name).parameter("bias", "bias", "bias")


def norms(module: ModulePath, *names: tuple[str, str, str]) -> Iterator[ParameterNames]:
    """Yield weights and biases of layer norms, given by their three names."""
    for name in names:
        yield module.child(*name).parameter("weight", "scale", "weight")
        yield module.child(*name).parameter("bias", "offset", "bias")
