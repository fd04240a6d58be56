"""The total of a real forward pass: its terms, its samples, and gradients that training can live with."""

from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from data_pipeline.sampling.sample import SamplingConfig
from data_pipeline.sampling.training import ExampleConfig
from data_pipeline.training_sets.examples import TrainingDataset
from helixfold.execution.nested import with_tensors_changed
from helixfold.execution.whole import Whole
from helixfold.losses import total
from helixfold.losses.config import INTERFACE_TERMS, LossConfig, complexes, finetuning, initial_training
from helixfold.losses.config import TERMS as ALL_TERMS
from helixfold.losses.labels import Labels
from helixfold.losses.total import Losses, total_loss
from helixfold.model.alphafold import AlphaFold
from helixfold.model.batch import Batch
from helixfold.model.config import HeadsConfig
from helixfold.model.outputs import Outputs
from helixfold.model.presets import tiny
from helixfold.training.loader import TrainingBatch, pack
from tests.data_pipeline.training_sets.memory_store import small_store
from tests.losses.complexes import a_complex, labels_of_complex, random_truth
from tests.losses.complexes import outputs_of as complex_outputs
from tests.support.networks import tiny_model, without_templates

TERMS = tuple(name for name in ALL_TERMS if name not in INTERFACE_TERMS)
CROP = 20
CPU = torch.device("cpu")


@cache
def training_batch(examples: int = 2, residues: int = CROP) -> TrainingBatch:
    """Examples of random chains, the shorter ones padded."""
    config = ExampleConfig(
        crop_size=residues,
        unclamped_fraction=0.5,
        sampling=SamplingConfig(max_msa_clusters=4, max_extra_msa=6, max_templates=2),
    )
    dataset = TrainingDataset(store=small_store(), config=config, seed=3, batch_size=examples)
    return pack(dataset.draw(0), config.sizes()).on(CPU)


def outputs_of(model: AlphaFold, batch: Batch, dtype: torch.dtype = torch.float32) -> Outputs:
    return model(Whole(), [batch], dtype=dtype)


@cache
def some_outputs() -> Outputs:
    """Of a network with random weights, without gradients."""
    with torch.no_grad():
        return outputs_of(tiny_model(), training_batch().recycling_inputs[-1])


def losses_of(config: LossConfig, **labels: Tensor) -> Losses:
    """Of `some_outputs`, with these labels instead of the examples' own."""
    batch = training_batch()
    return total_loss(some_outputs(), batch.recycling_inputs[-1], replace(batch.labels, **labels), config)


def taken(whole: Any, sample: int, **sizes: int) -> Any:
    """One sample of a batch or of labels, cut to as many residues and rows as it has."""
    axes = {"r": "residues", "s": "rows"}
    cut = {}
    for field in fields(whole):
        value = getattr(whole, field.name)
        if value is None:
            continue
        value = value[sample : sample + 1]
        for dim, axis in enumerate(field.type.dim_str.split()[:3]):
            if axes.get(axis) in sizes:
                value = value.narrow(dim, 0, sizes[axes[axis]])
        cut[field.name] = value
    return replace(whole, **cut)


def shortened(batch: TrainingBatch, sample: int) -> tuple[Batch, Labels]:
    last = batch.recycling_inputs[-1]
    residues = int(last.seq_mask[sample].sum())
    return taken(last, sample, residues=residues), taken(batch.labels, sample, residues=residues)


def gradients(model: AlphaFold) -> dict[str, Tensor]:
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def test_the_total_is_the_weighted_sum_times_the_root_of_the_length() -> None:
    weights = replace(finetuning(), smooth_lddt=0.2)
    losses = losses_of(weights)
    terms = losses.terms()
    weighed = [name for name in TERMS if getattr(weights, name) > 0]
    assert len(weighed) >= 11
    assert tuple(terms) == (*weighed, "weighted", "total")
    assert all(value.shape == (2,) and (value > 0).all() for value in terms.values())
    weighted = sum(getattr(weights, name) * terms[name] for name in weighed)
    torch.testing.assert_close(losses.weighted, weighted)
    lengths = training_batch().recycling_inputs[-1].seq_mask.sum(-1)
    torch.testing.assert_close(losses.total, losses.weighted * lengths**0.5)


def test_complexes_have_terms_between_chains() -> None:
    batch = a_complex("ABA", 18)
    config = replace(complexes(finetuning()), smooth_lddt=0.2)
    labels = labels_of_complex(batch, *random_truth(batch))
    terms = total_loss(complex_outputs(batch), batch, labels, config).terms()
    weighed = [name for name in ALL_TERMS if getattr(config, name) > 0]
    assert len(weighed) >= 13
    assert tuple(terms) == (*weighed, "weighted", "total")
    assert all(value > 0 for value in terms.values())
    weighted = sum(getattr(config, name) * terms[name] for name in weighed)
    torch.testing.assert_close(terms["weighted"], weighted)
    with pytest.raises(TypeError, match="MultimerBatch"):
        losses_of(config)


def test_terms_for_logs_hold_no_graph() -> None:
    batch = training_batch()
    losses = total_loss(
        outputs_of(tiny_model(), batch.recycling_inputs[-1]), batch.recycling_inputs[-1], batch.labels, finetuning()
    )
    assert losses.total.requires_grad
    assert not any(value.requires_grad for value in losses.terms().values())


def test_a_term_of_weight_0_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("violation_loss", "smooth_lddt_loss", "experimentally_resolved_loss", "aligned_error_loss"):
        monkeypatch.setattr(total, name, None)
    batch, model = training_batch(), tiny_model()
    losses = total_loss(
        outputs_of(model, batch.recycling_inputs[-1]), batch.recycling_inputs[-1], batch.labels, initial_training()
    )
    assert tuple(losses.unweighted) == TERMS[:7]
    losses.total.sum().backward()
    without = {name.split(".")[1] for name in dict(model.named_parameters()).keys() - gradients(model).keys()}
    assert without == {"experimentally_resolved", "aligned_error"}


@pytest.mark.parametrize("name", TERMS)
def test_each_term_is_weighted_by_its_own_weight(name: str) -> None:
    losses = losses_of(LossConfig(**dict.fromkeys(TERMS, 0.0) | {name: 3.0}))
    torch.testing.assert_close(losses.weighted, 3 * losses.unweighted[name])


def test_a_sample_alone_and_unpadded_has_the_same_losses() -> None:
    batch, model = training_batch(4, 45), tiny_model()
    last = batch.recycling_inputs[-1]
    assert len(set(last.seq_mask.sum(-1).tolist())) > 2
    assert len(set(batch.labels.use_clamped_fape.tolist())) == 2
    with torch.no_grad():
        together = total_loss(outputs_of(model, last), last, batch.labels, finetuning())
        for sample in range(4):
            one, labels = shortened(batch, sample)
            alone = total_loss(outputs_of(model, one), one, labels, finetuning())
            found = {name: values[sample] for name, values in together.terms().items()}
            expected = {name: values[0] for name, values in alone.terms().items()}
            torch.testing.assert_close(found, expected, rtol=2e-4, atol=1e-6)


def test_what_stands_in_padding_does_not_matter() -> None:
    """Outputs and labels of padding, whatever they are, change no loss."""
    batch, model = training_batch(), tiny_model()
    sample, labels = shortened(batch, 0)
    with torch.no_grad():
        outputs = outputs_of(model, sample)
        expected = total_loss(outputs, sample, labels, finetuning())
        longer, longer_labels, garbage = with_garbage(sample, labels, outputs, more=3)
        found = total_loss(garbage, longer, longer_labels, finetuning())
    torch.testing.assert_close(found.terms(), expected.terms())


def with_garbage(sample: Batch, labels: Labels, outputs: Outputs, *, more: int) -> tuple[Batch, Labels, Outputs]:
    """As many more residues: labels are 0 there, as the loader pads, and what the network says is random."""

    def longer(part: Any, *, zeros: bool) -> Any:
        values = {}
        for field in fields(part):
            value = getattr(part, field.name)
            if isinstance(value, Tensor):
                for dim, axis in enumerate(field.type.dim_str.split()):
                    if axis == "r":
                        shape = [*value.shape[:dim], more, *value.shape[dim + 1 :]]
                        random = 10 * torch.randn(shape) if value.is_floating_point() else torch.zeros(shape)
                        value = torch.cat([value, (0 * random if zeros else random).to(value.dtype)], dim)
            values[field.name] = value
        return replace(part, **values)

    structure = longer(outputs.structure, zeros=False)
    structure.mask[:, -more:] = 0
    structure.atom14_mask[:, -more:] = 0
    logits = longer(replace(outputs.logits, aligned_error=None), zeros=False)
    assert outputs.logits.aligned_error is not None
    r = outputs.logits.aligned_error.shape[1]
    errors = 10 * torch.randn(1, r + more, r + more, outputs.logits.aligned_error.shape[-1])
    errors[:, :r, :r] = outputs.logits.aligned_error
    return (
        longer(sample, zeros=True),
        longer(labels, zeros=True),
        replace(outputs, structure=structure, logits=replace(logits, aligned_error=errors)),
    )


def test_a_model_without_the_aligned_error_head_has_no_such_loss() -> None:
    batch = training_batch()
    config = replace(tiny().model, heads=HeadsConfig(c_lddt=32))
    losses = total_loss(
        outputs_of(AlphaFold(config), batch.recycling_inputs[-1]),
        batch.recycling_inputs[-1],
        batch.labels,
        finetuning(),
    )
    assert losses.unweighted["aligned_error"].tolist() == [0, 0]
    assert torch.isfinite(losses.total).all()


def nothing_observed(labels: Labels) -> Labels:
    blank = ("all_atom_mask", "atom14_gt_exists", "atom14_alt_gt_exists", "pseudo_beta_mask")
    placed = ("all_atom_positions", "atom14_gt_positions", "atom14_alt_gt_positions", "pseudo_beta")
    return replace(labels, **{name: torch.zeros_like(getattr(labels, name)) for name in (*blank, *placed)})


@pytest.mark.parametrize("config", [initial_training(), finetuning()], ids=["initial", "finetuning"])
@pytest.mark.parametrize("what", ["all", "no atoms", "nothing hidden", "one residue", "no templates", "bfloat16"])
def test_an_untrained_model_gets_finite_gradients(what: str, config: LossConfig) -> None:
    """As training starts: layers of zeros, so that all residues stand at the origin with the same frame."""
    batch = training_batch(residues=1 if what == "one residue" else CROP)
    last, labels = batch.recycling_inputs[-1], batch.labels
    if what == "no atoms":
        labels = nothing_observed(labels)
    if what == "nothing hidden":
        labels = replace(labels, bert_mask=torch.zeros_like(labels.bert_mask))
    if what == "no templates":
        last = without_templates(last)
    model = AlphaFold(tiny().model).train()
    dtype = torch.bfloat16 if what == "bfloat16" else torch.float32
    outputs = outputs_of(model, last, dtype)
    frames = outputs.structure.frames
    assert (frames == frames[:, :, :1]).all()
    losses = total_loss(outputs, last, labels, config)
    assert all(value.dtype == torch.float32 and torch.isfinite(value).all() for value in losses.terms().values())
    losses.total.mean().backward()
    found = gradients(model)
    assert all(torch.isfinite(gradient).all() for gradient in found.values())
    if what not in ("no atoms", "one residue"):
        assert found["structure_module.backbone_update.weight"].abs().max() > 1e-6
    assert found["heads.distogram.linear.weight"].any() == (what != "no atoms")


def test_a_chain_without_observed_atoms_is_learnt_from_by_its_sequence_alone() -> None:
    batch = training_batch()
    losses = total_loss(some_outputs(), batch.recycling_inputs[-1], nothing_observed(batch.labels), finetuning())
    for name in ("backbone_fape", "sidechain_fape", "torsion", "distogram", "lddt", "aligned_error"):
        assert not losses.unweighted[name].any(), name
    assert (losses.unweighted["masked_msa"] > 0).all()


def test_the_backbones_error_is_clamped_in_the_samples_that_ask_for_it_and_the_side_chains_in_all() -> None:
    losses = losses_of(LossConfig(fape_clamp=1.0), use_clamped_fape=torch.tensor([1.0, 0.0]))
    assert (losses.unweighted["backbone_fape"] <= 0.1).tolist() == [True, False]
    assert (losses.unweighted["sidechain_fape"] <= 0.1).all()


def test_only_the_samples_that_are_sharp_teach_confidence() -> None:
    losses = losses_of(finetuning(), resolution=torch.tensor([0.0, 2.0]))
    for name in ("lddt", "experimentally_resolved", "aligned_error"):
        assert (losses.unweighted[name] > 0).tolist() == [False, True]


def test_outputs_that_are_no_numbers_give_a_loss_that_is_none() -> None:
    """The trainer then leaves the step out; an index out of range would stop it."""
    batch, outputs = training_batch(), some_outputs()
    structure, logits = outputs.structure, outputs.logits
    broken = {
        "structure": {
            name: torch.full_like(getattr(structure, name), torch.nan)
            for name in ("frames", "rigid_groups", "atom14", "torsions", "unnormalized_torsions", "positions")
        },
        "logits": {name: torch.full_like(getattr(logits, name), torch.nan) for name in ("lddt", "distogram")},
    }
    for part, values in broken.items():
        spoilt = replace(outputs, **{part: replace(getattr(outputs, part), **values)})
        losses = total_loss(spoilt, batch.recycling_inputs[-1], batch.labels, finetuning())
        assert not torch.isfinite(losses.total).any()


def test_a_few_steps_downhill_lower_the_loss() -> None:
    batch, model = training_batch(), tiny_model()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    totals = []
    for _ in range(2):
        losses = total_loss(
            outputs_of(model, batch.recycling_inputs[-1]), batch.recycling_inputs[-1], batch.labels, finetuning()
        )
        optimizer.zero_grad()
        losses.total.mean().backward()
        optimizer.step()
        totals.append(losses.total.detach().mean())
    assert totals[-1] < totals[0]


def test_losses_in_float64_are_those_in_float32() -> None:
    batch, outputs = training_batch(), some_outputs()
    config = replace(finetuning(), smooth_lddt=1.0)
    given = outputs, batch.recycling_inputs[-1], batch.labels
    wide = with_tensors_changed(lambda each: each.double() if each.is_floating_point() else each, given)
    found, expected = total_loss(*wide, config), total_loss(*given, config)
    assert found.total.dtype == torch.float64
    torch.testing.assert_close(found.total.float(), expected.total, rtol=1e-4, atol=0)
