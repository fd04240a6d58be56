"""Average gradients over all ranks in buckets, overlapping the reduction with the backward pass.

Every rank computes the whole loss of its sample, and the backward pass of every collective is its adjoint. The gradient
of a sample is therefore the mean over the ranks that share it, for all parameters and in every layout.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

from helixfold.optim.clip import ROW
from helixfold.optim.flat import FlatOptimizer
from helixfold.parallel.mesh import Group, Mesh

# Elements of a bucket: 25 MiB in float32, large enough to be limited by bandwidth instead of latency.
BUCKET_ELEMENTS = 6400 * ROW


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """Slice of the flat gradients that is reduced at once; `start` and `stop` are its offsets in the gradient sum.

    `values` is a view of the flat gradients. Offsets are in elements.
    """

    start: int
    stop: int
    values: Tensor


def buckets(flat: Tensor, start: int, elements: int) -> list[Bucket]:
    """Divide a flat buffer, whose first element has offset `start`, into buckets of up to `elements` elements.

    The last bucket comes first, because the backward pass fills buffers in this order.
    """
    return [
        Bucket(start=start + low, stop=start + min(low + elements, len(flat)), values=flat[low : low + elements])
        for low in reversed(range(0, len(flat), elements))
    ]


class GradientReducer:
    """Run backward passes of micro-batches and accumulate the gradient sum over all ranks in the optimizer.

    Gradients are sent in `dtype` in buckets of `elements` elements, and stored in the optimizer's dtype. With clipping
    "sample" the gradient of a micro-batch is first averaged over the ranks that share the sample, so that all of them
    clip it equally.
    """

    def __init__(
        self,
        optimizer: FlatOptimizer,
        mesh: Mesh,
        *,
        dtype: torch.dtype = torch.float32,
        elements: int = BUCKET_ELEMENTS,
    ) -> None:
        self._optimizer, self._mesh = optimizer, mesh
        self._scale = optimizer.gradient_sum.new_ones(())
        self._active: BucketReduction | None = None  # filled by the running backward pass
        gradients = [
            bucket
            for each in reversed(optimizer.gathered)
            for bucket in buckets(each.gradient, each.start, elements)
            if optimizer.config.clipping == "sample"
        ]
        ranges = optimizer.trained
        self._sums = BucketReduction(
            buckets(optimizer.gradient_sum, 0, elements),
            ranges,
            mesh.world,
            dtype,
            before=lambda bucket: optimizer.add(self._scale, bucket.start, bucket.stop),
        )
        self._of_sample = BucketReduction(gradients, ranges, mesh.sample, dtype)
        if mesh.world.has_collectives:
            for parameter, _, _ in ranges:
                parameter.register_post_accumulate_grad_hook(self._arrived)

    @property
    def replicas(self) -> int:
        """How often the gradient of each micro-batch is in the sum: once for each rank that shares the sample."""
        return self._mesh.sample.size

    def backward(self, loss: Float[Tensor, ""], *, last: bool) -> None:
        """Compute the gradient of a micro-batch's loss and add it to the sum.

        For the `last` micro-batch of this rank in the step, the sum is also reduced over all ranks.
        """
        optimizer = self._optimizer
        by_sample = optimizer.config.clipping == "sample"
        if by_sample and self._mesh.sample.has_collectives:
            self._fill(self._of_sample, loss)
            for bucket in self._of_sample.reduced():
                bucket.values.div_(self.replicas)
        elif last and self._mesh.world.has_collectives and not by_sample:
            self._fill(self._sums, loss)
        else:
            self.add(loss)
        self.collect(last=last)

    def add(self, loss: Float[Tensor, ""]) -> None:
        """Add the gradient of a loss to the gradient of the micro-batch, without communication.

        Call `collect` afterwards. If ranks do not share a sample, the two calls are equivalent to `backward`, but
        nothing is sent during the backward pass.
        """
        self._optimizer.backward(loss)

    def collect(self, *, last: bool) -> None:
        """Add the gradient of the current micro-batch to the sum, and clip it first with clipping "sample".

        With `last`, also reduce the sum over all ranks.
        """
        optimizer = self._optimizer
        if not last or not self._mesh.world.has_collectives:
            optimizer.collect(last=last)
            return
        self._scale = optimizer.clip_micro_batch()
        for bucket in self._sums.reduced():
            optimizer.measure(bucket.start, bucket.stop)
        if optimizer.config.clipping == "sample":
            self._mesh.all_reduce(optimizer.samples)

    def _fill(self, queue: "BucketReduction", loss: Tensor) -> None:
        """Run a backward pass in which the buckets of `queue` are sent as soon as they are complete."""
        queue.begin_backward(reached_leaves(loss))
        self._active = queue
        loss.backward()
        self._active = None

    def _arrived(self, parameter: Tensor) -> None:
        """Pass on that a parameter has its gradient, if buckets are filled in this backward pass."""
        if self._active is not None:
            self._active.arrived(parameter)


class BucketReduction:
    """All-reduce buckets over a group in a fixed order, each as soon as it and all previous buckets are complete.

    All ranks send the same buckets in the same order, even if they compute different parts of the network. `ranges` has
    each parameter with the offsets at which its gradient starts and stops. Buckets are sent in `dtype`. `before` is
    called with each bucket before it is sent.
    """

    def __init__(
        self,
        buckets: Sequence[Bucket],
        ranges: Sequence[tuple[nn.Parameter, int, int]],
        group: Group,
        dtype: torch.dtype,
        before: Callable[[Bucket], None] = lambda _: None,
    ) -> None:
        self._buckets, self._group, self._dtype, self._before = buckets, group, dtype, before
        self._buckets_of: dict[Tensor, list[int]] = {
            parameter: [index for index, bucket in enumerate(buckets) if start < bucket.stop and bucket.start < stop]
            for parameter, start, stop in ranges
        }
        self._awaited: set[Tensor] = set()
        self._missing: list[int] = []  # number of missing gradients of each bucket
        self._sent: list[tuple[Tensor, dist.Work | None]] = []

    def begin_backward(self, parameters: set[Tensor]) -> None:
        """Begin a backward pass that computes the gradients of exactly these parameters."""
        self._awaited = parameters & self._buckets_of.keys()
        self._missing = [0] * len(self._buckets)
        for parameter in self._awaited:
            for index in self._buckets_of[parameter]:
                self._missing[index] += 1

    def arrived(self, parameter: Tensor) -> None:
        """Record that a parameter has its gradient, and send buckets that are complete."""
        if parameter not in self._awaited:  # its bucket may already have been sent
            raise RuntimeError(
                f"a parameter of shape {tuple(parameter.shape)} has a gradient but is not in the graph of the loss"
            )
        self._awaited.remove(parameter)
        for index in self._buckets_of[parameter]:
            self._missing[index] -= 1
        while len(self._sent) < len(self._buckets) and self._missing[len(self._sent)] == 0:
            self._send()

    def reduced(self) -> Iterator[Bucket]:
        """Send the remaining buckets and yield each one once it is summed over the group."""
        while len(self._sent) < len(self._buckets):
            self._send()
        for bucket, (values, work) in zip(self._buckets, self._sent, strict=True):
            if work is not None:
                work.wait()
            if values is not bucket.values:
                bucket.values.copy_(values)
            yield bucket
        self._sent = []

    def _send(self) -> None:
        """Start the all-reduce of the next bucket."""
        bucket = self._buckets[len(self._sent)]
        self._before(bucket)
        values = bucket.values.to(self._dtype)
        self._sent.append((values, dist.all_reduce(values, group=self._group.handle, async_op=True)))


def reached_leaves(loss: Tensor) -> set[Tensor]:
    """Return the leaf tensors, such as parameters, that get a gradient in a backward pass from the loss."""
    leaves: set[Tensor] = set()
    seen = {loss.grad_fn}
    pending = [loss.grad_fn]
    while pending:
        node = pending.pop()
        for following, _ in node.next_functions if node is not None else ():
            if following is not None and following not in seen:
                seen.add(following)
                pending.append(following)
                if following.name() == "torch::autograd::AccumulateGrad":
                    leaves.add(following.variable)  # type: ignore[attr-defined]
    return leaves
