"""Networks whose activations have the ranges of trained ones: float32 is exact, and bfloat16 as good as others'."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch

from helixfold.apps.verify.runs import mean_deviation
from helixfold.apps.verify.verify import published_run
from helixfold.execution.slabs import Slabs
from helixfold.execution.whole import Whole
from helixfold.model.alphafold import AlphaFold
from helixfold.model.update import Executor
from helixfold.ops.dispatch import forced
from tests.parity.cases import (
    DATA,
    Case,
    deviation,
    multimer_outputs_as_deepmind,
    outputs_as_deepmind,
    read_case,
    real_part,
    stored_spec,
)
from tests.parity.range_factors import LARGEST_LOGIT, LARGEST_PADDING, measured_ranges
from tests.parity.test_cases import RANGES, expected_outputs

pytestmark = pytest.mark.parity

# Times the deviation of DeepMind's float32 from its own float64, which is one draw of rounding errors: ours is another
# one, and a few outputs of each case have less than others by chance.
TIMES_NOISE, LEAST_NOISE = 5.0, 1e-5
# Times the error of others in bfloat16; below a thousandth, heads and structure in float32 decide.
TIMES_OTHERS, LEAST_ERROR = 2.0, 1e-3


# One of each method; the others run before each release.
@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=() if name in ("ranges_monomer", "ranges_multimer_v3") else pytest.mark.long)
        for name in RANGES
    ],
)
def case(request: pytest.FixtureRequest) -> Case:
    return read_case(DATA / request.param)


@pytest.fixture(scope="module")
def model(case: Case, tmp_path_factory: pytest.TempPathFactory) -> AlphaFold:
    return case.model(tmp_path_factory.mktemp(case.name))


def real_outputs(case: Case, outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return what the network gives for residues that are not padding."""
    batch = case.batches[-1]
    masks = batch.seq_mask[0].numpy(), batch.msa_mask[0].numpy()
    return {name: real_part(name, outputs[name], *masks) for name in expected_outputs(case)}


@torch.no_grad()
def run_case(model: AlphaFold, case: Case, run: Executor, dtype: torch.dtype, *, plain: bool) -> dict[str, np.ndarray]:
    previous = None
    with forced("reference") if plain else nullcontext():
        for batch in case.batches[: len(case.recycled)]:
            previous = model.fold(run, [batch], previous, dtype).recycled()
        outputs = model(run, [case.batches[len(case.recycled)]], previous, dtype)
    named = (multimer_outputs_as_deepmind if case.is_multimer else outputs_as_deepmind)(outputs)
    return real_outputs(case, named)


def test_activations_have_the_ranges_of_trained_networks(case: Case, model: AlphaFold) -> None:
    spec = stored_spec(case.meta)
    times, ranges = spec.times, measured_ranges(model, case.batches)
    published = published_run(torch.device("cpu")).outputs
    channels = times * published["representations/pair"].std((0, 1))
    found = case.outputs["representations/pair"]
    real = case.batches[-1].seq_mask[0].bool().numpy()
    edges = real[:, None] & real
    spread = found[edges].std(0)
    if len(spread) == len(channels):
        np.testing.assert_allclose(spread, channels, rtol=0.25)
    assert spread.min() < 10 * times
    assert 150 * times < spread.max() < 350 * times
    assert np.abs(found[edges]).max() > 500 * times
    assert np.abs(case.outputs["representations/msa_first_row"][real]).max() > 250 * times
    assert np.abs(found[~edges]).max() == pytest.approx(LARGEST_PADDING * times, rel=0.15)
    if spec.channels == "full":
        assert np.median([*ranges.logits.values()]) == pytest.approx(LARGEST_LOGIT, rel=0.2)


@pytest.mark.parametrize("run", [Whole(), Slabs(rows=5)], ids=["whole", "slabs"])
def test_float32_is_exact_for_real_residues_beside_large_padding(case: Case, model: AlphaFold, run: Executor) -> None:
    found, expected = run_case(model, case, run, torch.float32, plain=False), real_outputs(case, case.outputs)
    noise = case.meta["float32_noise_without_padding"]
    errors = {name: deviation(value, expected[name]) for name, value in found.items()}
    beyond = {
        name: (error, noise[name])
        for name, error in errors.items()
        if not error <= max(LEAST_NOISE, TIMES_NOISE * noise[name])
    }
    assert not beyond, beyond


@pytest.fixture(scope="module")
def of_plain_pytorch(case: Case, model: AlphaFold) -> dict[str, np.ndarray]:
    """The outputs of plain PyTorch in bfloat16."""
    return run_case(model, case, Whole(), torch.bfloat16, plain=True)


@pytest.mark.parametrize("run", [Whole(), Slabs(rows=5)], ids=["whole", "slabs"])
def test_bfloat16_costs_at_most_twice_what_it_costs_others(
    case: Case, model: AlphaFold, of_plain_pytorch: dict[str, np.ndarray], run: Executor
) -> None:
    expected = real_outputs(case, case.outputs)

    def errors(outputs: dict[str, np.ndarray]) -> dict[str, float]:
        return {name: mean_deviation(value, expected[name]) for name, value in outputs.items()}

    ours = errors(run_case(model, case, run, torch.bfloat16, plain=False))
    plain = errors(of_plain_pytorch)
    deepmind = case.meta["bfloat16_error"]
    beyond = {
        name: (error, plain[name], deepmind[name])
        for name, error in ours.items()
        if not error <= TIMES_OTHERS * max(LEAST_ERROR, min(plain[name], deepmind[name]))
    }
    assert not beyond, beyond
