"""Templates speak where they have atoms, and nowhere else."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from data_pipeline.residues import ATOM_ORDER
from helixfold.execution.whole import Whole
from helixfold.model.batch import Batch, sampled_fields
from helixfold.model.config import TemplateConfig
from helixfold.model.layers import LayerNorm
from helixfold.model.templates import TemplateEmbedder, TemplatePointwiseAttention, template_pair_features
from helixfold.ops.device_properties import DEVICE_MODELS, simulated_device
from tests.support.networks import random_batch

CONFIG = TemplateConfig(blocks=1, c_t=16, c_triangle=8, attention_channels=16)
C_M, C_Z, R, T = 12, 8, 9, 3
# Where each feature stands among the 88 channels.
DISTANCES, BETA_MASK, TYPE_J, TYPE_I, UNIT_VECTOR, BACKBONE = (
    slice(0, 39),
    39,
    slice(40, 62),
    slice(62, 84),
    slice(84, 87),
    87,
)


def random_embedder() -> TemplateEmbedder:
    embedder = TemplateEmbedder(CONFIG, C_M, C_Z)
    for parameter in embedder.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return embedder.eval()


def without_atom(batch: Batch, name: str, residue: int) -> Batch:
    masks = batch.template_all_atom_masks.clone()
    masks[:, :, residue, ATOM_ORDER[name]] = 0
    return replace(batch, template_all_atom_masks=masks)


def test_pair_features_are_laid_out_as_deepminds() -> None:
    batch = random_batch(residues=R, templates=T)
    found = template_pair_features(batch, slice(1, 2))[0]
    types = batch.template_aatype[0, 1]
    assert found.shape == (R, R, 88)
    assert found[2, 5, DISTANCES].sum() <= 1
    assert (found[..., BETA_MASK] == 1).all()
    assert found[2, 5, TYPE_J].argmax() == types[5]
    assert found[2, 5, TYPE_I].argmax() == types[2]
    assert (found[..., UNIT_VECTOR] == 0).all()
    assert (found[..., BACKBONE] == 1).all()
    distance = (batch.template_pseudo_beta[0, 1, 2] - batch.template_pseudo_beta[0, 1, 5]).norm()
    expected = int((distance - 3.25) / 1.25) if distance > 3.25 else None
    assert found[2, 5, DISTANCES].nonzero().flatten().tolist() == ([] if expected is None else [expected])


@pytest.mark.parametrize("atom", ["N", "CA", "C"])
def test_a_residue_without_backbone_says_nothing(atom: str) -> None:
    found = template_pair_features(without_atom(random_batch(residues=R), atom, 4), slice(1))[0]
    said = (found != 0).any(-1)
    assert not said[4].any()
    assert not said[:, 4].any()
    assert said.sum() == (R - 1) ** 2


def test_other_missing_atoms_hide_nothing() -> None:
    batch = random_batch(residues=R)
    assert (
        template_pair_features(without_atom(batch, "CG", 4), slice(2)) == template_pair_features(batch, slice(2))
    ).all()


def test_a_row_of_the_msa_counts_where_psi_is_defined() -> None:
    batch = without_atom(random_batch(residues=R, templates=T), "O", 4)
    rows, mask = random_embedder().msa_rows(batch, torch.float32)
    assert rows.shape == (1, T, R, C_M)
    assert mask[0].tolist() == [[0.0 if residue == 4 else 1.0 for residue in range(R)]] * T


def test_edges_attend_over_real_templates_only() -> None:
    attention, norm = TemplatePointwiseAttention(CONFIG, C_Z), LayerNorm(CONFIG.c_t)
    for parameter in (*attention.parameters(), *norm.parameters()):
        torch.nn.init.normal_(parameter, std=0.5)
    pair, templates = torch.randn(1, R, R, C_Z), torch.randn(T, 1, R, R, CONFIG.c_t)

    def found(*numbers: int, present: tuple[float, ...], given: torch.Tensor = templates) -> torch.Tensor:
        return attention(
            Whole(),
            pair,
            [partial(given.__getitem__, each) for each in numbers],
            norm.affine,
            torch.tensor([present], dtype=torch.float32),
        )

    with torch.no_grad():
        both = found(0, 2, present=(1, 1))
        at_once = attention(Whole(), pair, [lambda: templates[[0, 1, 2], 0]], norm.affine, torch.tensor([[1.0, 0, 1]]))
        torch.testing.assert_close(at_once, both)
        for order, present in (((0, 2, 1), (1, 1, 0)), ((1, 2, 0), (0, 1, 1)), ((2, 1, 0), (1, 0, 1))):
            here = found(*order, present=present)
            torch.testing.assert_close(here, both)
            other = templates.clone()
            other[1] = torch.randn(1, R, R, CONFIG.c_t)
            assert (found(*order, present=present, given=other) == here).all()
        alone = found(0, present=(1,))
        keys, values = (each(norm(templates[[0, 2]])) for each in (attention.key, attention.value))
        by_head = CONFIG.attention_heads, CONFIG.attention_channels // CONFIG.attention_heads
        query, keys, values = (each.unflatten(-1, by_head) for each in (attention.query(pair)[None], keys, values))
        weights = ((query * keys).sum(-1, keepdim=True) * by_head[1] ** -0.5).softmax(0)
    torch.testing.assert_close(alone, pair + attention.out(values[0].flatten(-2)))
    torch.testing.assert_close(both, pair + attention.out((weights * values).sum(0).flatten(-2)))


def test_without_any_template_nothing_is_added() -> None:
    embedder, batch = random_embedder(), random_batch(residues=R, templates=T)
    pair, pair_mask = torch.randn(1, R, R, C_Z), torch.ones(1, R, R)
    hidden = replace(batch, template_mask=torch.zeros(1, T))
    with torch.no_grad():
        assert (embedder(Whole(), hidden, pair, pair_mask) == pair).all()
        assert (embedder(Whole(), batch, pair, pair_mask) != pair).any()


@pytest.mark.parametrize("b", [1, 2])
@pytest.mark.parametrize("together", [2, 3])
def test_templates_computed_together_give_what_they_give_alone(
    together: int, b: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = random_embedder()
    samples = [random_batch(residues=R, templates=T, seed=seed) for seed in range(b)]
    batch = Batch(**{name: torch.cat([getattr(sample, name) for sample in samples]) for name in sampled_fields(Batch)})
    pair, pair_mask = torch.randn(b, R, R, C_Z), torch.ones(b, R, R)
    pair_mask[:, 7:], pair_mask[:, :, 7:] = 0, 0

    def results() -> list[torch.Tensor]:
        changed = embedder(Whole(), batch, pair, pair_mask)
        return [changed, *torch.autograd.grad(changed.square().sum(), list(embedder.pair.parameters()))]

    alone = results()
    monkeypatch.setattr(Whole, "streams_at_once", lambda *_: together)
    for found, expected in zip(results(), alone, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.detach().abs().max()))


def test_templates_are_computed_together_on_a_gpu_in_training() -> None:
    for device_model, together in (("h100", 4), ("cpu", 1)):
        with simulated_device(DEVICE_MODELS[device_model]):
            assert Whole().streams_at_once(4, torch.device("meta")) == together
            with torch.no_grad():
                assert Whole().streams_at_once(4, torch.device("meta")) == 1
