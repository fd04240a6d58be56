"""The outer product mean in tiles of edges, whose products of channels stay in the processor's cache."""

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import torch
from einops import rearrange
from torch import Tensor

from helixfold.ops.constants import COUNT_FLOOR
from helixfold.ops.cpu.blocks import of_all_cores, parts, steps
from helixfold.ops.cpu.products import add_product, mapped, product
from helixfold.ops.precision import product_dtype
from helixfold.ops.recomputed import recomputed
from helixfold.ops.weights import Affine

# Of masks that are read in float32 at a time.
_SEQUENCES = 512
# Products of a tile, for each core: they stay in its cache, twice, and matrix products are large enough to be fast.
_TILE_ELEMENTS = 2**19
# A tile as high as it is wide, for 32 x 32 channels: less of the operands is read for the same number of products.
_TILE_ROWS = 32


def outer_product_mean_rows(left: Tensor, right: Tensor, left_mask: Tensor, right_mask: Tensor, out: Affine) -> Tensor:
    """`outer_product_mean` on a CPU; a training pass keeps nothing but the arguments, of the left half its copy."""
    count = torch.full((*left.shape[:2], right.shape[2]), COUNT_FLOOR, device=left.device)
    for ours, theirs in zip(left_mask.split(_SEQUENCES, 2), right_mask.split(_SEQUENCES, 1), strict=True):
        count.baddbmm_(ours.float(), theirs.float())
    # Sequences last, so that a tile's operands are dense: no copy of the right half if it is so in memory.
    left, right = rearrange(left, "b i s c -> b (i c) s"), rearrange(right, "b s j d -> b (j d) s")
    return recomputed(
        _outer_product_mean,
        _outer_product_mean_gradients,
        left.contiguous(),
        right.contiguous(),
        count.reciprocal_(),
        *out.to(product_dtype(left.dtype)),
    )


def _outer_product_mean(left: Tensor, right: Tensor, scale: Tensor, weight: Tensor, offset: Tensor | None) -> Tensor:
    mean = left.new_empty(*scale.shape, weight.shape[0])
    for sample_left, sample_right, factors, edges in steps(zip(left, right, scale, mean, strict=True)):
        products = _OuterProducts(sample_left, sample_right, *factors.shape, dtype=weight.dtype)
        for tile in chain(*products.rows_of_tiles()):
            edges_of_tile = mapped(products.of(tile), weight, offset)
            place = edges[tile.rows, tile.columns]
            place.copy_(edges_of_tile.view(place.shape).float().mul_(factors[tile.rows, tile.columns, None]))
    return mean


def _outer_product_mean_gradients(
    needed: tuple[bool, ...],
    gradient: Tensor,
    left: Tensor,
    right: Tensor,
    scale: Tensor,
    weight: Tensor,
    offset: Tensor | None,
) -> tuple[Tensor | None, ...]:
    needs_left, needs_right, _, needs_weight, needs_offset = needed
    # Sums over tiles are float32 whatever the dtype is. A row of tiles completes its part of the left half; only
    # the right half's sum is there to the end.
    of_left, of_right = torch.empty_like(left), torch.zeros(right.shape, device=left.device)
    of_weight = torch.zeros(weight.shape, device=left.device)
    of_offset = of_weight.new_zeros(weight.shape[0])
    for index, factors in steps(enumerate(scale)):
        products = _OuterProducts(left[index], right[index], *factors.shape, dtype=weight.dtype)
        for tiles in products.rows_of_tiles():
            sum_left = torch.zeros(products.left[tiles[0].left].shape, device=left.device)
            for tile in tiles:
                given = (gradient[index, tile.rows, tile.columns] * factors[tile.rows, tile.columns, None]).flatten(
                    0, 1
                )
                if needs_offset:
                    of_offset += given.sum(0)
                given = given.to(weight.dtype)
                if needs_weight:
                    add_product(of_weight, given.T, products.of(tile))
                if needs_left or needs_right:
                    of_outer = products.gradient(given, weight, tile)
                    add_product(sum_left, of_outer, products.right_half(tile))
                    add_product(of_right[index, tile.right], of_outer.T, products.left_half(tile))
            of_left[index, tiles[0].left] = sum_left
    offset_gradient = of_offset.to(weight.dtype) if needs_offset else None
    return of_left, of_right.to(right.dtype), None, of_weight.to(weight.dtype), offset_gradient


class _Tile(NamedTuple):
    """Some edges, and the operands' channels that they are made from."""

    rows: slice
    columns: slice
    left: slice
    right: slice


class _OuterProducts:
    """The outer products of one sample's columns, tile by tile; each tile takes the room of the one before.

    The left half is [(i c) s] and the right one [(j d) s]; their products have the dtype they are multiplied in.
    """

    def __init__(self, left: Tensor, right: Tensor, i: int, j: int, *, dtype: torch.dtype) -> None:
        self.left, self.right, self.i, self.j = left, right, i, j
        self.c, self.d = len(left) // i, len(right) // j
        self.rows = min(i, _TILE_ROWS)
        self.columns = min(j, max(1, of_all_cores(_TILE_ELEMENTS) // (self.rows * self.c * self.d)))
        # New memory for each tile would have to be mapped each time.
        self.room = left.new_empty(self.rows * self.columns * self.c * self.d, dtype=dtype)

    def rows_of_tiles(self) -> Iterator[list[_Tile]]:
        """Tiles beside each other, for all rows."""
        for rows in parts(self.i, self.rows):
            left = slice(rows.start * self.c, rows.stop * self.c)
            yield [
                _Tile(rows, columns, left, slice(columns.start * self.d, columns.stop * self.d))
                for columns in parts(self.j, self.columns)
            ]

    def left_half(self, tile: _Tile) -> Tensor:
        """What a tile is made from of the left half, in the dtype of products."""
        return self.left[tile.left].to(self.room.dtype)

    def right_half(self, tile: _Tile) -> Tensor:
        """What a tile is made from of the right half, in the dtype of products."""
        return self.right[tile.right].to(self.room.dtype)

    def of(self, tile: _Tile) -> Tensor:
        """The products with their channels side by side, [(i j) (c d)]."""
        found = mapped(self.left_half(tile), self.right_half(tile))
        edges = self.room[: found.numel()].view(-1, tile.columns.stop - tile.columns.start, self.c, self.d)
        edges.copy_(rearrange(found, "(i c) (j d) -> i j c d", c=self.c, d=self.d))
        return edges.view(-1, self.c * self.d)

    def gradient(self, of_mapped: Tensor, weight: Tensor, tile: _Tile) -> Tensor:
        """The gradient of the products, as the matrix product gives them, [(i c) (j d)]."""
        found = product(of_mapped, weight)
        matrix = self.room[: found.numel()].view(tile.left.stop - tile.left.start, -1)
        edges = found.view(-1, tile.columns.stop - tile.columns.start, self.c, self.d)
        rearrange(matrix, "(i c) (j d) -> i j c d", c=self.c, d=self.d).copy_(edges)
        return matrix
