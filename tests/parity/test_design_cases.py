"""A design step equals ColabDesign's: features, outputs, losses, and the gradient of the sequence through recycling."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from helixfold.apps.design.losses import (
    ContactLoss,
    DesignPass,
    KnownAtoms,
    distogram_loss,
    helix_loss,
    pae_loss,
    plddt_loss,
)
from helixfold.apps.design.options import SequenceMixture
from helixfold.apps.design.sequence import designed_sequence
from helixfold.apps.design.soft_sequence import fold_sequence, with_exact_gradients, with_sequence
from helixfold.execution.recompute import RecomputeConfig, recompute, restore_methods
from helixfold.execution.whole import Whole
from helixfold.folding.residue_offsets import ring_offsets
from helixfold.model.alphafold import AlphaFold
from helixfold.model.batch import Batch
from helixfold.model.confidence import plddt, predicted_aligned_error
from scripts.parity.make_design_cases import RECYCLES, SETTINGS, WEIGHTS, cyclic_offsets
from tests.parity.cases import DATA, deviation, read_case

pytestmark = pytest.mark.parity

LOSSES: dict[str, Callable[[DesignPass], torch.Tensor]] = {
    "con": ContactLoss(),
    "plddt": plddt_loss,
    "pae": pae_loss,
    "helix": helix_loss,
    "dgram_cce": distogram_loss,
}


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> AlphaFold:
    folder = tmp_path_factory.mktemp("design")
    return read_case(DATA / "monomer_ptm_tiny").model(folder).requires_grad_(False)


def batch_of(case: dict[str, np.ndarray]) -> Batch:
    given = {name.partition("/")[2]: value for name, value in case.items() if name.startswith("input/")}
    values = {
        name: torch.from_numpy(value.astype(np.int64 if value.dtype.kind == "i" else np.float32))[None]
        for name, value in given.items()
        if name in Batch.__dataclass_fields__
    }
    rows, residues = given["msa_mask"].shape
    empty = {
        "aatype": torch.zeros(1, residues, dtype=torch.int64),
        "target_feat": torch.zeros(1, residues, 22),
        "msa_feat": torch.zeros(1, rows, residues, 49),
    }
    whole = ("residue_index", "extra_msa", "template_aatype", "offsets")
    return Batch(**empty, **{name: value.long() if name in whole else value.float() for name, value in values.items()})


@pytest.mark.parametrize("recomputed", [False, True], ids=["stored", "recomputed"])
@pytest.mark.parametrize("protocol", SETTINGS)
def test_a_step_equals_colabdesigns(protocol: str, recomputed: bool, network: AlphaFold) -> None:
    restore_methods(network)
    with_exact_gradients(network)
    if recomputed:
        recompute(network, RecomputeConfig())
    case = dict(np.load(DATA / f"design_{protocol}.npz"))
    batch, settings = batch_of(case), SETTINGS[protocol]
    numbers = torch.from_numpy(case["input/numbers"]).requires_grad_()
    mixture = SequenceMixture(soft=settings["soft"], hard=settings["hard"], temperature=settings["temp"])
    sequence = designed_sequence(numbers, torch.zeros_like(numbers), mixture)
    read = with_sequence(batch, sequence.mixed)
    np.testing.assert_allclose(read.msa_feat[0].detach(), case["output/msa_feat"], atol=1e-6)
    np.testing.assert_allclose(read.target_feat[0, :, 1:21].detach(), case["output/target_feat"], atol=1e-6)
    outputs = fold_sequence(network, Whole(), read, num_recycles=RECYCLES)
    ones, nothing = torch.ones_like(batch.seq_mask), torch.zeros_like(batch.seq_mask)
    known = None
    if protocol == "fixbb":
        atoms = (torch.from_numpy(case[f"input/known_{name}"])[None].float() for name in ("positions", "mask"))
        known = KnownAtoms(**dict(zip(("positions", "mask"), atoms, strict=True)))
    made = DesignPass(
        outputs=outputs,
        batch=read,
        sequence=sequence,
        designed=ones,
        target=nothing,
        hotspots=nothing,
        chain_index=torch.zeros_like(batch.residue_index),
        known=known,
    )
    assert outputs.logits.aligned_error is not None
    found = {
        "plddt": plddt(outputs.logits.lddt)[0] / 100,
        "pae": predicted_aligned_error(outputs.logits.aligned_error)[0][0],
        "positions": outputs.structure.positions[0],
        "pair": outputs.representations.pair[0],
        "distogram": outputs.logits.distogram[0],
    }
    for name, value in found.items():
        assert deviation(value.detach().numpy(), case[f"output/{name}"]) < 1e-4, name
    losses = {name: LOSSES[name](made).sum() for name in WEIGHTS[protocol] if name in LOSSES}
    for name, value in losses.items():
        assert float(value.detach()) == pytest.approx(float(case[f"loss/{name}"]), rel=1e-4), name
    total = torch.stack([WEIGHTS[protocol][name] * value for name, value in losses.items()]).sum()
    assert float(total.detach()) == pytest.approx(float(case["loss"]), rel=1e-4)
    (gradient,) = torch.autograd.grad(total, [numbers])
    # In float32, with random parameters and gradients through all passes: 3e-3 with AVX2, less than 1e-3 with AVX-512.
    assert deviation(gradient.numpy(), case["gradient"]) < 5e-3


@pytest.mark.parametrize("length", [1, 2, 3, 8, 13, 80])
def test_offsets_on_a_ring_are_those_of_the_notebook_for_cyclic_peptides(length: int) -> None:
    np.testing.assert_array_equal(ring_offsets(length), cyclic_offsets(length))


def test_the_case_of_a_ring_has_its_offsets() -> None:
    case = np.load(Path(DATA) / "design_fixbb.npz")
    np.testing.assert_array_equal(case["input/offsets"], ring_offsets(len(case["input/seq_mask"])))
