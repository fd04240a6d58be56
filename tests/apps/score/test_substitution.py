"""Features of a mutant are those of its own sequence, with the alignment of the target below."""

from dataclasses import fields, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from data_pipeline.features.assembly import ComplexFeatures
from data_pipeline.features.complexes.complex_input import ComplexInput
from data_pipeline.features.complexes.feature_set import ComplexFeatureSet, TargetFeatures
from data_pipeline.features.complexes.pipeline import target_features
from data_pipeline.features.complexes.target import ComplexTarget
from data_pipeline.features.schema import Features
from data_pipeline.pipeline import Target
from helixfold.apps.score.mutations import TargetChains, read_mutant
from helixfold.apps.score.scan_run import hidden, marginal, mutated, residue_log_likelihoods
from helixfold.execution.whole import Whole
from helixfold.folding.options import FoldingOptions
from helixfold.model.presets import tiny
from tests.support.complex_targets import feature_set
from tests.support.folding import fold_one
from tests.support.networks import tiny_model

SEQUENCE = "MKTAYIAKQR"


def require_equal(found: Features | ComplexFeatures, expected: Features | ComplexFeatures) -> None:
    for field in fields(expected):
        one, other = getattr(found, field.name), getattr(expected, field.name)
        np.testing.assert_array_equal(one, other, err_msg=field.name)


def test_a_mutant_has_the_features_of_its_own_sequence() -> None:
    target = Target(name="t", sequence=SEQUENCE)
    mutant = read_mutant(TargetChains.of(target), "K2W:R10G")
    features = target_features(target)
    found = mutated(features, mutant)
    expected = target_features(Target(name="t", sequence="MWTAYIAKQG"))
    assert isinstance(found, Features)
    assert isinstance(expected, Features)
    require_equal(found, expected)
    assert isinstance(features, Features)
    assert features.sequence == SEQUENCE  # the target itself is as it was


def test_one_chain_of_a_complex_is_changed() -> None:
    def features(second: str) -> ComplexFeatureSet:
        given = ComplexInput(target=ComplexTarget.of("t", [SEQUENCE, second]))
        found = target_features(given)
        assert isinstance(found, ComplexFeatureSet)
        return found

    chains = TargetChains.of(ComplexInput(target=ComplexTarget.of("t", [SEQUENCE, "GSHM"])))
    found = mutated(features("GSHM"), read_mutant(chains, "B.H3W"))
    assert isinstance(found, ComplexFeatureSet)
    require_equal(found.multimer, features("GSWM").multimer)
    require_equal(found.residue_gap, features("GSWM").residue_gap)


def test_the_rows_of_relatives_stay_as_they_are() -> None:
    features = feature_set("AB")
    chains = TargetChains(target="complex", names=("A", "B"), sequences=features.chain_sequences)
    found = mutated(features, read_mutant(chains, "B.G1W"))
    assert isinstance(found, ComplexFeatureSet)
    assert len(features.multimer.msa) > 2
    for one, other in ((found.multimer, features.multimer), (found.residue_gap, features.residue_gap)):
        changed = np.argwhere(one.msa != other.msa).tolist()
        assert changed == [[0, 8]]


@pytest.mark.integration
@pytest.mark.parametrize("index", [0, 6])
def test_a_hidden_residue_is_told_by_nothing(index: int) -> None:
    other = SEQUENCE[:index] + "W" + SEQUENCE[index + 1 :]

    def likelihoods(features: TargetFeatures) -> np.ndarray:
        preset = tiny()
        preset = replace(preset, sampling=replace(preset.sampling, masked_msa_fraction=0.0))
        options = FoldingOptions(num_recycles=1, representations=("msa_first_row",))
        made = fold_one(tiny_model(), Whole(), features, preset, options)
        return residue_log_likelihoods(tiny_model(), made)

    one, two = (target_features(Target(name="t", sequence=sequence)) for sequence in (SEQUENCE, other))
    np.testing.assert_array_equal(likelihoods(hidden(one, index)), likelihoods(hidden(two, index)))
    assert np.abs(likelihoods(one) - likelihoods(two)).max() > 1e-3
    np.testing.assert_allclose(np.exp(likelihoods(one)).sum(-1), 1, rtol=1e-5)


def test_marginals_of_several_substitutions_are_added_up() -> None:
    chains = TargetChains.of(Target(name="t", sequence="MKX"))
    table = [np.log(np.linspace(1, 20, 20) / 210) for _ in range(2)]
    found = marginal(read_mutant(chains, "M1A:K2R"), table)
    # M is the 13th letter and K the 12th, A the first and R the second.
    assert found == pytest.approx(np.log(1 / 13) + np.log(2 / 12))
    assert marginal(read_mutant(chains, "X3A"), table[:1]) is None


def test_likelihoods_are_of_the_twenty_amino_acids_at_each_position() -> None:
    rng = np.random.default_rng(0)
    model, row = tiny_model(), rng.normal(size=(3, tiny().model.evoformer.c_m)).astype(np.float32)
    with torch.no_grad():
        logits = model.heads.masked_msa(torch.from_numpy(row)).double().numpy()[:, :20]
    expected = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    made = SimpleNamespace(representations={"msa_first_row": row})
    np.testing.assert_allclose(residue_log_likelihoods(model, made), expected, atol=1e-5)  # type: ignore[arg-type]


def test_a_hidden_residue_is_unknown_in_the_sequence_and_masked_in_the_alignment() -> None:
    found = hidden(target_features(Target(name="t", sequence=SEQUENCE)), 2)
    assert isinstance(found, Features)
    assert (found.aatype[2], found.msa[0, 2], found.sequence[2]) == (20, 22, "X")
