"""Apply branch parallelism, activation checkpointing and axial parallelism to a model, in this order."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from helixfold.execution.recompute import MethodReplacement, RecomputeConfig, recompute, replace_method, restore_methods
from helixfold.execution.slabs import Slabs
from helixfold.execution.whole import Whole
from helixfold.model.alphafold import AlphaFold
from helixfold.model.evoformer import EvoformerBlock, Streams
from helixfold.model.update import ContextInput, Executor, Stream, Update, as_tensor
from helixfold.parallel.axial import Axial
from helixfold.parallel.collectives import Channel, Message
from helixfold.parallel.mesh import Layout, Mesh
from helixfold.parallel.shard import Shard

MSA_RANK = 0  # rank in a branch group that computes the MSA half of blocks


def divide_blocks(model: AlphaFold, channel: Channel) -> None:
    """Make this rank compute only its half of every block and exchange results with the other rank.

    After the Evoformer, the MSA stream is broadcast from the rank that computed it. Raise `ConfigError` if the halves
    of a block depend on each other.
    """
    Layout(bp=channel.group.size).require_blocks(model.config)
    for stack in (model.extra_msa_stack, model.evoformer):
        for block in stack.blocks:
            assert isinstance(block, EvoformerBlock)
            replace_method(block, "forward", partial(_BranchForward, block, channel))
    # The MSA stream of the extra-MSA stack is not used after it.
    replace_method(model.evoformer, "forward", partial(_BroadcastMSA, channel))


class _BranchForward(MethodReplacement):
    """Replacement of a block's `forward` on one of two ranks; the pair rank does not change the MSA."""

    def __init__(self, block: EvoformerBlock, channel: Channel, method: Callable[..., Streams]) -> None:
        super().__init__(method)
        self.block, self.channel = block, channel

    def __call__(self, run: Executor, msa: Stream, pair: Stream, msa_mask: Tensor, pair_mask: Tensor) -> Streams:
        block, skip = self.block, _DrawOnly()
        if self.channel.group.rank == MSA_RANK:
            msa = block.msa_half(run, msa, pair, msa_mask, pair_mask)
            block.pair_half(skip, pair, pair_mask)
            zeros = _with_part(pair, torch.zeros_like(_part(pair)))
            own = run(block.outer_product_mean, zeros, pair_mask, context_from=(msa, msa_mask))
        else:
            block.msa_half(skip, msa, pair, msa_mask, pair_mask)
            own = block.pair_half(run, pair, pair_mask)
        part = _part(own)
        return msa, _with_part(own, part + self.channel.begin("swap", _differentiable(part)).wait())


class _BroadcastMSA(MethodReplacement):
    """Replacement of a stack's `forward`, followed by a broadcast of the MSA from the rank that computed it."""

    def __init__(self, channel: Channel, method: Callable[..., Streams]) -> None:
        super().__init__(method)
        self.channel = channel

    def __call__(self, run: Executor, msa: Stream, pair: Stream, msa_mask: Tensor, pair_mask: Tensor) -> Streams:
        msa, pair = self.method(run, msa, pair, msa_mask, pair_mask)
        cut = 2  # along columns, as after the last updates on the rank that computed them
        return _with_part(
            msa, self.channel.begin("broadcast", _differentiable(_part(msa, cut)), MSA_RANK).wait(), cut
        ), pair


class _DrawOnly(Executor):
    """Executor that only samples dropout masks, for updates that the other rank computes.

    Random generators of both ranks then advance equally.
    """

    def __call__(
        self, update: Update, stream: Stream, mask: Tensor, context_from: ContextInput | None = None
    ) -> Stream:
        update.dropout_mask(stream.shape, dtype=stream.dtype, device=stream.device)
        return stream

    def map_rows(self, make: Callable[..., Tensor], *streams: Stream) -> Stream:
        raise NotImplementedError("blocks make no streams")


def _part(stream: Stream, cut: int = 1) -> Tensor:
    """Return this rank's part of a stream, cut along dim `cut`."""
    return as_tensor(stream.along(cut) if isinstance(stream, Shard) else stream)


def _differentiable(part: Tensor) -> Tensor:
    """Return a tensor that requires a gradient, even if it depends on frozen parameters only.

    Otherwise the backward pass would skip the exchange, for which the other rank may wait.
    """
    return part if part.requires_grad or not torch.is_grad_enabled() else part.detach().requires_grad_()


def _with_part(stream: Stream, part: Tensor, cut: int = 1) -> Stream:
    """Return a tensor as this rank's part of a stream like `stream`, cut along dim `cut`."""
    return Shard(stream.channel, stream.shape, part, cut) if isinstance(stream, Shard) else part


def parallelize(
    model: AlphaFold,
    mesh: Mesh,
    checkpointing: RecomputeConfig | None = None,
    within: Whole | Slabs | None = None,
    messages: list[Message] | None = None,
) -> Executor:
    """Make a model compute this rank's part of a sample in the layout of the mesh, and return its executor.

    `checkpointing` is the checkpoint policy of training (by default nothing is recomputed), and `within` the executor
    on the rank (by default `Whole`). Collectives among the ranks of a sample are appended to `messages`. Parameters and
    their names do not change, and an earlier call is undone. Raise `ConfigError` if bp is 2 and the branches of the
    model's blocks depend on each other, or if `checkpointing` still has "auto".
    """
    # 1. Undo an earlier call.
    restore_methods(model)

    # 2. Branch parallelism: the two halves of every block on two ranks.
    if mesh.branch.size > 1:
        divide_blocks(model, Channel(mesh.branch, messages))

    # 3. Activation checkpointing around the divided blocks: collectives run again as well.
    recompute(model, checkpointing or RecomputeConfig.everywhere("none"))

    # 4. Axial parallelism: rows and columns of streams on several ranks.
    # Gradients are averaged over the whole mesh by `GradientReducer`, whatever the layout.
    return mesh_executor(mesh, within or Whole(), messages)


def mesh_executor(mesh: Mesh, within: Whole | Slabs, messages: list[Message] | None = None) -> Executor:
    """Return the executor of a rank of the mesh: `Axial` if its axial group has collectives, else `within`."""
    return Axial(mesh.axial, within, messages) if mesh.axial.has_collectives else within
