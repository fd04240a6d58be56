"""AdaGC equals a plain loop over tensors written from the paper."""

import torch
from torch import Tensor

from helixfold.optim.clip import adagc_adapt, adagc_warm_up
from helixfold.optim.config import AdaGCConfig

CONFIG = AdaGCConfig(relative_threshold=1.05, decay=0.98, warmup_steps=20)


def plain(gradients: list[list[Tensor]], clip_norm: float, config: AdaGCConfig) -> list[list[Tensor]]:
    """The clipped gradients of every step: arXiv 2502.11034, Alg. 1, line by line, where no gradient is zero."""
    gamma: list[float] = []
    clipped = []
    for t, step in enumerate(gradients, start=1):
        norms = [float(g.norm()) for g in step]
        if t <= config.warmup_steps:
            h = min(clip_norm / sum(norm**2 for norm in norms) ** 0.5, 1.0)
            new = [h * g for g in step]
            gamma = [float(g.norm()) if t == 1 else min(gamma[i], float(g.norm())) for i, g in enumerate(new)]
        else:
            new = []
            for i, g in enumerate(step):
                h = min(config.relative_threshold * gamma[i] / norms[i], 1.0)
                new.append(h * g)
                gamma[i] = config.decay * gamma[i] + (1 - config.decay) * float(new[i].norm())
        clipped.append(new)
    return clipped


def test_factors_are_those_of_the_paper() -> None:
    sizes = (1, 6, 40)
    gradients = [
        [10 ** float(torch.rand(()) - 1 - step / 50) * torch.randn(size, dtype=torch.float64) for size in sizes]
        for step in range(100)
    ]
    averages = torch.full((3,), torch.inf)
    limited = 0
    for t, (step, expected) in enumerate(zip(gradients, plain(gradients, 0.1, CONFIG), strict=True)):
        norms = torch.stack([g.norm() for g in step])
        if t < CONFIG.warmup_steps:
            scale, averages = adagc_warm_up(norms, averages, 0.1)
        else:
            scale, averages = adagc_adapt(norms, averages, CONFIG)
            limited += int((scale < 1).sum())
        for found, g, right in zip(scale, step, expected, strict=True):
            torch.testing.assert_close(found.double() * g, right, rtol=1e-5, atol=1e-12)
    assert 50 < limited < 240  # some are clipped and some are not


def test_a_tensor_without_gradient_keeps_its_average_and_is_not_stopped_for_good() -> None:
    averages = torch.full((2,), torch.inf)
    nothing, something = torch.tensor([0.0, 0.05]).double(), torch.tensor([0.03, 0.04]).double()
    _, averages = adagc_warm_up(nothing, averages, 0.1)
    assert averages[0].isinf()
    # Counted for the first time after the warm-up: taken as it is.
    scale, averages = adagc_adapt(something, averages, CONFIG)
    torch.testing.assert_close(scale, torch.ones(2))
    torch.testing.assert_close(averages, torch.tensor([0.03, 0.98 * 0.05 + 0.02 * 0.04]))
    scale, later = adagc_adapt(nothing, averages, CONFIG)
    assert scale[0] == 1
    assert later[0] == averages[0]
    scale, _ = adagc_adapt(10 * something, later, CONFIG)
    torch.testing.assert_close(scale[0], torch.tensor(1.05 / 10), rtol=1e-6, atol=0)
