"""What every process of tests/parallel/test_gradients.py runs."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product

import torch
import torch.distributed as dist
from torch import Tensor, nn

from helixfold.optim.config import AdaGCConfig, OptimizerConfig
from helixfold.optim.flat import FlatOptimizer
from helixfold.parallel import gradients
from helixfold.parallel.gradients import GradientReducer, buckets
from helixfold.parallel.mesh import Mesh, join, leave

# In the order of the forward pass, so that the last one's gradient is the first.
LAYERS = ("embedder", "msa", "pair", "heads")
BUCKET_ELEMENTS = 1024
PARTS = 3  # so that one of two groups has one more than the other


class Branches(nn.Module):
    """A layer that all ranks compute, two that one rank of a sample each computes, and one for all again."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        for name in LAYERS:
            setattr(self, name, nn.Linear(40, 40))
        self.unused = nn.Parameter(torch.randn(50, 50))

    def forward(self, x: Tensor, branches: tuple[str, ...]) -> Tensor:
        start = self.embedder(x.to(self.embedder.weight.dtype))
        middle = sum(getattr(self, name)(start) for name in branches)
        assert isinstance(middle, Tensor)
        return self.heads(middle.float()).square().mean()


def loss(model: Branches, part: int, rank: int, branches: tuple[str, ...]) -> Tensor:
    """Of one rank's replica of a part."""
    generator = torch.Generator().manual_seed(100 * part + rank)
    return 10.0 ** (part - 1) * model(torch.randn(4, 40, generator=generator), branches)


def branches_of(rank: int) -> tuple[str, ...]:
    return ("msa", "pair")[rank % 2 : rank % 2 + 1]


def _gradient(model: Branches, optimizer: FlatOptimizer, part: int, rank: int) -> Tensor:
    """One replica's gradient of a part, flat, in float32."""
    optimizer.zero_gradients()
    loss(model, part, rank, branches_of(rank)).backward()
    found = torch.zeros_like(optimizer.gradient_sum)
    for parameter, start, _ in optimizer.trained:
        assert parameter.grad is not None
        found[start : start + parameter.numel()] = parameter.grad.flatten().float()
    return found


def _expected(optimizer: FlatOptimizer, model: Branches, mesh: Mesh) -> Tensor:
    """The sum over all ranks as one process finds it, from the gradients of all replicas."""
    total = torch.zeros_like(optimizer.gradient_sum)
    sharing = mesh.layout.sharing
    for group in range(mesh.layout.dp):
        for part in range(group * PARTS // mesh.layout.dp, (group + 1) * PARTS // mesh.layout.dp):
            ranks = range(group * sharing, (group + 1) * sharing)
            found = torch.stack([_gradient(model, optimizer, part, rank) for rank in ranks]).sum(0)
            if optimizer.config.clipping == "sample":
                norm, limit = float(found.double().norm()) / sharing, optimizer.config.clip_norm
                found *= min(1.0, limit / norm)
            total += found
    optimizer.zero_gradients()
    return total


@contextmanager
def _joined(layout: str) -> Iterator[Mesh]:
    with ExitStack() as stack:
        stack.callback(leave)
        yield join("cpu", layout, 60)


def equal_one_process(layout: str) -> None:
    """In buckets and on their way while others are computed, gradients come to what one process finds."""
    with _joined(layout) as mesh:
        dtypes = (torch.float32, torch.bfloat16)
        # Only gradients that are clipped one by one are averaged in the working dtype.
        for clipping, working, wire in (
            *product(("none", "sample"), dtypes, dtypes),
            ("global", torch.bfloat16, torch.float32),
            ("adagc", torch.float32, torch.bfloat16),
        ):
            model = Branches()
            config = OptimizerConfig(clipping=clipping, clip_norm=0.05, adagc=AdaGCConfig(warmup_steps=1))
            optimizer = FlatOptimizer(model, config, working_dtype=working, keep_float32=("heads",))
            expected = _expected(optimizer, model, mesh)
            rule = GradientReducer(optimizer, mesh, dtype=wire, elements=BUCKET_ELEMENTS)
            own = mesh.micro_batches(PARTS)
            at_once: Tensor | None = None
            for is_recorded in (False, mesh.layout.sharing == 1):
                for part in own:
                    value = loss(model, part, mesh.rank, branches_of(mesh.rank))
                    if is_recorded:  # then nothing is sent before all gradients are there
                        rule.add(value)
                        rule.collect(last=part == own[-1])
                    else:
                        rule.backward(value, last=part == own[-1])
                found = optimizer.gradient_sum
                assert at_once is None or torch.equal(found, at_once)
                at_once = found.clone()
                error = float((found - expected).norm() / expected.norm())
                averaged = clipping == "sample" and rule.replicas > 1  # and kept in the working dtype
                rounded = wire is torch.bfloat16 or (working is torch.bfloat16 and averaged)
                assert error < (2**-6 if rounded else 1e-6), (clipping, working, wire, error)
                assert rounded == (error > 1e-5)
                norm = float(found.double().norm()) / (PARTS * rule.replicas)
                report = optimizer.step(0.0, micro_batches=PARTS * rule.replicas)
                assert abs(report.gradient_norm / norm - 1) < 1e-6
                assert clipping != "sample" or abs(report.clipped - 2 / 3) < 1e-6, report
            optimizer.step(1e-3, micro_batches=1)
            states = mesh.all_gather({name: value.tolist() for name, value in optimizer.tensors().items()})
            assert all(state == states[0] for state in states)


def overlap(layout: str) -> None:
    """What is ready is sent while the rest is computed; in one order on all ranks, and never before it is ready."""
    with _joined(layout) as mesh:
        events: list[str | int] = []
        model = Branches()
        optimizer = FlatOptimizer(model, OptimizerConfig(clipping="none"), keep_float32=("heads",))
        for name, parameter in model.named_parameters():
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: events.append(name))
        start = optimizer.gradient_sum.data_ptr()

        def recorded(values: Tensor, *arguments: object, **options: object) -> object:
            events.append((values.data_ptr() - start) // 4)
            return dist.all_reduce(values, *arguments, **options)

        gradients.dist = type("Recorded", (), {"all_reduce": staticmethod(recorded)})  # type: ignore[assignment]
        rule = GradientReducer(optimizer, mesh, elements=BUCKET_ELEMENTS)
        rule.backward(loss(model, 0, mesh.rank, branches_of(mesh.rank)), last=False)
        assert not [event for event in events if isinstance(event, int)]
        events.clear()
        rule.backward(loss(model, 1, mesh.rank, branches_of(mesh.rank)), last=True)
        sent = [event for event in events if isinstance(event, int)]
        assert sent == [part.start for part in buckets(optimizer.gradient_sum, 0, BUCKET_ELEMENTS)]
        places = {parameter: (first, stop) for parameter, first, stop in optimizer.trained}
        for name, parameter in model.named_parameters():
            if name in events:
                own = [at for at in sent if at < places[parameter][1] and places[parameter][0] < at + BUCKET_ELEMENTS]
                assert all(events.index(name) < events.index(at) for at in own), name
        # The last layer's gradients were on their way before the first layer's were there.
        last = next(at for at in sent if at <= places[model.heads.weight][0])
        assert events.index(last) < events.index("embedder.weight")
        assert mesh.all_gather(sent) == [sent] * mesh.size


def unawaited(layout: str) -> None:
    """A gradient that nothing waited for, so that it may have come too late, is an error."""
    with _joined(layout) as mesh:
        model = Branches()
        optimizer = FlatOptimizer(model, OptimizerConfig(clipping="none"), keep_float32=("heads",))
        rule = GradientReducer(optimizer, mesh, elements=BUCKET_ELEMENTS)

        class Hidden(torch.autograd.Function):
            @staticmethod
            def forward(ctx: object, x: Tensor) -> Tensor:
                return x.clone()

            @staticmethod
            def backward(ctx: object, gradient: Tensor) -> Tensor:
                with torch.enable_grad():
                    model.unused.sum().backward()
                return gradient

        try:
            rule.backward(Hidden.apply(loss(model, 0, 0, ("msa", "pair"))), last=True)
        except RuntimeError as error:
            assert "not in the graph" in str(error)
        else:
            raise AssertionError("a gradient was lost")
