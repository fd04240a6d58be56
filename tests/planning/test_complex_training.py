"""Forecasts of training on complexes count what is computed between chains, and the true atoms of equal chains."""

from dataclasses import replace

import pytest
import torch

from helixfold.execution.counter import Counter
from helixfold.execution.random_inputs import random_batch, random_labels
from helixfold.execution.recompute import Keep, RecomputeConfig, recompute
from helixfold.execution.whole import Whole
from helixfold.losses.chain_permutation import permuted_labels
from helixfold.losses.config import complexes, initial_training
from helixfold.losses.labels import ComplexLabels
from helixfold.losses.total import total_loss
from helixfold.model.alphafold import AlphaFold
from helixfold.model.outputs import nothing_recycled
from helixfold.model.presets import tiny, tiny_multimer
from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.parallel.mesh import Layout, Mesh
from helixfold.planning.estimate import Training
from helixfold.planning.passes import META, Pass, library_memory
from helixfold.planning.size import PassSize

SIZE = PassSize(residues=48, msa_rows=24, extra_rows=48, templates=2, dtype=torch.float32)
CPU = torch.device("cpu")


@pytest.mark.parametrize("keep", [pytest.param("none", marks=pytest.mark.long), "block"])
def test_a_step_takes_what_is_forecast(keep: Keep) -> None:
    """Three blocks, of which the forecast runs two without numbers."""
    config = tiny_multimer().model.with_settings(["evoformer.blocks=3", "structure.layers=2"])
    work = Training(model=config, size=SIZE)
    model = AlphaFold(config).train()
    recompute(model, RecomputeConfig.everywhere(keep))

    def learn(residues: int) -> None:
        batch = random_batch(residues, SIZE.msa_rows, SIZE.extra_rows, SIZE.templates, CPU, method="multimer")
        previous = nothing_recycled(Whole(), config, batch.seq_mask, SIZE.dtype)
        outputs = model(Whole(), [batch], previous, SIZE.dtype)
        loss = total_loss(outputs, batch, random_labels(batch), initial_training("multimer")).total.sum()
        del outputs
        loss.backward()

    learn(8)  # gradients and tables exist from now on
    with Counter() as counter:
        learn(SIZE.residues)
    forecast = work.memory(RecomputeConfig.everywhere(keep), DEVICE_MODELS["cpu"]).peak
    # What libraries take of a processor's memory is in the forecast, too.
    assert forecast - library_memory(DEVICE_MODELS["cpu"], config, SIZE) - 48 * 2**20 == pytest.approx(
        counter.peak, rel=0.1
    )


@pytest.mark.parametrize("residues", [20, 21])
def test_chains_are_permuted_without_numbers_as_with_them(residues: int) -> None:
    counts = []
    for device in (CPU, META):
        with device, torch.no_grad():
            batch = random_batch(residues, 2, 2, 1, device, method="multimer")
            outputs = AlphaFold(tiny_multimer().model).eval()(Whole(), [batch])
            labels = random_labels(batch)
            assert isinstance(labels, ComplexLabels)
            with Counter() as counter:
                permuted = permuted_labels(outputs.structure, batch, labels)
            counts.append((counter.live, {name: each.shape for name, each in vars(permuted).items()}))
    # The indices of the chosen copies are 8 bytes for each residue.
    (live, shapes), (forecast, expected) = counts
    assert shapes == expected
    assert live == pytest.approx(forecast, rel=0.02)


def test_random_labels_of_a_complex_have_both_chains() -> None:
    batch = random_batch(7, 2, 2, 1, CPU, method="multimer")
    labels = random_labels(batch)
    assert isinstance(labels, ComplexLabels)
    positions, mask = labels.copies_positions[0], labels.copies_mask[0]
    own = labels.all_atom_positions[0]
    assert torch.equal(positions[0], own[[0, 1, 2, 0, 1, 2, 2]])
    assert torch.equal(positions[1], own[[3, 4, 5, 3, 4, 5, 6]])
    assert not mask[0, 6].any()
    assert mask[1, 6].any()


def test_terms_between_chains_are_counted() -> None:
    one = replace(SIZE, residues=8)
    mesh = Mesh.simulated(Layout(), 0)
    assert Pass(tiny_multimer().model, one, None, mesh).loss == complexes(initial_training())
    assert Pass(tiny().model, one, None, mesh).loss == initial_training()
