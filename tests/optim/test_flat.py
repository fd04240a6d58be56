"""The flat optimiser is torch's own, step for step; its views, its state and its refusals hold."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from data_pipeline.io.errors import InputError
from helixfold.execution.counter import Counter
from helixfold.ops import fused_adam
from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.optim import clip
from helixfold.optim.config import AdaGCConfig, Clipping, OptimizerConfig
from helixfold.optim.flat import FlatOptimizer, StepReport, add_together
from tests.optim.networks import Small, float32_parameters, losses

CONFIG = OptimizerConfig(clipping="none", clip_norm=0.1, ema_decay=0.99, weight_decay=0.01)
ADAGC = replace(CONFIG, clipping="adagc", adagc=AdaGCConfig(warmup_steps=20))
STEPS, PARTS = 100, 3


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several chunks, the last one not full, although the model is small."""
    monkeypatch.setattr(fused_adam, "_CHUNK_OF_A_THREAD", 8 * fused_adam.LINE)
    monkeypatch.setattr(clip, "_CHUNK", 8 * fused_adam.LINE)


def pair(config: OptimizerConfig, **options: object) -> tuple[Small, FlatOptimizer, Small]:
    """A model with the flat optimiser, and an equal one without."""
    ours, plain = Small(), Small()
    plain.load_state_dict(ours.state_dict())
    options = {"keep_float32": ("heads",), **options}
    return ours, FlatOptimizer(ours, config, **options), plain  # type: ignore[arg-type]


def flat_step(model: nn.Module, optimizer: FlatOptimizer, step: int, rate: float = 1e-3) -> StepReport:
    for part in range(PARTS):
        losses(model, step, PARTS)[part].backward()
        optimizer.collect()
    return optimizer.step(rate, micro_batches=PARTS)


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def gradients_of(model: nn.Module, loss: Tensor) -> list[Tensor]:
    """Gradients as torch gives them, zeros where there are none."""
    parameters = trained(model)
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


def mean_gradients(model: nn.Module, step: int, treat: Callable[[list[Tensor]], list[Tensor]]) -> list[Tensor]:
    parts = [treat(gradients_of(model, loss)) for loss in losses(model, step, PARTS)]
    return [torch.stack(each).sum(0) / PARTS for each in zip(*parts, strict=True)]


def clipped_to(limit: float) -> Callable[[list[Tensor]], list[Tensor]]:
    def treat(gradients: list[Tensor]) -> list[Tensor]:
        norm = torch.cat([each.flatten() for each in gradients]).double().norm()
        return [each * float(limit / norm) if norm > limit else each for each in gradients]

    return treat


class PlainAdaGC:
    """AdaGC as a loop over tensors (arXiv 2502.11034, Alg. 1), without a gradient nothing is counted."""

    def __init__(self, config: OptimizerConfig) -> None:
        self.config, self.step = config, 0
        self.gamma: dict[int, float] = {}

    def __call__(self, gradients: list[Tensor]) -> list[Tensor]:
        self.step += 1
        adagc, warm = self.config.adagc, self.step <= self.config.adagc.warmup_steps
        if warm:
            gradients = clipped_to(self.config.clip_norm)(gradients)
        found = []
        for index, gradient in enumerate(gradients):
            norm = float(gradient.norm())
            limit = adagc.relative_threshold * self.gamma.get(index, torch.inf)
            new = gradient if warm or norm <= limit else gradient * (limit / norm)
            size, before = float(new.norm()), self.gamma.get(index)
            if size > 0 and before is None:
                self.gamma[index] = size
            elif size > 0 and before is not None:
                self.gamma[index] = min(before, size) if warm else adagc.decay * before + (1 - adagc.decay) * size
            found.append(new)
        return found


@pytest.mark.parametrize(
    ("clipping", "weight_decay"),
    [("none", 0.01), ("global", 0.0), ("global", 0.01), ("sample", 0.01), ("adagc", 0.01)],
)
def test_a_hundred_steps_equal_torchs_adam_with_clipping_and_average(clipping: str, weight_decay: float) -> None:
    config = replace(ADAGC, clipping=clipping, weight_decay=weight_decay)
    ours, optimizer, plain = pair(config)
    if weight_decay:
        reference: torch.optim.Optimizer = torch.optim.AdamW(trained(plain), eps=1e-6, weight_decay=weight_decay)
    else:
        reference = torch.optim.Adam(trained(plain), eps=1e-6)
    average = torch.optim.swa_utils.AveragedModel(
        plain, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(config.ema_decay)
    )
    average.update_parameters(plain)  # its first update copies
    adagc = PlainAdaGC(config)
    clipped = 0.0
    for step in range(STEPS):
        rate = 1e-2 / (1 + step / 50)
        treat = clipped_to(config.clip_norm) if clipping == "sample" else list
        gradients = mean_gradients(plain, step, treat)
        if clipping == "adagc":
            gradients = adagc(gradients)
        for parameter, gradient in zip(trained(plain), gradients, strict=True):
            parameter.grad = gradient
        if clipping == "global":
            torch.nn.utils.clip_grad_norm_(trained(plain), config.clip_norm)
        reference.param_groups[0]["lr"] = rate
        reference.step()
        average.update_parameters(plain)
        report = flat_step(ours, optimizer, step, rate)
        assert not report.skipped
        clipped += report.clipped / STEPS
    for found, right in (
        (float32_parameters(optimizer), plain),
        (dict(ours.named_parameters(remove_duplicate=False)), plain),
        (optimizer.averaged(), average.module),
    ):
        for name, value in right.named_parameters(remove_duplicate=False):
            torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-6)
    assert clipped == 0 if clipping == "none" else 0.1 < clipped < 1


@pytest.mark.parametrize("clipping", ["none", "sample"])
def test_parameters_and_gradients_are_aligned_views_and_stay_so(clipping: str) -> None:
    ours, optimizer, _ = pair(replace(CONFIG, clipping=clipping), working_dtype=torch.bfloat16)
    before = [(parameter.data_ptr(), parameter.grad) for parameter in trained(ours)]
    for step in range(2):
        flat_step(ours, optimizer, step)
    for (address, gradient), parameter in zip(before, trained(ours), strict=True):
        assert gradient is parameter.grad
        assert parameter.data_ptr() == address
        assert address % 64 == gradient.data_ptr() % 64 == 0
    assert ours.tied.weight is ours.first.weight


def test_the_gradient_is_the_sum_where_nothing_is_to_be_done_to_it() -> None:
    ours, optimizer, _ = pair(CONFIG)
    assert ours.unused.grad.data_ptr() == optimizer.gradient_sum.data_ptr()
    ours, optimizer, _ = pair(replace(CONFIG, clipping="sample"))
    assert ours.unused.grad.data_ptr() != optimizer.gradient_sum.data_ptr()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("clipping", ["none", "global", "sample", "adagc"])
def test_padding_stays_zero(clipping: str, dtype: torch.dtype) -> None:
    ours, optimizer, _ = pair(replace(ADAGC, clipping=clipping), working_dtype=dtype)
    used = torch.zeros(len(optimizer.gradient_sum), dtype=torch.bool)
    for _, shape, offset in optimizer.layout:
        used[offset : offset + torch.Size(shape).numel()] = True
    assert not used.all()
    for step in range(3):
        flat_step(ours, optimizer, step)
    for name, flat in optimizer.tensors().items():
        if len(flat) == len(used):
            assert (flat[~used] == 0).all(), name
    assert (optimizer.gradient_sum == 0).all()


def test_frozen_parameters_are_left_alone_and_exported() -> None:
    ours, optimizer, plain = pair(CONFIG)
    flat_step(ours, optimizer, 0)
    for named in (optimizer.averaged(), float32_parameters(optimizer)):
        assert named["frozen"].equal(plain.frozen)
        plain.load_state_dict(named)
    assert "frozen" not in [name for name, _, _ in optimizer.layout]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("clipping", ["none", "global", "sample", "adagc"])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 1e30])
def test_a_step_that_is_not_finite_changes_nothing(clipping: str, dtype: torch.dtype, wrong: float) -> None:
    config = replace(ADAGC, clipping=clipping, adagc=AdaGCConfig(warmup_steps=2))
    ours, optimizer, _ = pair(config, working_dtype=dtype)
    again, undisturbed, _ = pair(config, working_dtype=dtype)
    again.load_state_dict(ours.state_dict())
    for name, value in undisturbed.tensors().items():
        value.copy_(optimizer.tensors()[name])
    undisturbed.restored()
    for step in range(6):
        if step in (1, 4):
            before = {name: value.clone() for name, value in optimizer.tensors().items()}
            weights = [parameter.clone() for parameter in trained(ours)]
            losses(ours, step, PARTS)[0].backward()
            optimizer.collect()
            ours.second.weight.grad[3, 2] = wrong
            optimizer.collect()
            report = optimizer.step(1e-3, micro_batches=PARTS)
            assert report.skipped
            assert report.clipped == 0
            assert all(value.equal(before[name]) for name, value in optimizer.tensors().items())
            assert all(now.equal(then) for now, then in zip(trained(ours), weights, strict=True))
            assert (optimizer.gradient_sum == 0).all()
        assert flat_step(ours, optimizer, step) == flat_step(again, undisturbed, step)
    for name, value in optimizer.tensors().items():
        assert value.equal(undisturbed.tensors()[name]), name


def test_a_gradient_that_becomes_infinite_in_the_sum_over_ranks_is_noticed() -> None:
    ours, optimizer, plain = pair(replace(CONFIG, clipping="sample"))
    losses(ours, 0, 1)[0].backward()
    optimizer.collect()
    optimizer.gradient_sum[40] = torch.inf
    assert optimizer.step(1e-3, micro_batches=2).skipped
    assert all(found.equal(right) for found, right in zip(trained(ours), trained(plain), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("clipping", ["sample", "adagc"])
def test_a_restored_state_goes_on_bit_for_bit(clipping: str, dtype: torch.dtype) -> None:
    config = replace(ADAGC, clipping=clipping, adagc=AdaGCConfig(warmup_steps=4))
    ours, optimizer, _ = pair(config, working_dtype=dtype)
    for step in range(3):
        flat_step(ours, optimizer, step)
    saved = {name: value.clone() for name, value in optimizer.tensors().items()}
    torch.manual_seed(1)
    other, resumed, _ = pair(config, working_dtype=dtype)
    losses(other, 9, 1)[0].backward()
    resumed.collect()  # is forgotten
    for name, value in resumed.tensors().items():
        value.copy_(saved[name])
    resumed.restored()
    other.frozen.data.copy_(ours.frozen)
    for step in range(3, 6):
        assert flat_step(ours, optimizer, step) == flat_step(other, resumed, step)
    for name, value in optimizer.tensors().items():
        assert value.equal(resumed.tensors()[name]), name
    for left, right in zip(ours.parameters(), other.parameters(), strict=True):
        assert left.equal(right)


def test_a_state_serves_any_working_dtype() -> None:
    _, single, _ = pair(CONFIG)
    _, rounded, _ = pair(CONFIG, working_dtype=torch.bfloat16)
    assert json.loads(json.dumps(single.layout)) == json.loads(json.dumps(rounded.layout))
    assert {k: (v.shape, v.dtype) for k, v in single.tensors().items()} == {
        k: (v.shape, v.dtype) for k, v in rounded.tensors().items()
    }


def test_the_working_copy_is_the_rounded_master_and_gradients_are_added_in_float32() -> None:
    ours, optimizer, _ = pair(CONFIG, working_dtype=torch.bfloat16)
    assert ours.first.weight.dtype == ours.unused.dtype == torch.bfloat16
    assert ours.heads["one"].weight.dtype == torch.float32
    expected = 0
    for part in range(PARTS):
        losses(ours, 0, PARTS)[part].backward()
        assert ours.first.weight.grad.dtype == torch.bfloat16
        expected = expected + ours.first.weight.grad.float()
        optimizer.collect()
    offset = next(offset for name, _, offset in optimizer.layout if name == "first.weight")
    found = optimizer.gradient_sum[offset : offset + 33 * 7].view(33, 7)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    optimizer.step(1e-2, micro_batches=PARTS)
    for name, value in float32_parameters(optimizer).items():
        parameter = ours.get_parameter(name)
        assert parameter.equal(value.to(parameter.dtype))
    assert not float32_parameters(optimizer)["first.weight"].equal(ours.first.weight.float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("clipping", ["none", "global", "sample", "adagc"])
def test_the_only_micro_batch_of_a_step_counts_as_if_it_were_added_to_the_sum(
    clipping: str, dtype: torch.dtype
) -> None:
    config = replace(ADAGC, clipping=clipping, adagc=AdaGCConfig(warmup_steps=2))
    ours, optimizer, _ = pair(config, working_dtype=dtype)
    other, summing, _ = pair(config, working_dtype=dtype)
    other.load_state_dict(ours.state_dict())
    for name, value in summing.tensors().items():
        value.copy_(optimizer.tensors()[name])
    summing.restored()
    for step, parts in enumerate((1, 1, 2, 1, 1, 1)):
        for model, each in ((ours, optimizer), (other, summing)):
            for part in range(parts):
                losses(model, step, PARTS)[part].backward()
                if step == 3:  # is not finite, and leaves nothing behind
                    model.second.weight.grad[3, 2] = float("inf")
                each.collect(last=each is optimizer and part == parts - 1)
        if step == 4:  # whoever reads the sum finds all of it
            torch.testing.assert_close(optimizer.gradient_sum, summing.gradient_sum, rtol=1e-4, atol=1e-7)
            assert optimizer.gradient_sum.any()
        reports = [each.step(1e-3, micro_batches=parts) for each in (optimizer, summing)]
        assert reports[0].gradient_norm == pytest.approx(reports[1].gradient_norm, rel=1e-5, nan_ok=True)
        assert [replace(each, gradient_norm=0) for each in reports] == [
            reports[0].__class__(gradient_norm=0, clipped=reports[1].clipped, skipped=step == 3)
        ] * 2
        for name, value in optimizer.tensors().items():
            torch.testing.assert_close(value, summing.tensors()[name], rtol=1e-6, atol=1e-9)
        for each in (optimizer, summing):
            assert not any(gradient.gradient.any() for gradient in each.gathered)
            assert not each.gradient_sum.any()


def test_gradients_may_be_forgotten() -> None:
    ours, optimizer, _ = pair(replace(CONFIG, clipping="sample"))
    flat_step(ours, optimizer, 0)
    before = float32_parameters(optimizer)["first.weight"].clone()
    losses(ours, 1, 1)[0].backward()
    optimizer.collect()
    losses(ours, 2, 1)[0].backward()
    ours.zero_grad()
    optimizer.zero_gradients()
    assert (optimizer.gradient_sum == 0).all()
    assert (ours.first.weight.grad == 0).all()
    report = optimizer.step(0.0, micro_batches=1)
    assert (report.gradient_norm, report.clipped) == (0, 0)
    torch.testing.assert_close(float32_parameters(optimizer)["first.weight"], before)


@pytest.mark.parametrize("call", ["collect", "step"])
def test_lost_views_are_an_error(call: str) -> None:
    ours, optimizer, _ = pair(CONFIG)
    ours.zero_grad()
    losses(ours, 0, 1)[0].backward()
    with pytest.raises(InputError, match="zero_gradients"):
        optimizer.collect() if call == "collect" else optimizer.step(1e-3, micro_batches=1)


def test_the_norm_that_is_reported_is_that_of_the_mean() -> None:
    ours, optimizer, plain = pair(replace(CONFIG, clipping="global"))
    expected = torch.cat([each.flatten() for each in mean_gradients(plain, 0, list)]).norm()
    assert flat_step(ours, optimizer, 0).gradient_norm == pytest.approx(float(expected), rel=1e-5)


def test_another_working_dtype_is_refused() -> None:
    with pytest.raises(InputError, match="float16"):
        FlatOptimizer(Small(), CONFIG, working_dtype=torch.float16, keep_float32=())


@pytest.mark.parametrize("working_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("clipping", ["none", "sample"])
def test_gradients_added_together_are_those_added_one_by_one(
    working_dtype: torch.dtype, clipping: Clipping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU; some parameters have no gradient."""
    found = []
    for properties in (DEVICE_MODELS["cpu"], DEVICE_MODELS["h100"]):
        monkeypatch.setattr("helixfold.optim.flat.properties_of", lambda _, properties=properties: properties)
        torch.manual_seed(0)
        model = Small()
        optimizer = FlatOptimizer(
            model, replace(CONFIG, clipping=clipping), working_dtype=working_dtype, keep_float32=("heads",)
        )
        for part in range(PARTS):
            optimizer.backward(losses(model, 0, PARTS)[part])
            if part != 1:
                optimizer.collect()
        found.append((optimizer.gradient_sum, [each.gradient for each in optimizer.gathered]))
    (ours, ours_open), (theirs, theirs_open) = found
    assert ours.any()
    assert torch.equal(ours, theirs)
    assert all(map(torch.equal, ours_open, theirs_open))


def test_a_step_on_a_gpu_adds_all_gradients_in_as_many_operations_as_there_are_dtypes() -> None:
    with torch.device("meta"):
        model = Small()
    optimizer = FlatOptimizer(model, CONFIG, working_dtype=torch.bfloat16, keep_float32=("heads",))
    with Counter() as counter:
        add_together(optimizer._gradients, [torch.empty_like(each) for each in optimizer._gradients])
    assert counter.launches == 2
