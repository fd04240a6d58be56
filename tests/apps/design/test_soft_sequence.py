"""A soft sequence is read as a sequence where it is certain, and has exact gradients where it is not."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import one_hot

from data_pipeline.features.complexes.complex_input import AnyTarget, ComplexInput
from data_pipeline.features.complexes.pipeline import target_features
from data_pipeline.features.complexes.target import ComplexTarget
from data_pipeline.pipeline import Target
from helixfold.apps.design.soft_sequence import fold_sequence, with_exact_gradients, with_sequence
from helixfold.execution.nested import with_tensors_changed
from helixfold.execution.recompute import Choice, RecomputeConfig, recompute
from helixfold.execution.slabs import Slabs
from helixfold.execution.whole import Whole
from helixfold.folding.model_input import batch_of, draw, model_input
from helixfold.model.alphafold import AlphaFold
from helixfold.model.batch import Batch
from helixfold.model.outputs import Outputs
from helixfold.model.presets import Preset, tiny, tiny_multimer
from helixfold.ops.dispatch import forced
from tests.support.networks import (
    random_batch,
    random_complex,
    relative_error,
    tiny_config,
    tiny_multimer_config,
    with_every_parameter_random,
)

pytestmark = pytest.mark.usefixtures("operators_on_small_tensors")

R, RECYCLES, TEMPLATES = 9, 2, (1,)


@pytest.fixture(scope="module", params=["monomer", "multimer"])
def given(request: pytest.FixtureRequest) -> tuple[AlphaFold, Batch, torch.Tensor]:
    """A network without gradients of its own, the features of a target with two templates, and a soft sequence."""
    is_multimer = request.param == "multimer"
    config = tiny_multimer_config() if is_multimer else tiny_config()
    batch: Batch = random_complex("AB", residues=R) if is_multimer else random_batch(residues=R)
    # The first residue's pre-omega torsion, which AlphaFold does not mask, is 0 and no direction of rounding errors.
    atoms = batch.template_all_atom_positions.clone()
    atoms[:, :, 0, 0], atoms[:, :, 0, 1] = torch.tensor([4.0, 0.0, 0.0]), torch.tensor([4.0, 1.5, 0.0])
    batch = replace(batch, template_all_atom_positions=atoms)
    model = with_every_parameter_random(config, seed=5).eval().requires_grad_(False)
    with_exact_gradients(model)
    generator = torch.Generator().manual_seed(3)
    sequence = torch.randn(1, R, 20, generator=generator).softmax(-1)
    return model, batch, sequence


def value_of(outputs: Outputs) -> torch.Tensor:
    """A number made of all that losses read, and of the atoms."""
    parts = [outputs.logits.lddt, outputs.logits.distogram, outputs.structure.positions / 10]
    if outputs.logits.aligned_error is not None:
        parts.append(outputs.logits.aligned_error)
    weights = torch.Generator().manual_seed(1)
    return torch.stack(
        [(part * torch.randn(part.shape, generator=weights, dtype=torch.float32).to(part)).mean() for part in parts]
    ).sum()


def value_and_gradient(
    model: AlphaFold,
    batch: Batch,
    sequence: torch.Tensor,
    dtype: torch.dtype = torch.float32,
    *,
    through: bool = True,
    recycles: int = RECYCLES,
) -> tuple[torch.Tensor, torch.Tensor]:
    read = sequence.clone().requires_grad_()
    changed = with_sequence(batch, read, templates=TEMPLATES)
    value = value_of(
        fold_sequence(model, Whole(), changed, num_recycles=recycles, dtype=dtype, through_recycling=through)
    )
    value.backward()
    assert read.grad is not None
    return value.detach(), read.grad


def in_float64(model: AlphaFold) -> AlphaFold:
    wide = AlphaFold(model.config).eval().requires_grad_(False).double()
    with_exact_gradients(wide)
    wide.load_state_dict({name: value.double() for name, value in model.state_dict().items()})
    return wide


@pytest.mark.parametrize(
    ("preset", "target"),
    [
        (tiny(), Target(name="a", sequence="MKTAYIAKQ")),
        (tiny_multimer(), ComplexInput(target=ComplexTarget.of("b", ["MKTAY", "GSHM"]))),
    ],
    ids=["monomer", "multimer"],
)
def test_a_certain_sequence_is_read_as_the_target_itself(preset: Preset, target: AnyTarget) -> None:
    preset = replace(preset, sampling=replace(preset.sampling, masked_msa_fraction=0.0))
    expected = batch_of([draw(model_input(target_features(target), preset), preset, [0])], preset)
    other = replace(
        expected,
        aatype=torch.zeros_like(expected.aatype),
        target_feat=torch.zeros_like(expected.target_feat),
        msa_feat=torch.zeros_like(expected.msa_feat),
    )
    found = with_sequence(other, one_hot(expected.aatype, 20).float())
    # Samples add a small number to counts before they divide by them.
    torch.testing.assert_close(found.msa_feat, expected.msa_feat, rtol=0, atol=1e-5)
    for name in ("aatype", "target_feat"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name


@pytest.mark.integration
def test_gradients_equal_difference_quotients(given: tuple[AlphaFold, Batch, torch.Tensor]) -> None:
    model, batch, sequence = given
    wide, step = in_float64(model), 1e-7

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.double() if tensor.is_floating_point() else tensor

    exact = with_tensors_changed(cast, batch)
    with forced("reference"):
        _, gradient = value_and_gradient(wide, exact, sequence.double(), torch.float64)
        for seed in range(2):
            direction = torch.randn(sequence.shape, generator=torch.Generator().manual_seed(seed)).double()
            with torch.no_grad():
                ends = [
                    value_of(
                        fold_sequence(
                            wide,
                            Whole(),
                            with_sequence(exact, sequence.double() + sign * step * direction, templates=TEMPLATES),
                            num_recycles=RECYCLES,
                            dtype=torch.float64,
                        )
                    )
                    for sign in (1, -1)
                ]
            quotient = (ends[0] - ends[1]) / (2 * step)
            assert float((gradient * direction).sum()) == pytest.approx(float(quotient), rel=1e-5, abs=1e-8)
    # Rounding may put recycled distances into other bins.
    with forced("reference"):
        _, once = value_and_gradient(wide, exact, sequence.double(), torch.float64, recycles=0)
    assert relative_error(value_and_gradient(model, batch, sequence, recycles=0)[1], once) < 1e-4


@pytest.mark.integration
def test_each_way_to_the_network_has_its_part_of_the_gradient(given: tuple[AlphaFold, Batch, torch.Tensor]) -> None:
    model, batch, sequence = given
    _, whole = value_and_gradient(model, batch, sequence)
    changes: list[Callable[[Batch], Batch]] = [
        lambda read: replace(read, target_feat=read.target_feat.detach()),
        lambda read: replace(read, msa_feat=read.msa_feat.detach()),
        lambda read: replace(read, template_types=None),
    ]
    for change in changes:
        read = sequence.clone().requires_grad_()
        outputs = fold_sequence(
            model, Whole(), change(with_sequence(batch, read, templates=TEMPLATES)), num_recycles=RECYCLES
        )
        value_of(outputs).backward()
        assert read.grad is not None
        assert relative_error(read.grad, whole) > 1e-3
    _, last = value_and_gradient(model, batch, sequence, through=False)
    assert relative_error(last, whole) > 1e-3


@pytest.mark.integration
def test_recycling_without_gradients_gives_the_same_outputs(given: tuple[AlphaFold, Batch, torch.Tensor]) -> None:
    model, batch, sequence = given
    exact = [value_and_gradient(model, batch, sequence, recycles=recycles)[0] for recycles in range(3)]
    found = [value_and_gradient(model, batch, sequence, recycles=recycles, through=False)[0] for recycles in range(3)]
    torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-6)
    assert len(set(map(float, found))) == 3


@pytest.mark.integration
@pytest.mark.parametrize("keep", ["inputs", pytest.param("block", marks=pytest.mark.long)])
def test_gradients_do_not_depend_on_what_is_recomputed(
    keep: Choice, given: tuple[AlphaFold, Batch, torch.Tensor]
) -> None:
    model, batch, sequence = given
    expected = value_and_gradient(model, batch, sequence)
    other = AlphaFold(model.config).eval().requires_grad_(False)
    other.load_state_dict(model.state_dict())
    with_exact_gradients(other)
    recompute(other, RecomputeConfig.everywhere(keep))
    found = value_and_gradient(other, batch, sequence)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


@pytest.mark.integration
def test_bfloat16_is_no_worse_than_twice_plain_pytorch(given: tuple[AlphaFold, Batch, torch.Tensor]) -> None:
    model, batch, sequence = given
    _, exact = value_and_gradient(model, batch, sequence, recycles=0)
    _, found = value_and_gradient(model, batch, sequence, torch.bfloat16, recycles=0)
    with forced("reference"):
        _, plain = value_and_gradient(model, batch, sequence, torch.bfloat16, recycles=0)
    assert relative_error(found, exact) <= 2 * relative_error(plain, exact)


@pytest.mark.integration
def test_slabs_read_soft_templates_too(given: tuple[AlphaFold, Batch, torch.Tensor]) -> None:
    model, batch, sequence = given
    read = with_sequence(batch, sequence, templates=TEMPLATES)
    with torch.no_grad():
        expected, found = (
            fold_sequence(model, run, read, num_recycles=1, through_recycling=False) for run in (Whole(), Slabs(rows=4))
        )
    assert relative_error(found.logits.lddt, expected.logits.lddt) < 1e-4
