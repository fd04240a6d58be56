"""The outer product mean in tiles of edges, whose products of channels stay in the processor's cache."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from einops import rearrange
from torch import Tensor

from helixfold.ops.cpu.blocks import of_all_cores, parts
from helixfold.ops.cpu.products import add_product, mapped, product
from helixfold.ops.linear import Affine

# Products of a tile, for each core: they stay in its cache, twice, and matrix products are large enough to be fast.
_TILE_ELEMENTS = 2**19
# A tile as high as it is wide, for 32 x 32 channels: less of the operands is read for the same number of products.
_TILE_ROWS = 32


def outer_product_mean_rows(left: Tensor, right: Tensor, scale: Tensor, out: Affine) -> Tensor:
    """`outer_product_mean` on a CPU, with what edges are multiplied by as `scale` [b i j].

    A training pass keeps nothing but the arguments.
    """
    mean: Tensor = _OuterProductMean.apply(left, right, scale, *out.to(left.dtype))
    return mean


class _OuterProductMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, scale: Tensor, weight: Tensor, offset: Tensor | None) -> Tensor:
        ctx.save_for_backward(left, right, scale, weight)
        mean = left.new_empty(*scale.shape, weight.shape[0])
        for sample_left, sample_right, factors, edges in zip(left, right, scale, mean, strict=True):
            products = _OuterProducts(sample_left, sample_right)
            for tile in products.tiles():
                outer = products.of(tile)
                edges_of_tile = mapped(outer, weight, offset)
                place = edges[tile.rows, tile.columns]
                place.copy_(edges_of_tile.view(place.shape).float().mul_(factors[tile.rows, tile.columns, None]))
        return mean

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        left, right, scale, weight = ctx.saved_tensors
        needs_left, needs_right, _, needs_weight, needs_offset = ctx.needs_input_grad
        of_left, of_right = torch.empty_like(left), torch.empty_like(right)
        # Sums over tiles are float32 whatever the dtype is.
        of_weight, of_offset = torch.zeros(weight.shape), torch.zeros(weight.shape[0])
        for index, factors in enumerate(scale):
            products = _OuterProducts(left[index], right[index])
            sum_left, sum_right = torch.zeros(products.left.shape), torch.zeros(products.right.shape)
            for tile in products.tiles():
                given = gradient[index, tile.rows, tile.columns] * factors[tile.rows, tile.columns, None]
                given = given.view(-1, weight.shape[0])
                if needs_offset:
                    of_offset += given.sum(0)
                given = given.to(left.dtype)
                if needs_weight:
                    add_product(of_weight, given.T, products.of(tile))
                if needs_left or needs_right:
                    of_outer = products.gradient(given, weight, tile)
                    add_product(sum_left[tile.left], of_outer, products.right[tile.right])
                    add_product(sum_right[tile.right], of_outer.T, products.left[tile.left])
            of_left[index] = rearrange(sum_left, "(i c) s -> i s c", c=left.shape[-1])
            of_right[index] = rearrange(sum_right, "(j d) s -> s j d", d=right.shape[-1])
        return of_left, of_right, None, of_weight.to(weight.dtype), of_offset.to(weight.dtype) if needs_offset else None


class _Tile(NamedTuple):
    """Some edges, and the operands' channels that they are made from."""

    rows: slice
    columns: slice
    left: slice
    right: slice


class _OuterProducts:
    """The outer products of one sample's columns, tile by tile; each tile takes the room of the one before."""

    def __init__(self, left: Tensor, right: Tensor) -> None:
        (i, _, c), (_, j, d) = left.shape, right.shape
        self.i, self.j, self.c, self.d = i, j, c, d
        # Sequences last, so that a tile's operands are dense: no copy of the right half if it is so in memory.
        self.left, self.right = rearrange(left, "i s c -> (i c) s"), rearrange(right, "s j d -> (j d) s").contiguous()
        self.rows = min(i, _TILE_ROWS)
        self.columns = min(j, max(1, of_all_cores(_TILE_ELEMENTS) // (self.rows * c * d)))
        # New memory for each tile would have to be mapped each time.
        self.room = left.new_empty(self.rows * self.columns * c * d)

    def tiles(self) -> Iterator[_Tile]:
        for rows in parts(self.i, self.rows):
            for columns in parts(self.j, self.columns):
                left, right = (
                    slice(part.start * width, part.stop * width) for part, width in ((rows, self.c), (columns, self.d))
                )
                yield _Tile(rows, columns, left, right)

    def of(self, tile: _Tile) -> Tensor:
        """The products with their channels side by side, [(i j) (c d)]."""
        found = mapped(self.left[tile.left], self.right[tile.right])
        edges = self._room(found.numel()).view(-1, tile.columns.stop - tile.columns.start, self.c, self.d)
        edges.copy_(rearrange(found, "(i c) (j d) -> i j c d", c=self.c, d=self.d))
        return edges.view(-1, self.c * self.d)

    def gradient(self, of_mapped: Tensor, weight: Tensor, tile: _Tile) -> Tensor:
        """The gradient of the products, as the matrix product gives them, [(i c) (j d)]."""
        found = product(of_mapped, weight)
        matrix = self._room(found.numel()).view(tile.left.stop - tile.left.start, -1)
        edges = found.view(-1, tile.columns.stop - tile.columns.start, self.c, self.d)
        rearrange(matrix, "(i c) (j d) -> i j c d", c=self.c, d=self.d).copy_(edges)
        return matrix

    def _room(self, size: int) -> Tensor:
        return self.room[:size]
