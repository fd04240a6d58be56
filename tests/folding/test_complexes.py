"""Complexes are folded by models of complexes, and by models of single chains as one chain with missing residues."""

import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch

from data_pipeline.features.complexes.feature_set import ComplexFeatureSet, TargetFeatures, as_complex
from data_pipeline.pipeline import Target, prepare
from data_pipeline.sampling.complex_sample import complex_sample, draw
from helixfold.execution.slabs import Slabs
from helixfold.execution.whole import Whole
from helixfold.folding.model_input import model_input
from helixfold.folding.options import FoldingOptions
from helixfold.folding.prediction import Prediction
from helixfold.model import confidence
from helixfold.model.alphafold import AlphaFold
from helixfold.model.batch import MultimerBatch
from helixfold.model.presets import Preset, small, tiny, tiny_multimer
from helixfold.model.update import Executor
from helixfold.planning.memory import FeatureRows
from helixfold.weights.find import find_models
from tests.support.complex_targets import feature_set
from tests.support.folding import fold_one
from tests.support.networks import with_every_parameter_random


def network(preset: Preset) -> AlphaFold:
    return with_every_parameter_random(preset.model)


def folded(features: TargetFeatures, preset: Preset, *, run: Executor | None = None, **options: object) -> Prediction:
    given = FoldingOptions(**{"num_recycles": 1, "logits": True, **options})
    return fold_one(network(preset), run or Whole(), features, preset, given)


def test_a_model_of_complexes_gives_what_its_network_gives_on_the_samples() -> None:
    features, preset = feature_set(), tiny_multimer()
    model, multimer, previous = network(preset), features.multimer, None
    for cycle in range(2):
        seeds = [zlib.crc32(b"complex"), zlib.crc32(b"tiny_multimer"), 3, cycle, 0]
        choices = draw(multimer, preset.sampling, np.random.default_rng(seeds))
        batch = MultimerBatch.from_samples([complex_sample(multimer, preset.sampling, choices)])
        with torch.no_grad():
            outputs = model(Whole(), [batch], previous)
        previous = outputs.recycled()
    assert batch.template_mask.shape == (1, 4)
    prediction = folded(features, preset, seed=3)
    # Its empty template slots are embedded once, so sums have another order.
    np.testing.assert_allclose(prediction.protein.atom_positions, outputs.structure.positions[0].numpy(), atol=1e-3)
    assert prediction.protein.chain_index.tolist() == [0] * 8 + [1] * 8 + [2] * 8
    assert prediction.protein.residue_index.tolist() == [*range(1, 9)] * 3
    assert prediction.chain_ids == ("A", "C", "B")
    logits, mask = outputs.logits.aligned_error, batch.seq_mask
    assert logits is not None
    everywhere = confidence.tm_of_alignments(logits, mask).max()
    between = batch.asym_id[:, :, None] != batch.asym_id[:, None]
    interfaces = confidence.tm_of_alignments(logits, mask, between).max()
    assert prediction.ptm == pytest.approx(float(everywhere))
    assert prediction.iptm == pytest.approx(float(interfaces))
    assert prediction.ranking_confidence == pytest.approx(0.8 * float(interfaces) + 0.2 * float(everywhere))
    assert prediction.notes == ()


def test_recycling_ends_early_as_the_models_preset_says() -> None:
    features, preset = feature_set("AB"), replace(tiny_multimer(), num_recycles=5, recycle_tolerance=1e9)
    early = folded(features, preset, num_recycles=None)
    assert (early.num_recycles, early.converged) == (1, True)
    whole = folded(features, preset, num_recycles=None, recycle_tolerance=0.0)
    assert (whole.num_recycles, whole.converged) == (5, False)
    assert FoldingOptions().tolerance(tiny()) == 0


@pytest.mark.parametrize("preset", [tiny_multimer(), tiny()], ids=lambda preset: preset.name)
def test_slabs_give_what_the_whole_gives(preset: Preset) -> None:
    whole, slabs = (folded(feature_set(), preset, run=run) for run in (Whole(), Slabs(rows=5)))
    assert np.abs(whole.protein.atom_positions - slabs.protein.atom_positions).max() < 1e-3
    assert whole.iptm == pytest.approx(slabs.iptm, abs=1e-5)


def test_a_model_of_single_chains_reads_a_complex_as_one_chain_with_missing_residues() -> None:
    features, preset = feature_set(), tiny()
    by_gap, one_chain = folded(features, preset), folded(features.residue_gap, preset)
    assert features.residue_gap.residue_index[8] == 208
    assert np.array_equal(by_gap.protein.atom_positions, one_chain.protein.atom_positions)
    assert by_gap.protein.residue_index.tolist() == [*range(1, 9)] * 3
    assert by_gap.ptm == one_chain.ptm
    assert one_chain.iptm is None
    assert by_gap.logits is not None
    errors = torch.from_numpy(by_gap.logits["aligned_error"])[None]
    chain = torch.from_numpy(by_gap.protein.chain_index)
    between = (chain[:, None] != chain[None])[None]
    assert by_gap.iptm == pytest.approx(float(confidence.tm_of_alignments(errors, torch.ones(1, 24), between).max()))
    assert by_gap.ranking_confidence == pytest.approx(0.8 * by_gap.iptm + 0.2 * by_gap.ptm)
    assert "'tiny', which was trained on single chains" in by_gap.notes[-1]
    assert not one_chain.notes


def test_a_single_chain_is_a_complex_of_one_for_a_model_of_complexes() -> None:
    alone = prepare(Target(name="complex", sequence="MKTAYIAKQR")).features
    preset = tiny_multimer()
    prediction = folded(alone, preset)
    same = folded(ComplexFeatureSet(multimer=as_complex(alone), residue_gap=alone), preset)
    assert np.array_equal(prediction.protein.atom_positions, same.protein.atom_positions)
    assert prediction.iptm is None
    assert prediction.ranking_confidence == prediction.ptm
    assert prediction.chain_ids == ("A",)


def test_the_demonstration_model_folds_a_dimer() -> None:
    (model,) = find_models(["small"], None, seed=0)
    prediction = fold_one(model.network, Whole(), feature_set("AB"), small(), FoldingOptions())
    assert [note.split(":")[0] for note in prediction.notes] == ["DEMONSTRATION", "COMPLEX BY RESIDUE GAP"]
    assert 0 < prediction.iptm < prediction.ptm < 1


def test_a_model_of_complexes_always_reads_four_templates() -> None:
    features, preset = feature_set("AB"), tiny_multimer()
    rows = FeatureRows.of(model_input(features, preset).features)
    assert (rows.residues, rows.alignment, rows.templates) == (16, len(features.multimer.msa), 4)
    before = FeatureRows.at_most(16, preset.sampling, templates=False)
    assert before.size(preset, torch.float32).templates == 4
    assert before.size(tiny(), torch.float32).templates == 0
