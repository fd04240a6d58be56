"""Optimizer with parameters, gradients, moments and averages in a few flat buffers, each of which is read once a step.

The gradient of each micro-batch is clipped and added to the sum of the step.

Muon updates hidden matrices by their momentum, after making its singular values equal. The gradient of a few examples
has few large directions. Adam moves along these and hardly learns the others; with equal singular values, all
directions are learned at the same speed (Jordan et al. 2024, kellerjordan.github.io/posts/muon). Adam updates the other
parameters.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float32
from torch import Tensor, nn

from data_pipeline.io.errors import InputError
from helixfold.ops.adam import AdamBuffers, AdamStep
from helixfold.ops.constants import LINE
from helixfold.ops.device_properties import properties_of
from helixfold.ops.fused_adam import fused_adam
from helixfold.optim import clip
from helixfold.optim.config import MuonConfig, OptimizerConfig


@dataclass(frozen=True, kw_only=True)
class Slot:
    """Name, shape and position of a parameter in a flat buffer, in which it starts at element `offset`."""

    name: str
    shape: tuple[int, ...]
    offset: int

    @property
    def lines(self) -> int:
        """Number of lines (of `LINE` elements) of the parameter in the buffer, rounded up."""
        return -(-torch.Size(self.shape).numel() // LINE)


@dataclass(frozen=True, kw_only=True)
class ParameterLayout:
    """Order of parameters in flat buffers, each at a multiple of `LINE` elements; parameters kept in float32 are last.

    `LINE` elements are a line and have one gradient scale. The order does not depend on the working dtype, so a saved
    state fits every dtype. `low` is the number of elements before the first parameter that stays float32, and `total`
    the number of all elements including padding.
    """

    slots: tuple[Slot, ...]
    low: int
    total: int

    def views(self, low: Tensor, high: Tensor) -> Iterator[Tensor]:
        """Yield a view of each parameter in its shape.

        `low` is a buffer of the first `self.low` elements, and `high` a buffer of the others.
        """
        for slot in self.slots:
            flat, offset = (low, slot.offset) if slot.offset < self.low else (high, slot.offset - self.low)
            yield flat[offset : offset + torch.Size(slot.shape).numel()].view(slot.shape)


def lay_out(model: nn.Module, keep_float32: Collection[str]) -> tuple[ParameterLayout, tuple[nn.Parameter, ...]]:
    """Return the layout of all trainable parameters, and the parameters in the same order; tied ones occur once.

    `keep_float32` has the names of submodules whose parameters stay float32. Raise `InputError` if a submodule does not
    exist, if no parameter is trainable, if a parameter is not float32, or if the parameters are on several devices.
    """
    trainable = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not trainable:
        raise InputError("the model has no trainable parameter; set requires_grad for some")
    for name, parameter in trainable:
        if parameter.dtype != torch.float32 or parameter.device != trainable[0][1].device:
            raise InputError(
                f"parameter {name!r} is {parameter.dtype} on {parameter.device}; pass a float32 model on one device"
            )
    for prefix in keep_float32:
        if not any(name == prefix or name.startswith(f"{prefix}.") for name, _ in model.named_modules()):
            raise InputError(f"keep_float32 names {prefix!r}, which is not a submodule of the model")

    def stays_float32(name: str) -> bool:
        return any(name.startswith(f"{prefix}.") for prefix in keep_float32)

    slots, offset, low = [], 0, 0
    trainable.sort(key=lambda named: stays_float32(named[0]))
    for name, parameter in trainable:
        slots.append(Slot(name=name, shape=tuple(parameter.shape), offset=offset))
        offset += slots[-1].lines * LINE
        if not stays_float32(name):
            low = offset
    return ParameterLayout(slots=tuple(slots), low=low, total=offset), tuple(parameter for _, parameter in trainable)


# Adam updates input and output layers: their rows and columns are features and classes, which differ in scale.
_OUTER_LAYERS = ("heads.", "input_embedder.", "recycling_embedder.", "extra_msa_embedder.", "template_embedder.")
_MIN_SIZE = 8  # minimum rows and columns of a hidden matrix
# Coefficients a, b, c of a x + b x^3 + c x^5, which moves singular values of at least 0.003 to between 0.7 and 1.2 in
# five iterations (Jordan et al. 2024).
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
# Updates of Adam have a root mean square of 0.2 to 0.4 times the learning rate. With this factor orthogonal updates
# have the same size, so that one learning rate and weight decay fit both (Liu et al. 2025, arXiv 2502.16982, Sec. 2.2).
_LIKE_ADAM = 0.2
# As in PyTorch's Muon. A smaller momentum is rounding error, which must not become a full update, and squares below
# 1e-45 would make the norm 0.
_MIN_NORM = 1e-7


class Muon:
    """Muon: updates of the hidden matrices in an optimizer's flat buffers, and their momentum.

    `like` is one of the flat buffers. `others` is 1 for each line of the buffers that Adam updates, and 0 for lines of
    hidden matrices. `momentum` is a flat buffer, which is used for hidden matrices only.
    """

    def __init__(self, layout: ParameterLayout, config: MuonConfig, like: Float32[Tensor, " n"]) -> None:
        """Find the hidden matrices of a layout, and start with a momentum of zeros."""
        self.config = config
        self.momentum = torch.zeros_like(like)
        self._groups = _by_shape([slot for slot in layout.slots if is_hidden_matrix(slot)])
        mine = torch.zeros(layout.total // LINE, dtype=torch.bool)
        for slot in (slot for group in self._groups for slot in group):
            mine[slot.offset // LINE : slot.offset // LINE + slot.lines] = True
        self.others = (~mine).float().to(like.device)

    @torch.no_grad()
    def step(
        self,
        master: Float32[Tensor, " n"],
        gradient: Float32[Tensor, " n"],
        scale: Float32[Tensor, ""] | Float32[Tensor, " lines"],
        learning_rate: float,
    ) -> None:
        """Update the hidden matrices in `master` by the gradient times `scale`, one factor for all or for each line.

        `learning_rate` is Adam's. The momentum is updated, too; weight decay is left to Adam's update.
        """
        decay, rate = self.config.momentum, learning_rate * self.config.rate
        for group in self._groups:
            scales = [scale if scale.ndim == 0 else scale[slot.offset // LINE] for slot in group]
            gradients = torch.stack([_matrix(gradient, slot) * s for slot, s in zip(group, scales, strict=True)])
            momenta = [_matrix(self.momentum, slot) for slot in group]
            for momentum, each in zip(momenta, gradients, strict=True):
                momentum.lerp_(each, 1 - decay)
            # Nesterov momentum: the momentum after another step with the same gradient.
            changes = orthogonal(torch.stack(momenta).lerp_(gradients, 1 - decay), self.config.rounds)
            size = rate * _LIKE_ADAM * max(group[0].shape) ** 0.5
            for slot, change in zip(group, changes, strict=True):
                _matrix(master, slot).sub_(change, alpha=size)


def is_hidden_matrix(slot: Slot) -> bool:
    """Return whether a parameter is a hidden matrix, which Muon updates.

    It is a matrix with at least 8 rows and columns outside the embedders and heads.
    """
    return len(slot.shape) == 2 and min(slot.shape) >= _MIN_SIZE and not slot.name.startswith(_OUTER_LAYERS)


def orthogonal(matrices: Float[Tensor, "k m n"], rounds: int) -> Float[Tensor, "k m n"]:
    """Return matrices with the singular values of each moved close to 1 by Newton-Schulz iterations.

    Matrices with a Frobenius norm below 1e-7 stay small, and zeros stay zero. `rounds` is the number of iterations.
    """
    a, b, c = _COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    now = matrices.mT if tall else matrices
    now = now / torch.linalg.matrix_norm(now, keepdim=True).clamp_min(_MIN_NORM)
    for _ in range(rounds):
        square = now @ now.mT
        now = torch.baddbmm(now, torch.baddbmm(square, square, square, beta=b, alpha=c), now, beta=a)
    return now.mT if tall else now


def _by_shape(slots: Sequence[Slot]) -> list[list[Slot]]:
    """Group matrices by shape, to update matrices of one shape together."""
    groups: dict[tuple[int, ...], list[Slot]] = {}
    for slot in slots:
        groups.setdefault(slot.shape, []).append(slot)
    return list(groups.values())


def _matrix(flat: Tensor, slot: Slot) -> Tensor:
    """Return a view of a matrix in a flat buffer."""
    rows, columns = slot.shape
    return flat[slot.offset : slot.offset + rows * columns].view(rows, columns)


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """Outcome of an update of the weights.

    `gradient_norm` is the norm of the mean gradient over micro-batches, before "global" and after "sample" clipping.
    `clipped` is the fraction of samples ("sample") or tensors ("adagc") that were clipped, or 0 or 1 ("global").
    `skipped` is true if the gradient was not finite; the weights are then unchanged.
    """

    gradient_norm: float
    clipped: float
    skipped: bool


@dataclass(frozen=True, kw_only=True)
class Gathering:
    """A buffer `gradient` into which autograd writes, and the part `total` of the step's sum to which it is added.

    The part starts at element `start` of the sum and has the length of the buffer.
    """

    start: int
    gradient: Tensor
    total: Tensor


class FlatOptimizer:
    """Adam or Muon with clipping, a moving average of the weights, and a bfloat16 working copy (Suppl. Sec. 1.11.3).

    The model's parameters and gradients become views of flat buffers. Load weights before creating this object: with
    `working_dtype` bfloat16 the parameters are rounded copies of float32 masters (except in the submodules
    `keep_float32`), and every step overwrites them. Clear gradients with `zero_gradients()`, never with `zero_grad()`.

    A parameter without a gradient in a step has a gradient of zero: its moments decay and still move it, as in
    torch.optim.Adam. Frozen parameters (requires_grad False) do not change. With clipping "sample" a micro-batch must
    be one example.

    Ranks that sum gradients may call `clip_micro_batch`, `add` and `measure` for one range of elements after another
    instead of `collect`, while other ranges are being sent.

    Raise `InputError` for an unsupported `working_dtype` and for the errors of `lay_out`.
    """

    def __init__(
        self,
        model: nn.Module,
        config: OptimizerConfig,
        *,
        working_dtype: torch.dtype = torch.float32,
        keep_float32: Collection[str] = ("structure_module", "heads"),
        averages: bool = True,
    ) -> None:
        """Allocate the buffers. Without `averages`, `OuterOptimizer` updates the moving average instead of `step`."""
        if working_dtype not in (torch.float32, torch.bfloat16):
            raise InputError(f"working_dtype must be torch.float32 or torch.bfloat16, got {working_dtype}")
        self.config = config
        self._ema_decay = config.ema_decay if averages else 1.0
        self._model = model
        self._layout, self._parameters = lay_out(model, keep_float32)
        device, low, total = self._parameters[0].device, self._layout.low, self._layout.total
        lines = [slot.lines for slot in self._layout.slots]
        self._lines = torch.tensor(lines, device=device)
        self._tensor_of_line = torch.repeat_interleave(
            torch.arange(len(lines), dtype=torch.int32, device=device), self._lines, output_size=total // LINE
        )

        def zeros(elements: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(elements, dtype=dtype, device=device)

        master = zeros(total)
        rounded = working_dtype != torch.float32
        working = zeros(low, working_dtype) if rounded else master[:low]
        with torch.no_grad():
            for view, parameter in zip(self._layout.views(master[:low], master[low:]), self._parameters, strict=True):
                view.copy_(parameter)
            for view, parameter in zip(self._layout.views(working, master[low:]), self._parameters, strict=True):
                parameter.data = view
        self._buffers = AdamBuffers(
            master=master,
            first_moment=zeros(total),
            second_moment=zeros(total),
            average=master.clone(),
            working=working if rounded else None,
        )
        self._muon = Muon(self._layout, config.muon, master) if config.method == "muon" else None
        self._updates = torch.zeros(1, dtype=torch.int64)
        # Initial averages are infinite and clip nothing.
        unseen = torch.full((len(lines),), torch.inf, device=device)
        self._norm_averages = unseen if config.clipping == "adagc" else None

        self._sum = zeros(total)
        # If the gradient of a micro-batch is neither clipped nor converted, autograd adds it to the sum directly.
        by_sample = config.clipping == "sample"
        sums = self._sum[:low], self._sum[low:]
        gradients = (
            zeros(low, working_dtype) if by_sample or rounded else sums[0],
            zeros(total - low) if by_sample else sums[1],
        )
        self.gathered = tuple(
            Gathering(start=start, gradient=gradient, total=total)
            for start, gradient, total in zip((0, low), gradients, sums, strict=True)
            if gradient is not total and len(gradient) > 0
        )
        self._gradients = tuple(self._layout.views(*gradients))
        self._one = torch.ones((), device=device)
        self.samples = zeros(2)  # clipped samples and all samples since the last step
        self._sample_norm = self._one  # of the last micro-batch, before clipping
        self._is_clear = True  # nothing has been added to the sum since the last step
        self._only_scale: Tensor | None = (
            None  # factor of the only micro-batch of a step, which is not added to the sum
        )
        self._row = LINE if self._norm_averages is not None else clip.ROW
        self._norms, self._measured = zeros(-(-total // self._row)), 0
        self.restored()

    @property
    def gradient_sum(self) -> Tensor:
        """Flat buffer with the sum of all gradients collected since the last step, after clipping of samples if any.

        A gradient that `collect(last=True)` left out of the sum is added first.
        """
        if self._only_scale is not None:
            scale, self._only_scale = self._only_scale, None
            self.add(scale, 0, len(self._sum))
        return self._sum

    def restored(self) -> None:
        """Copy the masters to the working copy and clear the gradients, after `tensors()` have been overwritten."""
        if self._buffers.working is not None:
            self._buffers.working.copy_(self._buffers.master[: self._layout.low])
        self.zero_gradients()

    def zero_gradients(self) -> None:
        """Clear all gradients computed or collected since the last step, and make parameters' `grad` views again."""
        self._forget()
        for each in self.gathered:
            each.gradient.zero_()
        for parameter, view in zip(self._parameters, self._gradients, strict=True):
            parameter.grad = view

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of a loss to the gradients of all parameters, like `loss.backward()`.

        On a GPU they are added together once all are computed, because a launch for each of thousands of parameters
        would take longer than the additions.
        """
        if properties_of(loss.device).kind == "cpu":
            loss.backward()
        else:
            add_together(self._gradients, torch.autograd.grad(loss, self._parameters, allow_unused=True))

    def collect(self, *, last: bool = False) -> None:
        """Add the gradient of the current micro-batch to the sum and clear it; clip it if `clipping` is "sample".

        Pass `last` if `step` follows, without gradients of other ranks. If the micro-batch is also the first one of the
        step, `step` then reads its gradient directly, and the sum is neither written nor read.
        """
        scale = self.clip_micro_batch()
        if last and self._is_clear and self.gathered and self._muon is None:
            self._only_scale = scale
        else:
            self.add(scale, 0, len(self._sum))

    @torch.no_grad()
    def clip_micro_batch(self) -> Tensor:
        """Return the factor that clips the gradient of the current micro-batch; 1 unless `clipping` is "sample".

        The gradient itself is not changed. The sample is counted for `StepReport.clipped`. Raise `InputError` if
        gradients are no longer views of the buffers.
        """
        self._check_views()
        if self.config.clipping != "sample":
            return self._one
        size = torch.linalg.vector_norm(torch.stack([clip.norm(each.gradient) for each in self.gathered]))
        self._sample_norm = size
        self.samples += torch.stack([(size > self.config.clip_norm).float(), self._one])
        return clip.factor(size, self.config.clip_norm)

    @torch.no_grad()
    def add(self, scale: Tensor, start: int, stop: int) -> None:
        """Add elements `start` to `stop` (exclusive) of the micro-batch's gradient times `scale` to the sum.

        These elements are then cleared. Gradients that autograd adds to the sum directly are not in the micro-batch's.
        """
        self._measured, self._is_clear = 0, False
        for each in self.gathered:
            low, high = max(0, start - each.start), max(0, stop - each.start)
            if low < min(high, len(each.gradient)):
                clip.add_scaled(each.total[low:high], each.gradient[low:high], scale)

    @torch.no_grad()
    def measure(self, start: int, stop: int) -> None:
        """Compute the norms of rows of the sum, elements `start` to `stop` (exclusive), for the next `step`.

        `start` must be the start of a row. `step` computes all norms unless every element has been measured.
        """
        rows = slice(start // self._row, -(-stop // self._row))
        self._norms[rows] = clip.row_norms(self._sum[start:stop], self._row)
        self._measured += stop - start

    @torch.no_grad()
    def step(self, learning_rate: float, *, micro_batches: int) -> StepReport:
        """Update the weights by the sum of the collected gradients divided by `micro_batches`, and clear the sum.

        If the gradient or its norm is not finite, the step is skipped and the sum is cleared. The host waits for a GPU
        once, for the report. Raise `InputError` if gradients are no longer views of the buffers.
        """
        self._check_views()
        sizes = self._sizes() / micro_batches
        norm = torch.linalg.vector_norm(sizes)
        scale, clipped, averages = self._scale(sizes, norm)
        gradient_norm, clipped_fraction = torch.stack([norm, clipped.to(norm.dtype)]).tolist()
        if not math.isfinite(gradient_norm):
            self._forget()
            return StepReport(gradient_norm=gradient_norm, clipped=0.0, skipped=True)
        if self._norm_averages is not None and averages is not None:
            self._norm_averages.copy_(averages)
        self._updates += 1
        config, scale = self.config, scale / micro_batches
        if self._muon is not None:
            self._muon.step(self._buffers.master, self._sum, scale, learning_rate)
            scale = scale * self._muon.others
        if self._only_scale is not None:
            scale = scale * self._only_scale
        scale = scale if scale.ndim else scale.expand(len(self._tensor_of_line))
        update = AdamStep(
            count=int(self._updates),
            learning_rate=learning_rate,
            beta1=config.beta1,
            beta2=config.beta2,
            eps=config.eps,
            weight_decay=config.weight_decay,
            ema_decay=self._ema_decay,
        )
        for start, gradient in self._parts():
            stop = start + len(gradient)
            fused_adam(self._buffers.part(start, stop), gradient, scale[start // LINE : stop // LINE], update)
        self._begin_step()
        return StepReport(gradient_norm=gradient_norm, clipped=clipped_fraction, skipped=False)

    def _parts(self) -> list[tuple[int, Tensor]]:
        """Return contiguous parts of the step's gradient, each with the index of its first element."""
        if self._only_scale is None:
            return [(0, self._sum)]
        parts = [(each.start, each.gradient) for each in self.gathered]
        end = parts[-1][0] + len(parts[-1][1])
        # Autograd adds the gradient of parameters that stay float32 to the sum directly.
        return parts if end == len(self._sum) else [*parts, (end, self._sum[end:])]

    def _sizes(self) -> Tensor:
        """Return the norm of each tensor's gradient if `clipping` is "adagc", otherwise of the whole gradient."""
        if self._only_scale is not None and self.config.clipping == "sample":
            return self._sample_norm * self._only_scale
        if self._only_scale is not None:
            norms = torch.cat([clip.row_norms(values, self._row) for _, values in self._parts()])
        else:
            if self._measured < len(self._sum):
                self.measure(0, len(self._sum))
            norms = self._norms
        is_whole = self._norm_averages is None
        return clip.norm_of_rows(norms) if is_whole else clip.tensor_norms_of_lines(norms, self._lines)

    def _scale(self, sizes: Tensor, norm: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the factor of the gradient or of each of its lines, `StepReport.clipped`, and AdaGC's averages."""
        config, averages = self.config, self._norm_averages
        if averages is not None:
            if int(self._updates) < config.adagc.warmup_steps:
                scale, new_averages = clip.adagc_warm_up(sizes, averages, config.clip_norm)
            else:
                scale, new_averages = clip.adagc_adapt(sizes, averages, config.adagc)
            return scale[self._tensor_of_line], (scale < 1).float().mean(), new_averages
        if config.clipping == "global":
            return clip.factor(norm, config.clip_norm), norm > config.clip_norm, None
        clipped, samples = self.samples
        return self._one, clipped / samples.clamp(min=1), None

    def _forget(self) -> None:
        """Discard the gradient of the step."""
        self._sum.zero_()
        for each in self.gathered if self._only_scale is not None else ():
            each.gradient.zero_()
        self._begin_step()

    def _begin_step(self) -> None:
        """Reset what is counted for a step; buffers are not cleared."""
        self.samples.zero_()
        self._measured, self._is_clear, self._only_scale = 0, True, None

    def tensors(self) -> dict[str, Tensor]:
        """Return the whole state by name. To restore it, fill the tensors in place and call `restored()`."""
        buffers = self._buffers
        more = {} if self._norm_averages is None else {"norm_averages": self._norm_averages}
        if self._muon is not None:
            more["momentum"] = self._muon.momentum
        return {
            "master": buffers.master,
            "first_moment": buffers.first_moment,
            "second_moment": buffers.second_moment,
            "average": buffers.average,
            "updates": self._updates,
            **more,
        }

    @property
    def trained(self) -> list[tuple[nn.Parameter, int, int]]:
        """Each trainable parameter, and the elements at which its gradient starts and stops in the sum."""
        places = ((slot.offset, slot.offset + slot.lines * LINE) for slot in self._layout.slots)
        return [(parameter, *place) for parameter, place in zip(self._parameters, places, strict=True)]

    @property
    def layout(self) -> list[tuple[str, list[int], int]]:
        """Name, shape and offset (in elements) of each parameter in the flat buffers."""
        return [(slot.name, list(slot.shape), slot.offset) for slot in self._layout.slots]

    def averaged(self) -> dict[str, Tensor]:
        """Return the moving averages of parameters by name; a frozen parameter is its own average."""
        return self._by_name(self._buffers.average)

    def _by_name(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the parameters in a flat buffer by name, with frozen parameters of the model."""
        views = self._layout.views(flat[: self._layout.low], flat[self._layout.low :])
        trainable = {id(parameter): view for parameter, view in zip(self._parameters, views, strict=True)}
        return {
            name: trainable.get(id(parameter), parameter.detach())
            for name, parameter in self._model.named_parameters(remove_duplicate=False)
        }

    def _check_views(self) -> None:
        """Raise `InputError` if the gradient of a parameter is not a view of the buffers."""
        for slot, parameter, view in zip(self._layout.slots, self._parameters, self._gradients, strict=True):
            if parameter.grad is not view:
                raise InputError(
                    f"the gradient of {slot.name!r} is no longer a view of the optimizer's buffer; clear gradients "
                    "with FlatOptimizer.zero_gradients() instead of zero_grad()"
                )


@torch.no_grad()
def add_together(sums: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
    """Add each gradient to its sum in place, with few kernel launches in total; None means a gradient of zero."""
    by_dtype: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for total, gradient in zip(sums, gradients, strict=True):
        if gradient is not None:
            # Tensors with other strides would make PyTorch add all of them one by one.
            totals, parts = by_dtype.setdefault(total.dtype, ([], []))
            totals.append(total)
            parts.append(gradient.contiguous())
    for totals, parts in by_dtype.values():
        torch._foreach_add_(totals, parts)
