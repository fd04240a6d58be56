"""How a backend is compared with the reference of its operator: outputs and every gradient, in each precision."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from helixfold.execution.nested import with_tensors_changed
from helixfold.ops.dispatch import Op, forced
from helixfold.ops.weights import Affine

# Where kernels run. Triton's interpreter cuts digits off that a GPU rounds: in bfloat16 this relative error is allowed,
# however near the reference is.
DEVICE, FLOOR = ("cuda", 0.0) if torch.cuda.is_available() else ("cpu", 2**-7)
Run = Callable[..., Tensor | tuple[Tensor, ...]]


def by_triton(op: Op[..., Any]) -> Run:
    """The operator by its kernels, on a GPU if there is one; it fails if another backend computes it."""

    def run(*given: Any) -> Any:
        moved = with_tensors_changed(lambda each: each.to(DEVICE), given)
        with forced("triton") as used:
            found = op(*moved)
        assert used[op.name] == 1
        return found

    return run


def affine(c_out: int, c_in: int, *, bias: bool = True) -> Affine:
    """A random linear map that gives gradients."""
    weight = (torch.randn(c_out, c_in) * c_in**-0.5).requires_grad_()
    return Affine(weight, (0.5 * torch.randn(c_out)).requires_grad_() if bias else None)


def norm(c: int) -> Affine:
    """A random scale and offset that give gradients."""
    return Affine((1 + 0.3 * torch.randn(c)).requires_grad_(), (0.3 * torch.randn(c)).requires_grad_())


def mask(*shape: int, empty_row: bool = True) -> Tensor:
    """Ones with some zeros; all of the second row is zero."""
    given = (torch.rand(shape) > 0.2).float()
    if empty_row and shape[1] > 1:
        given[:, 1] = 0
    return given


def assert_equal(run: Run, reference: Run, arguments: Sequence[Any], tolerance: float = 1e-5) -> None:
    """Outputs, and gradients of all arguments that require them, equal to `tolerance` of the largest value; float32.

    Memory that the backend does not write is NaN, and so is seen.
    """
    with poisoned():
        found = results(run, arguments, torch.float32)
    for index, (ours, exact) in enumerate(zip(found, results(reference, arguments, torch.float64), strict=True)):
        assert ours.shape == exact.shape
        assert ours.isfinite().all(), f"result {index} is not finite"
        error = float((ours.double() - exact).abs().max()) if exact.numel() else 0.0
        assert error <= tolerance * max(float(exact.abs().max()), 1e-3), f"result {index} is off by {error:.2e}"


def assert_as_near(run: Run, reference: Run, arguments: Sequence[Any], floor: float = 0.0) -> None:
    """In bfloat16, outputs and gradients are at most twice as far off as the reference's own in bfloat16.

    `floor` is a relative error that is allowed in any case.
    """
    with poisoned():
        found = results(run, arguments, torch.bfloat16)
    plain = results(reference, arguments, torch.bfloat16)
    exact = results(reference, arguments, torch.float64)
    for index, (ours, theirs, right) in enumerate(zip(found, plain, exact, strict=True)):
        assert ours.dtype == theirs.dtype
        assert ours.isfinite().all(), f"result {index} is not finite"
        allowed = max(2 * _distance(theirs, right), floor * float(right.norm()), 1e-6)
        assert _distance(ours, right) <= allowed, f"result {index}: {_distance(ours, right):.2e} > {allowed:.2e}"


def results(run: Run, arguments: Sequence[Any], dtype: torch.dtype) -> list[Tensor]:
    """The outputs, and the gradients of their product with random numbers.

    Activations (tensors that require gradients) have this dtype; masks and the parameters of norms and maps stay in
    float32, or are wider.
    """
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    leaves: list[Tensor] = []

    def leaf(given: Tensor, kind: torch.dtype) -> Tensor:
        # Detached and cast alone, so that strides stay what they are.
        copy = given.detach().to(kind).requires_grad_(given.requires_grad)
        copy = copy.detach().requires_grad_(given.requires_grad)
        if given.requires_grad:
            leaves.append(copy)
        return copy

    def cast(given: Any) -> Any:
        if isinstance(given, Affine):
            return Affine(*(None if each is None else leaf(each, wide) for each in given))
        if isinstance(given, Tensor):
            return leaf(given, dtype if given.requires_grad else wide) if given.is_floating_point() else given
        if isinstance(given, tuple):
            return type(given)(*map(cast, given))
        return given

    outputs = run(*[cast(each) for each in arguments])
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(each.shape, generator=generator).to(each.device, each.dtype) for each in outputs]
    gradients = torch.autograd.grad(outputs, leaves, weights, allow_unused=True)
    filled = [torch.zeros_like(a) if g is None else g for g, a in zip(gradients, leaves, strict=True)]
    return [each.detach().cpu() for each in (*outputs, *filled)]


@contextmanager
def poisoned() -> Iterator[None]:
    """Uninitialised memory is NaN.

    PyTorch's products of matrices are computed without oneDNN. Kernels for a GPU pack rows with gaps between them, and
    where a processor has tiles (AMX), oneDNN multiplies the gaps by zero: NaN stays NaN, in results that are right.
    """
    has_onednn = torch.backends.mkldnn.enabled
    torch.use_deterministic_algorithms(True)
    torch.backends.mkldnn.enabled = False
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = has_onednn
        torch.use_deterministic_algorithms(False)


def _distance(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm())
