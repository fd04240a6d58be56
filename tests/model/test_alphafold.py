"""The whole network: its size, its gradients, its precision."""

from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

from data_pipeline.residues import ATOM_ORDER, RESTYPES
from helixfold.execution.slabs import Slabs
from helixfold.execution.whole import Whole
from helixfold.model.alphafold import AlphaFold
from helixfold.model.config import OuterProductPosition
from helixfold.model.outputs import Outputs
from helixfold.ops.dispatch import forced, recorded
from tests.support.networks import (
    random_batch,
    random_complex,
    tiny_config,
    tiny_model,
    tiny_multimer_config,
    with_every_parameter_random,
    without_templates,
)


def floats(outputs: Outputs) -> dict[str, Tensor]:
    """All results of a pass that are computed with parameters, as `representations.pair` or `logits.lddt`."""
    values = {
        f"{part.name}.{field.name}": getattr(getattr(outputs, part.name), field.name)
        for part in fields(outputs)
        for field in fields(getattr(outputs, part.name))
    }
    return {name: value for name, value in values.items() if not name.endswith("mask")}


def root_mean_square(difference: Tensor) -> float:
    return float(difference.double().square().mean().sqrt())


def gradients(outer_product: OuterProductPosition) -> dict[str, float | None]:
    """Largest gradient of every parameter for a loss that reads all outputs of a second pass, dropout included."""
    model, batch = tiny_model(outer_product), random_batch()
    with torch.no_grad():
        previous = model(Whole(), [batch]).recycled()
    outputs = model.train()(Whole(), [batch], previous)
    sum((value * torch.randn_like(value)).sum() for value in floats(outputs).values()).backward()
    return {
        name: None if each.grad is None else float(each.grad.abs().max()) for name, each in model.named_parameters()
    }


@pytest.mark.parametrize("outer_product", ["middle", "first", "end"])
def test_gradients_reach_every_parameter(outer_product: OuterProductPosition) -> None:
    found = gradients(outer_product)
    # With the outer product first nothing reads what the last extra-MSA block makes of its MSA.
    unread = [f"extra_msa_stack.blocks.0.{part}." for part in ("row_attention", "column_attention", "msa_transition")]
    expected = {name for name in found if outer_product == "first" and name.startswith(tuple(unread))}
    assert {name for name, size in found.items() if size is None} == expected
    # These shift all logits of a softmax alike, which changes nothing: their gradients are rounding noise.
    cancelled = ("row_attention.pair_norm.bias", "structure_module.attention.pair_bias.bias")
    for name, size in found.items():
        if size is not None:
            assert (size < 1e-3) == name.endswith(cancelled), f"{name}: {size}"


def test_without_recycling_the_scales_of_its_norms_get_no_gradient() -> None:
    model = tiny_model().train()
    outputs = model(Whole(), [random_batch()])
    sum(value.sum() for value in floats(outputs).values()).backward()
    still = {name for name, each in model.named_parameters() if each.grad is not None and (each.grad == 0).all()}
    # Nothing is nearer than the first bin, and a norm of zeros is zero.
    assert still == {
        "recycling_embedder.norm_msa.weight",
        "recycling_embedder.norm_pair.weight",
        "recycling_embedder.distances.weight",
    }


def test_dropout_makes_training_passes_differ_and_evaluation_passes_equal() -> None:
    model, batch = tiny_model(), random_batch()
    with torch.no_grad():
        first, second = (model.eval()(Whole(), [batch]).representations.pair for _ in range(2))
        third, fourth = (model.train()(Whole(), [batch]).representations.pair for _ in range(2))
    assert (first == second).all()
    assert root_mean_square(third - fourth) > 0.1 * root_mean_square(third)


@pytest.mark.parametrize("run", [Whole(), Slabs(rows=5)], ids=["whole", "slabs"])
@pytest.mark.parametrize("recycled", [False, True], ids=["first", "recycled"])
def test_an_ensemble_is_averaged_over_all_its_draws(recycled: bool, run: Whole | Slabs) -> None:
    model, draws = tiny_model(), [random_batch(seed=seed) for seed in range(3)]
    with torch.no_grad():
        previous = model.fold(Whole(), [random_batch(seed=9)]).recycled() if recycled else None
        again = None if previous is None else replace(previous, pair=previous.pair.clone())
        alone = [model.trunk(Whole(), draw, again, torch.float32) for draw in draws]
        found = model.fold(run, draws, previous).representations
    for name in ("pair", "single", "msa_first_row"):
        mean = torch.stack([getattr(each, name) for each in alone]).mean(0)
        torch.testing.assert_close(getattr(found, name), mean, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.msa, alone[0].msa, rtol=1e-4, atol=1e-4)


def test_recycled_distances_are_of_beta_carbons_and_of_glycines_alpha_carbon() -> None:
    model, batch = tiny_model(), random_batch()
    batch.aatype[0, 4], batch.aatype[0, :4] = RESTYPES.index("G"), RESTYPES.index("A")
    with torch.no_grad():
        previous = model.fold(Whole(), [batch]).recycled()

        def changed_rows(residue: int, atom: str) -> list[int]:
            """Rows of the first pair stream that differ in the first five residues once this atom is elsewhere."""
            positions = 3 * torch.randn_like(previous.positions)
            other = positions.clone()
            other[0, residue, ATOM_ORDER[atom]] += 200
            one, two = (
                model._first_pair(
                    Whole(), batch, replace(previous, pair=previous.pair.clone(), positions=each), torch.float32
                )
                for each in (positions, other)
            )
            return (one != two).any(-1).any(2)[0, :5].nonzero()[:, 0].tolist()

        assert changed_rows(1, "CB") == changed_rows(4, "CA") == [0, 1, 2, 3, 4]
        assert changed_rows(1, "CA") == changed_rows(4, "CB") == []


def test_absent_templates_are_as_masked_ones() -> None:
    model, batch = tiny_model(), random_batch(templates=2)
    absent = without_templates(batch)
    masks = [name for name in batch.__dataclass_fields__ if name.startswith("template_") and "mask" in name]
    masked = replace(batch, **{name: torch.zeros_like(getattr(batch, name)) for name in masks})
    with torch.no_grad():
        present, without, hidden = (floats(model(Whole(), [each])) for each in (batch, absent, masked))
    for name, value in without.items():
        torch.testing.assert_close(hidden[name], value, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(present["logits.distogram"], without["logits.distogram"], atol=1e-2)


def test_a_sample_without_templates_is_alone_beside_one_that_has_some() -> None:
    model, one, other = tiny_model(), random_batch(seed=0), random_batch(seed=1)
    masks = [name for name in other.__dataclass_fields__ if name.startswith("template_") and "mask" in name]
    other = replace(other, **{name: torch.zeros_like(getattr(other, name)) for name in masks})
    pairs = {each.name: [getattr(one, each.name), getattr(other, each.name)] for each in fields(one)}
    joined = {name: torch.cat(pair) for name, pair in pairs.items() if pair != [None, None]}
    with torch.no_grad():
        together = floats(model(Whole(), [replace(one, **joined)]))
        apart = [floats(model(Whole(), [each])) for each in (one, other)]
    for index, alone in enumerate(apart):
        for name in ("representations.msa", "representations.pair", "logits.lddt", "logits.aligned_error"):
            torch.testing.assert_close(together[name][index], alone[name][0], rtol=1e-4, atol=1e-4)


def test_the_msa_that_is_returned_has_no_template_rows() -> None:
    model, batch = tiny_model(), random_batch(rows=5, templates=2)
    with torch.no_grad():
        outputs = model(Whole(), [batch])
    assert outputs.representations.msa.shape[1] == 5
    assert (outputs.representations.msa[:, 0] == outputs.representations.msa_first_row).all()
    assert outputs.logits.masked_msa.shape == (1, 5, 13, 23)


def test_the_trunk_computes_in_the_dtype_asked_for_and_the_rest_in_float32() -> None:
    with torch.no_grad():
        outputs = tiny_model()(Whole(), [random_batch()], None, torch.bfloat16)
    for name, value in floats(outputs).items():
        assert value.dtype == (torch.bfloat16 if name.startswith("representations") else torch.float32), name


@pytest.mark.parametrize("run", [Whole(), Slabs(rows=7)], ids=["whole", "slabs"])
@pytest.mark.parametrize("seed", [0, 1])
def test_bfloat16_is_at_most_twice_as_far_off_as_plain_torch(run: Whole | Slabs, seed: int) -> None:
    model, batch = tiny_model(seed=seed), random_batch(residues=40, rows=12, extra=20, seed=seed)
    with torch.no_grad():
        exact, found = floats(model(Whole(), [batch])), floats(model(run, [batch], None, torch.bfloat16))
        with forced("reference"):
            plain = floats(model(Whole(), [batch], None, torch.bfloat16))
    for name in (each for each in exact if not each.startswith("structure")):
        ours, theirs = (root_mean_square(each[name] - exact[name]) for each in (found, plain))
        assert 0 < ours <= 2 * theirs, name
        assert ours < 0.03 * root_mean_square(exact[name]), name


@pytest.mark.integration
def test_nothing_is_nan_beyond_256_residues_in_bfloat16() -> None:
    config = tiny_config().with_settings(["evoformer.blocks=1", "structure.layers=1"])
    torch.manual_seed(0)
    model = AlphaFold(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    batch = random_batch(residues=280, rows=2, extra=2, templates=1)
    batch.seq_mask[:, 268:] = 0
    batch.msa_mask[:, :, 268:] = 0
    with torch.no_grad():
        outputs = model(Slabs(), [batch], None, torch.bfloat16)
    for name, value in floats(outputs).items():
        assert torch.isfinite(value).all(), name
        # Without a start from a template, no residue has one.
        assert value.float().std() > 0 or name == "structure.from_template", name


def test_a_complex_needs_no_operator_that_a_monomer_does_not() -> None:
    """So that the kernels of operators, which are tested one by one, are all that complexes need on a GPU."""
    models = (
        (tiny_model(), random_batch()),
        (with_every_parameter_random(tiny_multimer_config()), random_complex()),
    )
    needed = []
    for model, batch in models:
        with recorded() as calls:
            model(Whole(), [batch], model(Whole(), [batch]).recycled())
        needed.append({operator.name for operator, _ in calls})
    assert needed[0] == needed[1]
