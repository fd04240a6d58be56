"""The whole network on the bfloat16 working copy computes what it computes on such float32 parameters, cast at use."""

import pytest
import torch
from torch import Tensor

from helixfold.execution.whole import Whole
from helixfold.model.alphafold import AlphaFold
from helixfold.optim.config import OptimizerConfig
from helixfold.optim.flat import FlatOptimizer
from tests.support.networks import random_batch, relative_error, tiny_model


def loss(model: AlphaFold, seed: int = 0) -> Tensor:
    """Something that every output has a part in, with dropout."""
    torch.manual_seed(seed)
    outputs = model.train()(Whole(), [random_batch()], dtype=torch.bfloat16)
    logits, structure = outputs.logits, outputs.structure
    parts = [logits.distogram, logits.masked_msa, logits.lddt, logits.experimentally_resolved, logits.aligned_error]
    parts += [structure.atom14, structure.unnormalized_torsions]
    return torch.stack([(part * torch.randn(part.shape)).mean() for part in parts if part is not None]).sum()


def test_loss_and_gradients_equal_those_of_float32_parameters() -> None:
    plain, ours = tiny_model(), tiny_model()
    FlatOptimizer(ours, OptimizerConfig(), working_dtype=torch.bfloat16)
    for parameter, rounded in zip(plain.parameters(), ours.parameters(), strict=True):
        parameter.data.copy_(rounded)
    expected, found = loss(plain), loss(ours)
    assert found.equal(expected)
    expected.backward()
    found.backward()
    for (name, right), parameter in zip(plain.named_parameters(), ours.parameters(), strict=True):
        trunk = not name.startswith(("structure_module.", "heads."))
        assert parameter.dtype == (torch.bfloat16 if trunk else torch.float32), name
        assert parameter.grad is not None
        gradient = torch.zeros_like(right) if right.grad is None else right.grad
        if trunk:
            # Some are used several times: what is added up in bfloat16 is rounded each time.
            assert relative_error(parameter.grad, gradient) < 2**-7, name
        else:
            assert parameter.grad.equal(gradient), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_network_learns_by_it(dtype: torch.dtype) -> None:
    model = tiny_model()
    optimizer = FlatOptimizer(model, OptimizerConfig(clipping="global"), working_dtype=dtype)
    values = []
    for _ in range(4):
        value = loss(model)
        value.backward()
        optimizer.collect()
        assert not optimizer.step(1e-3, micro_batches=1).skipped
        values.append(float(value.detach()))
    assert values[-1] < values[0]
