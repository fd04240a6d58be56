"""The outer product mean on a CPU in tiles of edges, whose outer products stay in the cache."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import torch
from einops import rearrange
from torch import Tensor

from helixfold.ops.constants import COUNT_FLOOR
from helixfold.ops.cpu.blocks import for_all_cores, slices, steps
from helixfold.ops.cpu.fused_norm import MapGradient
from helixfold.ops.cpu.products import add_product, mapped, product
from helixfold.ops.cpu.result import Result, change_or_sum
from helixfold.ops.precision import product_dtype
from helixfold.ops.recomputed import SavedIntermediates
from helixfold.ops.residual import Residual
from helixfold.ops.sizes import loops_if_large
from helixfold.ops.weights import Affine

# Minimum sequences for which outer products, which are sums over sequences, are worth saving.
_SAVED_SEQUENCES = 256
# Sequences whose masks are converted to float32 at a time.
_SEQUENCES = 512
# Elements of the outer products of a tile, per core: two copies fit its cache, and matrix products are fast.
_TILE_ELEMENTS = 2**19
# With 32 x 32 channels, this makes tiles square, so that less of the operands is read per product.
_TILE_ROWS = 32


def outer_product_mean_rows(
    left: Tensor,
    right: Tensor,
    left_mask: Tensor,
    right_mask: Tensor,
    out: Affine,
    *,
    residual: Residual | None = None,
) -> Tensor:
    """Compute `outer_product_mean` on a CPU, and add it to the stream of `residual`, if any.

    The arguments and a copy of the left operand are saved. Outer products over many sequences are saved for the
    gradients or recomputed.
    """
    count = torch.full((*left.shape[:2], right.shape[2]), COUNT_FLOOR, device=left.device)
    for left_part, right_part in zip(left_mask.split(_SEQUENCES, 2), right_mask.split(_SEQUENCES, 1), strict=True):
        count.baddbmm_(left_part.float(), right_part.float())
    # With sequences last, the operands of a tile are dense. The model's right operand already has this memory layout.
    left, right = rearrange(left, "b i s c -> b (i c) s"), rearrange(right, "b s j d -> b (j d) s")
    # The pair stream may be large where the operands are not.
    with loops_if_large(count.numel() * len(out.weight)):
        return change_or_sum(
            residual,
            _outer_product_mean,
            _outer_product_mean_gradients,
            left.contiguous(),
            right.contiguous(),
            count.reciprocal_(),
            *out.to(product_dtype(left.dtype)),
            can_save=True,
        )


def outer_product_mean_adding_rows(
    residual: Residual, left: Tensor, right: Tensor, left_mask: Tensor, right_mask: Tensor, out: Affine
) -> Tensor:
    """Compute `outer_product_mean` on a CPU, and add it to the stream of `residual`."""
    return outer_product_mean_rows(left, right, left_mask, right_mask, out, residual=residual)


def _outer_product_mean(
    left: Tensor,
    right: Tensor,
    scale: Tensor,
    weight: Tensor,
    offset: Tensor | None,
    *,
    saved: SavedIntermediates,
    residual: Residual | None = None,
) -> Tensor:
    """Return the mapped means of outer products, times `scale` [b i j], the reciprocal count of sequences.

    With `residual`, return its stream plus these.
    """
    like = left.new_empty(1).expand(*scale.shape, len(weight)) if residual is None else residual.stream
    mean = Result(like, residual)
    is_worth_it = left.shape[2] >= _SAVED_SEQUENCES
    buffer = saved.buffer(len(left), left.shape[1] * right.shape[1], like=weight) if is_worth_it else None
    for index, factors in steps(enumerate(scale)):
        storage = None if buffer is None else buffer[index]
        products = _OuterProducts(left[index], right[index], *factors.shape, dtype=weight.dtype, storage=storage)
        for tile in chain(*products.rows_of_tiles()):
            result = mapped(products.compute(tile), weight, offset).float()
            result.mul_(factors[tile.rows, tile.columns].reshape(-1, 1))
            mean.write((index, tile.rows, tile.columns), result.to(left.dtype))
    return mean.tensor


def _outer_product_mean_gradients(
    needed: tuple[bool, ...],
    gradient: Tensor,
    left: Tensor,
    right: Tensor,
    scale: Tensor,
    weight: Tensor,
    offset: Tensor | None,
    saved: Sequence[Tensor],
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the arguments of `_outer_product_mean`; `saved` has the outer products or is empty."""
    needs_left, needs_right, _, needs_weight, needs_offset = needed
    # Sums over tiles are float32 for every dtype. A row of tiles completes its part of the gradient of the left
    # operand. The gradient of the right operand is summed over all tiles.
    grad_left, grad_right = torch.empty_like(left), torch.zeros(right.shape, device=left.device)
    grad_map = MapGradient(needs_weight=needs_weight, needs_bias=needs_offset)
    for index, factors in steps(enumerate(scale)):
        storage = saved[0][index] if saved else None
        products = _OuterProducts(left[index], right[index], *factors.shape, dtype=weight.dtype, storage=storage)
        for tiles in products.rows_of_tiles():
            sum_left = torch.zeros(products.left[tiles[0].left].shape, device=left.device)
            for tile in tiles:
                grad_tile = (gradient[index, tile.rows, tile.columns] * factors[tile.rows, tile.columns, None]).flatten(
                    0, 1
                )
                grad_tile = grad_tile.to(weight.dtype)
                if needs_weight or needs_offset:
                    grad_map.add(grad_tile.mT, products.saved_products(tile) if saved else products.compute(tile))
                if needs_left or needs_right:
                    grad_outer = products.gradient(grad_tile, weight, tile)
                    add_product(sum_left, grad_outer, products.right_operand(tile))
                    add_product(grad_right[index, tile.right], grad_outer.T, products.left_operand(tile))
            grad_left[index, tiles[0].left] = sum_left
    grad_parameters = (None if each is None else each.to(weight.dtype) for each in (grad_map.weight, grad_map.bias))
    return grad_left, grad_right.to(right.dtype), None, *grad_parameters


class _Tile(NamedTuple):
    """A tile of edges, and the rows of the operands that it is computed from."""

    rows: slice  # i
    columns: slice  # j
    left: slice  # (i c)
    right: slice  # (j d)


class _OuterProducts:
    """The outer products of the columns of one sample, computed tile by tile in the same memory.

    The left operand is [(i c) s] and the right one [(j d) s]. Matrix products are in `dtype`. If the products are
    saved, `storage` is the memory for all tiles, one after the other.
    """

    def __init__(
        self, left: Tensor, right: Tensor, i: int, j: int, *, dtype: torch.dtype, storage: Tensor | None
    ) -> None:
        """Choose the size of tiles for `i` rows and `j` columns of edges, and allocate their memory."""
        self.left, self.right, self.i, self.j, self.storage = left, right, i, j, storage
        self.c, self.d = len(left) // i, len(right) // j
        self.rows = min(i, _TILE_ROWS)
        self.columns = min(j, max(1, for_all_cores(_TILE_ELEMENTS) // (self.rows * self.c * self.d)))
        # All tiles share this memory, because new memory would be mapped page by page for each tile.
        self.memory = left.new_empty(self.rows * self.columns * self.c * self.d, dtype=dtype)

    def rows_of_tiles(self) -> Iterator[list[_Tile]]:
        """Yield lists of tiles with the same rows."""
        for rows in slices(self.i, self.rows):
            left = slice(rows.start * self.c, rows.stop * self.c)
            yield [
                _Tile(rows, columns, left, slice(columns.start * self.d, columns.stop * self.d))
                for columns in slices(self.j, self.columns)
            ]

    def left_operand(self, tile: _Tile) -> Tensor:
        """Return the rows of the left operand for a tile, in the dtype of products."""
        return self.left[tile.left].to(self.memory.dtype)

    def right_operand(self, tile: _Tile) -> Tensor:
        """Return the rows of the right operand for a tile, in the dtype of products."""
        return self.right[tile.right].to(self.memory.dtype)

    def compute(self, tile: _Tile) -> Tensor:
        """Return the outer products [(i j) (c d)] of a tile, which the next tile overwrites unless they are saved."""
        products = mapped(self.left_operand(tile), self.right_operand(tile))
        outer = (
            self.memory[: products.numel()].view(-1, self.c * self.d)
            if self.storage is None
            else self.saved_products(tile)
        )
        edges = outer.view(-1, tile.columns.stop - tile.columns.start, self.c, self.d)
        edges.copy_(rearrange(products, "(i c) (j d) -> i j c d", c=self.c, d=self.d))
        return outer

    def saved_products(self, tile: _Tile) -> Tensor:
        """Return the saved outer products [(i j) (c d)] of a tile."""
        assert self.storage is not None, "the products are not saved"
        rows, columns = tile.rows.stop - tile.rows.start, tile.columns.stop - tile.columns.start
        first = tile.rows.start * self.j + rows * tile.columns.start
        return self.storage.view(-1, self.c * self.d)[first : first + rows * columns]

    def gradient(self, grad_mapped: Tensor, weight: Tensor, tile: _Tile) -> Tensor:
        """Return the gradient of the matrix product [(i c) (j d)] of a tile, which the next tile overwrites."""
        grad_products = product(grad_mapped, weight)
        matrix = self.memory[: grad_products.numel()].view(tile.left.stop - tile.left.start, -1)
        edges = grad_products.view(-1, tile.columns.stop - tile.columns.start, self.c, self.d)
        rearrange(matrix, "(i c) (j d) -> i j c d", c=self.c, d=self.d).copy_(edges)
        return matrix
