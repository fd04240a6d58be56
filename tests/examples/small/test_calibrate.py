"""pLDDT is lowered by what a network overrates itself on homologs of what it learnt from."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from data_pipeline.residues import GAP, RESTYPES_WITH_X
from data_pipeline.training_sets.store import FeatureStore
from helixfold.execution.whole import Whole
from helixfold.model.alphafold import AlphaFold
from helixfold.model.presets import preset
from tests.examples.small.scripts import small_script
from tests.support.networks import random_batch, with_every_parameter_random, without_templates

calibrate = small_script("calibrate")
RNG = np.random.default_rng(0)


def test_a_homolog_has_the_rows_residues_and_the_chains_where_it_has_a_gap(store: Path) -> None:
    features, _ = FeatureStore.open(store / "store").load("hairpin_long_A")
    own = features.msa[0]
    near, far = own.copy(), (own + 1) % 20  # no residue of the chain in the second
    near[: len(own) // 2] = (own[: len(own) // 2] + 1) % 20
    near[0] = GAP
    rows = np.stack([own, far, near])
    aligned = replace(features, msa=rows, deletion_matrix=np.arange(rows.size).reshape(rows.shape))
    found = calibrate.homolog(aligned, RNG)
    assert found.msa[0].tolist() == [own[0], *near[1:]]
    assert found.aatype.tolist() == found.msa[0].tolist()
    assert found.sequence == "".join(RESTYPES_WITH_X[each] for each in found.msa[0])
    assert not found.deletion_matrix[0].any()
    # The row that became the chain is no row of its alignment any more; the chain's own is.
    assert found.msa[1:].tolist() == [own.tolist(), far.tolist()]
    assert found.deletion_matrix[1:].tolist() == aligned.deletion_matrix[:2].tolist()
    assert calibrate.homolog(replace(aligned, msa=rows[:2], deletion_matrix=aligned.deletion_matrix[:2]), RNG) is None


def too_sure(way: str, lddt: float) -> object:
    """Twenty residues of which a network says more than is so, by more or less."""
    logits = RNG.normal(size=(20, 50)) + 6 * calibrate.bin_centres(50)
    weights = np.exp(logits)
    return calibrate.Folded(way, weights / weights.sum(1, keepdims=True), np.full(20, lddt))


def test_the_slope_takes_the_excess_away_and_is_that_of_the_changed_map() -> None:
    some = [too_sure(calibrate.ALIGNMENT, 0.6), too_sure(calibrate.TEMPLATE, 0.62), too_sure(calibrate.ALONE, 0.58)]
    before = calibrate.excess(some)
    assert min(before.values()) > 0.1
    slope = calibrate.fitted_slope(some)
    after = calibrate.excess(some, slope)
    assert max(abs(after[calibrate.ALIGNMENT]), abs(after[calibrate.ALONE])) < 0.03
    # The same probabilities come from the changed map.
    x = torch.randn(20, 8, dtype=torch.float64)
    names = [f"{calibrate.LAST_MAP}.{name}" for name in ("weight", "bias")]
    state = {names[0]: torch.randn(50, 8, dtype=torch.float64), names[1]: torch.randn(50, dtype=torch.float64)}
    plain, changed = (
        (x @ given[names[0]].T + given[names[1]]).softmax(-1).numpy()
        for given in ({**state, "other": x}, calibrate.sloped_map({**state, "other": x}, slope))
    )
    expected = changed @ calibrate.bin_centres(50)
    assert calibrate.sloped(plain, slope) == pytest.approx(expected)
    assert np.abs(expected - plain @ calibrate.bin_centres(50)).max() > 0.01


def test_residues_of_a_template_get_the_slope_back() -> None:
    batch, slope, model = random_batch(residues=6), 3.0, preset("small").model
    assert model.template is not None
    plain = replace(model, template=replace(model.template, plddt_slope=0.0))
    state = with_every_parameter_random(plain, seed=1).state_dict()
    networks = [AlphaFold(plain), AlphaFold(calibrate.sloped_config(plain, slope))]
    networks[0].load_state_dict(state)
    networks[1].load_state_dict(calibrate.sloped_map(state, slope))
    with torch.no_grad():
        with_template = [each.eval()(Whole(), [batch]).logits.lddt.softmax(-1) for each in networks]
        alone = [each(Whole(), [without_templates(batch)]).logits.lddt.softmax(-1) for each in networks]
    torch.testing.assert_close(*with_template)
    expected = calibrate.sloped(alone[0][0].double().numpy(), slope)
    assert alone[1][0].double().numpy() @ calibrate.bin_centres(50) == pytest.approx(expected, abs=1e-5)
    assert np.abs((alone[1] - alone[0]).numpy()).max() > 0.001
