"""The one rule for gradients: they are averaged over all ranks, stretch by stretch while others are still computed.

Every rank computes the whole loss of its sample, and every collective is its own adjoint. So the gradient of a sample
is the mean over the ranks that share it, and no parameter needs a group of its own.
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

# Of one bucket: 25 MiB in float32, enough to be bound by a link's width and not by its latency.
ELEMENTS = 6400 * ROW


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """A stretch of the flat gradients that is summed over ranks at once; `start` and `stop` are places in the sum."""

    start: int
    stop: int
    values: Tensor


def buckets(flat: Tensor, start: int, elements: int) -> list[Bucket]:
    """A flat buffer that lies at `start`, cut into stretches of whole rows, the last ones first, as backward goes."""
    return [
        Bucket(start=start + low, stop=start + min(low + elements, len(flat)), values=flat[low : low + elements])
        for low in reversed(range(0, len(flat), elements))
    ]


class GradientRule:
    """Computes gradients of parts, and leaves their sum over all ranks in the optimizer.

    They travel between ranks in `dtype`, and are kept as the optimizer keeps them. With clipping "sample" a part's
    gradient is first averaged over the ranks that share the sample, so that all of them clip it alike.
    """

    def __init__(
        self, optimizer: FlatOptimizer, mesh: Mesh, *, dtype: torch.dtype = torch.float32, elements: int = ELEMENTS
    ) -> None:
        self._optimizer, self._mesh = optimizer, mesh
        self._scale = optimizer.gradient_sum.new_ones(())
        self._filled: BucketReduction | None = None  # by the backward pass under way
        gradients = [
            bucket
            for each in reversed(optimizer.gathered)
            for bucket in buckets(each.gradient, each.start, elements)
            if optimizer.config.clipping == "sample"
        ]
        places = optimizer.trained
        self._sums = BucketReduction(
            buckets(optimizer.gradient_sum, 0, elements), places, mesh.world, dtype, before=self._add_to_sum
        )
        self._of_sample = BucketReduction(gradients, places, mesh.sample, dtype)
        if mesh.world.has_collectives:
            for parameter, _, _ in places:
                parameter.register_post_accumulate_grad_hook(self._arrived)

    @property
    def replicas(self) -> int:
        """Return how often each part's gradient is in the sum: once for each rank that shares its sample."""
        return self._mesh.sample.size

    def backward(self, loss: Float[Tensor, ""], *, last: bool) -> None:
        """Add the gradient of a part to the sum, and with this rank's last part of a step sum it over all ranks."""
        optimizer = self._optimizer
        by_sample = optimizer.config.clipping == "sample"
        if by_sample and self._mesh.sample.has_collectives:
            self._fill(self._of_sample, loss)
            for bucket in self._of_sample.received():
                bucket.values.div_(self.replicas)
        elif last and self._mesh.world.has_collectives and not by_sample:
            self._fill(self._sums, loss)
        else:
            loss.backward()
        if not last or not self._mesh.world.has_collectives:
            optimizer.collect()
            return
        self._scale = optimizer.clip_part()
        for bucket in self._sums.received():
            optimizer.measure(bucket.start, bucket.stop)
        if by_sample:
            self._mesh.all_reduce(optimizer.samples)

    def _fill(self, queue: "BucketReduction", loss: Tensor) -> None:
        queue.expect(reached(loss))
        self._filled = queue
        loss.backward()
        self._filled = None

    def _arrived(self, parameter: Tensor) -> None:
        if self._filled is not None:
            self._filled.arrived(parameter)

    def _add_to_sum(self, bucket: Bucket) -> None:
        self._optimizer.add(self._scale, bucket.start, bucket.stop)


class BucketReduction:
    """Buckets that are summed over one group, always sent in the same order: each once it and all before it are ready.

    So the same is sent on all ranks, whatever becomes ready when, and also where ranks compute different parts of the
    network. `before` is done to each bucket before it is sent.
    """

    def __init__(
        self,
        parts: Sequence[Bucket],
        places: Sequence[tuple[nn.Parameter, int, int]],
        group: Group,
        dtype: torch.dtype,
        before: Callable[[Bucket], None] = lambda _: None,
    ) -> None:
        self._buckets, self._group, self._dtype, self._before = parts, group, dtype, before
        self._buckets_of: dict[Tensor, list[int]] = {
            parameter: [number for number, part in enumerate(parts) if start < part.stop and part.start < stop]
            for parameter, start, stop in places
        }
        self._awaited: set[Tensor] = set()
        self._missing: list[int] = []  # of the awaited, in each bucket
        self._sent: list[tuple[Tensor, dist.Work | None]] = []

    def expect(self, parameters: set[Tensor]) -> None:
        """Begin: gradients come for these, and for no others."""
        self._awaited = parameters & self._buckets_of.keys()
        self._missing = [0] * len(self._buckets)
        for parameter in self._awaited:
            for number in self._buckets_of[parameter]:
                self._missing[number] += 1

    def arrived(self, parameter: Tensor) -> None:
        """Send what is ready now that this one has its gradient."""
        if parameter not in self._awaited:  # what was sent of it may lack this
            raise RuntimeError(
                f"a parameter of shape {tuple(parameter.shape)} got a gradient and is not in the graph of the loss"
            )
        self._awaited.remove(parameter)
        for number in self._buckets_of[parameter]:
            self._missing[number] -= 1
        while len(self._sent) < len(self._buckets) and self._missing[len(self._sent)] == 0:
            self._send()

    def received(self) -> Iterator[Bucket]:
        """Send what was not sent, and give each bucket once it is the sum over the group."""
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
        bucket = self._buckets[len(self._sent)]
        self._before(bucket)
        values = bucket.values.to(self._dtype)
        self._sent.append((values, dist.all_reduce(values, group=self._group.handle, async_op=True)))


def reached(loss: Tensor) -> set[Tensor]:
    """The leaves that a backward pass from here gives gradients."""
    leaves: set[Tensor] = set()
    seen = {loss.grad_fn}
    ahead = [loss.grad_fn]
    while ahead:
        node = ahead.pop()
        for following, _ in node.next_functions if node is not None else ():
            if following is not None and following not in seen:
                seen.add(following)
                ahead.append(following)
                if following.name() == "torch::autograd::AccumulateGrad":
                    leaves.add(following.variable)  # type: ignore[attr-defined]
    return leaves
