"""Every backend of every operator gives what the reference gives for the calls of `helixfold.benchmark.op_cases`.

Operators, backends and calls come from the code: none is listed here.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import dropout, normalize

from helixfold.benchmark.op_cases import OpCase, Shape, op_cases
from helixfold.execution.nested import with_tensors_changed
from helixfold.model import presets
from helixfold.ops import sizes
from helixfold.ops.attention import attention
from helixfold.ops.cpu import loops
from helixfold.ops.dispatch import Op, forced
from helixfold.ops.linear import layer_norm, linear
from helixfold.ops.outer_product import outer_product_mean
from helixfold.ops.residual import Residual, add_change, added, residual_norm
from helixfold.ops.self_attention import self_attention
from helixfold.ops.structure.aligned_errors import aligned_errors
from helixfold.ops.structure.point_attention import invariant_point_attention, point_attention
from helixfold.ops.structure.quaternions import quaternion_to_rotation
from helixfold.ops.structure.update_frames import update_frames
from helixfold.ops.transition import transition
from helixfold.ops.triangle import triangle_multiplication, triangle_update
from helixfold.ops.weights import PointAttentionWeights, TransitionWeights
from tests.gpu.devices import HAS_GPU
from tests.ops.comparing import DEVICE, FLOOR, assert_as_near, assert_equal, mask
from tests.ops.operators import all_operators
from tests.ops.triton.conftest import bfloat16_as_on_a_gpu  # noqa: F401

TINY = presets.tiny().model
STACK = replace(TINY.evoformer, blocks=1, pair_heads=2)
MODELS = {
    # Channels with remainders in the vectors of every processor.
    "odd": replace(
        TINY,
        c_z=20,
        evoformer=replace(STACK, c_m=21, msa_heads=3, c_outer=5, c_triangle=13),
        extra_msa=replace(STACK, c_m=10, msa_heads=2, c_outer=5, c_triangle=13),
    ),
    # The fewest channels that all kernels support.
    "narrow": replace(
        TINY,
        c_z=64,
        evoformer=replace(STACK, msa_heads=2, c_outer=8),
        structure=replace(TINY.structure, heads=2),
    ),
}
# Not of 3 or 4 rows: the last dim of a frame has as many elements.
ODD = [Shape(preset="odd", residues=residues, rows=5, extra_rows=9) for residues in (1, 33, 7, 65)]
REAL = Shape(residues=33, rows=5, extra_rows=9)
# A kernel takes long in the interpreter for each head of each row.
ATTENDING = Shape(preset="narrow", residues=5, rows=2, extra_rows=2)
KERNEL = replace(ATTENDING, residues=9)
FIRST_CASES = (ATTENDING, KERNEL)
TILES = replace(ATTENDING, residues=17, rows=5)
ADDED = replace(ATTENDING, residues=6, rows=5)
ON_GPU = [replace(REAL, residues=65)] if HAS_GPU else []
DTYPES = (torch.float32, torch.bfloat16)

# Relative errors in float32, where 1e-5 is not enough.
TOLERANCES = {
    point_attention: 5e-5,  # squared distances are differences of large numbers
}
# The structure module computes in float32 whatever the trunk does.
FLOAT32_ONLY = {point_attention, invariant_point_attention, update_frames}
# Operators whose change has dropout in the network.
DROPPED = {self_attention, triangle_multiplication, triangle_update}
# Operators with backend "rows" whose passes over memory are all PyTorch's.
WITHOUT_LOOPS = {invariant_point_attention}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """An operator, a backend, and sizes and dtype of the arguments; "loops" is the backend "rows" with Numba."""

    op: Op[..., Any]
    backend: str
    shape: Shape
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.op.name}-{self.backend}-{self.shape.preset}-{self.shape.residues}-{str(self.dtype)[6:]}"

    def calls(self) -> list[tuple[str, list[Any]]]:
        """Return the name and random arguments of each of the operator's cases."""
        found = []
        for case in meta_cases(self.shape):
            ((op, given),) = case.calls
            if op is self.op:
                arguments = [self.stream(each) if isinstance(each, Tensor) else parameters(each) for each in given]
                if op in (add_change, residual_norm) and not arguments[-1].requires_grad:
                    arguments[-1] = arguments[-1] / 0.75  # a dropout mask
                if op is transition:
                    move_kinks(*arguments)
                found.append((case.name, arguments))
        assert found, "no case calls this operator"
        return found

    def stream(self, given: Tensor) -> Tensor:
        """Return random numbers that lie in memory like a tensor of a case: a stream off centre, a frame or a mask.

        At real sizes, nothing is masked. Frames need gradients, as in all iterations of the structure module but the
        first.
        """
        size = 1 if self.shape in (REAL, TILES) else 2, *given.shape[1:]
        quaternion = normalize(torch.randn(*size[:2], 4), dim=-1)
        frame = {(4,): quaternion, (3, 3): quaternion_to_rotation(quaternion), (3,): torch.randn(*size[:2], 3)}
        is_frame = not given.requires_grad and size[2:] in frame
        if given.requires_grad:
            x = torch.randn(size) + 0.5
        elif is_frame:
            x = frame[size[2:]]
        else:
            x = torch.ones(size) if self.shape is REAL else mask(*size)
        order = sorted(range(x.ndim), key=given.stride, reverse=True)
        x = x.permute(order).contiguous().permute([order.index(dim) for dim in range(x.ndim)])
        return x.detach().requires_grad_(given.requires_grad or is_frame)

    def compare(self, run: Callable[..., Any], given: Sequence[Any]) -> None:
        """Assert that outputs and gradients of `run` by the backend are as near to float64 as the dtype allows."""

        def ours(*arguments: Any) -> Any:
            with forced("rows" if self.backend == "loops" else self.backend) as used:
                found = self.read(run, arguments)
            if HAS_GPU and not used and self.backend == "triton" and self.dtype == torch.float32:
                pytest.skip("products in float32 are left to cuBLAS")
            assert used[self.op.name] == 1, f"{self.backend} does not compute this"
            assert used["add_change"] == (self.op is add_change), "another operator adds the change"
            return found

        def plain(*arguments: Any) -> Any:
            with forced("reference"):
                return self.read(run, arguments)

        if self.dtype == torch.float32:
            assert_equal(ours, plain, given, TOLERANCES.get(self.op, 1e-4 if HAS_GPU else 1e-5))
        else:
            # Of one residue, so few numbers are added that the errors of both backends differ by chance.
            floor = 2**-6 if self.shape.residues == 1 else 0.0
            assert_as_near(ours, plain, given, max(floor, FLOOR if self.backend == "triton" else 0.0))

    def read(self, run: Callable[..., Any], given: Sequence[Any]) -> Any:
        """Return what the network reads of a result.

        A dropout mask has the stream's dtype. Padded residues attend to logits of which most digits are lost.
        """
        if self.op in (add_change, residual_norm):
            return run(*given[:-1], given[-1].to(given[0].dtype))
        found = run(*given)
        if self.op is point_attention:
            return found * given[3][..., None]
        if self.op is invariant_point_attention:
            return tuple(torch.einsum("bhi...,bi->bhi...", each, given[7].to(each.dtype)) for each in found)
        return found


def dtypes(op: Op[..., Any], backend: str, *, adds: bool) -> Sequence[torch.dtype]:
    """Return the dtypes that a backend computes."""
    if op in FLOAT32_ONLY:
        return DTYPES[:1]
    # In float32, PyTorch's layer norm has sums that are wide enough, and cuBLAS maps outputs before they are added.
    is_narrow = (adds and (HAS_GPU or op is self_attention)) or (op is layer_norm and backend != "triton")
    return DTYPES[1:] if is_narrow else DTYPES


def comparisons(*, adds: bool = False) -> list[Any]:
    """Return the comparisons of all backends, or those that add a change to its stream."""
    return [
        pytest.param(each, id=str(each), marks=marks)
        for backend, shapes, marks in (
            ("rows", ODD[:2], ()),
            ("rows", [*ODD[2:], REAL], pytest.mark.integration),
            ("loops", [*ODD, REAL], pytest.mark.integration),
            ("triton", FIRST_CASES, ()),
            ("triton", [ADDED if adds else TILES, *ON_GPU], pytest.mark.integration),
        )
        for op in all_operators().values()
        for found in op.backends
        if found.name == backend.replace("loops", "rows") and not (adds and found.run_adding is None)
        for shape in shapes
        if shape != (KERNEL if op in (attention, self_attention, point_attention) else ATTENDING)
        for dtype in dtypes(op, backend, adds=adds)[: 1 if shape in FIRST_CASES else 2]
        if op.name != "fused_adam" and op is not aligned_errors
        for each in [Comparison(op=op, backend=backend, shape=shape, dtype=dtype)]
    ]


@pytest.fixture(autouse=True)
def place(case: Comparison, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Arguments on the backend's device, of which several blocks are computed unless their sizes are real."""
    for name, model in MODELS.items():
        monkeypatch.setitem(presets.PRESETS, name, partial(replace, presets.tiny(), model=model))
    monkeypatch.setattr(sizes, "LARGE_STREAM", 0 if case.backend == "loops" else None)
    if case.backend == "loops" and loops.unsupported_reason() is not None:
        pytest.skip("Numba is not installed")
    if case.backend == "triton":
        request.getfixturevalue("bfloat16_as_on_a_gpu")
        request.getfixturevalue("small_programs")
    elif case.shape is not REAL:
        request.getfixturevalue("small_blocks")
    with torch.device(DEVICE if case.backend == "triton" else "cpu"):
        yield


@cache
def meta_cases(shape: Shape) -> tuple[OpCase, ...]:
    return tuple(op_cases(shape, "meta"))


def parameters(given: Any) -> Any:
    """Return random parameters in a tuple like the given one; the weights of distances are positive."""

    def parameter(each: Tensor) -> Tensor:
        return (torch.randn(each.shape) * (each.shape[1] ** -0.5 if each.ndim == 2 else 0.5)).requires_grad_()

    drawn = with_tensors_changed(parameter, given)
    if isinstance(drawn, PointAttentionWeights):
        drawn.point_weight.detach().abs_()
    return drawn


@torch.no_grad()
def move_kinks(x: Tensor, weights: TransitionWeights) -> None:
    """Change offsets so that rounding does not decide whether a hidden channel of the transition is above 0."""
    hidden = linear.reference(layer_norm.reference(x.double(), weights.norm), weights.expand).flatten(0, -2).sort(0)[0]
    central = hidden[len(hidden) // 4 : 3 * len(hidden) // 4 + 1]
    widest = central.diff(dim=0).argmax(0, keepdim=True)
    weights.expand.bias.sub_((central[1:] + central[:-1]).gather(0, widest)[0] / 2)


def added_change(op: Op[..., Tensor], dropout_mask: Tensor | None, stream: Tensor, *rest: Any, **place: bool) -> Tensor:
    """Return the stream plus an operator's result, which is made of the stream unless it is an outer product mean."""
    residual = Residual(stream, None if dropout_mask is None else dropout_mask.to(stream.dtype), **place)
    return added(residual, op, *(rest if op is outer_product_mean else (stream, *rest)))


@pytest.mark.parametrize("case", comparisons())
def test_outputs_and_gradients_equal_the_reference(case: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    module, names = loops._module, set()
    monkeypatch.setattr(loops, "_module", lambda name: names.add(name) or module(name))
    # The unit test of additions has another case.
    for name, given in case.calls()[:: 2 if case.shape in FIRST_CASES else 1]:
        if (name, case.backend) != ("pair and its change", "triton"):  # PyTorch's addition is as fast
            case.compare(case.op, given)
    assert bool(names - {"threads"}) == (case.backend == "loops" and case.op not in WITHOUT_LOOPS)


@pytest.mark.parametrize("case", comparisons(adds=True))
def test_changes_are_added_to_their_streams(case: Comparison) -> None:
    calls = case.calls()[:2][-1:] if case.shape in FIRST_CASES else case.calls()
    for (_, given), shared in zip(calls, cycle((1, 2, None)), strict=False):
        if case.op is outer_product_mean:
            given.insert(0, torch.randn_like(case.op.reference(*given)).requires_grad_())
        shape = [1 if dim == shared else size for dim, size in enumerate(given[0].shape)]
        kept = dropout(torch.ones(shape), 0.25) if case.op in DROPPED and shared else None
        case.compare(partial(added_change, case.op, kept), given)
        # Without gradients, other functions may add the change, also in place.
        with forced("rows" if case.backend == "loops" else case.backend):
            expected = added_change(case.op, kept, *given).detach()
            with torch.no_grad():
                stream, *rest = (each.detach() if isinstance(each, Tensor) else each for each in given)
                assert added_change(case.op, kept, stream, *rest).equal(expected)
                found = added_change(case.op, kept, stream, *rest, in_place=True)
        assert found.data_ptr() == stream.data_ptr()
        assert found.equal(expected)
