"""Designs follow from their seeds, whatever interrupts them, and keep what they are told to keep."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from data_pipeline.ideal_betas import with_ideal_betas
from data_pipeline.io.errors import InputError
from data_pipeline.parse.structures import read_structure
from data_pipeline.residues import RESTYPES
from helixfold.apps.design import losses, task
from helixfold.apps.design.designer import Designer, design
from helixfold.apps.design.losses import DesignPass, WeightedLoss
from helixfold.apps.design.memory import workload
from helixfold.apps.design.options import DesignOptions, Optimizer, SequenceMixture
from helixfold.apps.design.sequence import designed_sequence
from helixfold.apps.design.task import DesignTask
from helixfold.apps.design.trajectory import Trajectory, begun, generator
from helixfold.execution.recompute import RecomputeConfig
from helixfold.model.presets import tiny, tiny_multimer
from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.weights.find import ReadyModel
from tests.support.networks import tiny_config, with_every_parameter_random

pytestmark = pytest.mark.usefixtures("operators_on_small_tensors")

HAIRPIN = Path(__file__).parents[3] / "examples" / "structures" / "hairpin_short.pdb"
(CHAIN,) = read_structure(HAIRPIN).chains
LETTERS = "".join(RESTYPES)
SHORT = DesignOptions(logits_steps=2, soft_steps=1, hard_steps=2)


SHALLOW = tiny_config().with_settings(["evoformer.blocks=1", "structure.layers=2"])


def ready(seed: int = 0) -> ReadyModel:
    network = with_every_parameter_random(SHALLOW, seed)
    return ReadyModel(preset=replace(tiny(), model=SHALLOW), network=network, digest=str(seed))


def own_loss(name: str = "A") -> WeightedLoss:
    """A loss that is least for one amino acid everywhere, whatever the network says."""
    kind = LETTERS.index(name)
    return WeightedLoss(loss=lambda made: -made.sequence.mixed[..., kind].mean(-1), weight=1.0)


def of_one_amino_acid(given: DesignTask, name: str = "A") -> DesignTask:
    return replace(given, losses={"own": own_loss(name)})


def test_what_is_read_goes_from_numbers_over_probabilities_to_amino_acids() -> None:
    numbers = torch.randn(1, 4, 20, generator=torch.Generator().manual_seed(0)).requires_grad_()
    bias = torch.zeros(1, 4, 20)
    mixture = SequenceMixture(soft=0.0, hard=0.0, temperature=1.0)
    assert torch.equal(designed_sequence(numbers, bias, mixture).mixed, numbers)
    soft = designed_sequence(numbers, bias, replace(mixture, soft=1.0)).mixed
    torch.testing.assert_close(soft, (2 * numbers).softmax(-1))
    cold = designed_sequence(numbers, bias, replace(mixture, soft=1.0, temperature=0.2)).mixed
    torch.testing.assert_close(cold, (10 * numbers).softmax(-1))
    hard = designed_sequence(numbers, bias, replace(mixture, soft=1.0, hard=1.0)).mixed
    assert sorted(hard[0, 0].tolist())[-2:] == pytest.approx([0, 1], abs=1e-6)
    weights = torch.randn(1, 4, 20, generator=torch.Generator().manual_seed(1))
    gradients = [torch.autograd.grad((each * weights).sum(), [numbers], retain_graph=True)[0] for each in (hard, soft)]
    torch.testing.assert_close(*gradients)


def test_steps_go_through_three_stages() -> None:
    steps = list(DesignOptions(logits_steps=4, soft_steps=2, hard_steps=1).schedule())
    assert [step.stage for step in steps] == ["logits"] * 4 + ["soft"] * 2 + ["hard"]
    assert [step.mixture.soft for step in steps] == [0.25, 0.5, 0.75, 1, 1, 1, 1]
    assert [step.mixture.temperature for step in steps] == pytest.approx([1, 1, 1, 1, 0.01 + 0.99 / 4, 0.01, 0.01])
    assert [step.learning_rate for step in steps[4:]] == pytest.approx([0.1 * (0.01 + 0.99 / 4), 0.001, 0.001])
    assert [step.dropout for step in steps] == [True] * 6 + [False]


@pytest.mark.integration
@pytest.mark.parametrize(("optimizer", "excluded"), [("sgd", ""), ("adam", "A")])
def test_a_loss_is_made_small(optimizer: Optimizer, excluded: str) -> None:
    options = replace(SHORT, logits_steps=4, optimizer=optimizer, learning_rate=3.0, excluded=excluded)
    (found,) = design(of_one_amino_acid(task.hallucination(5)), [ready()], options)
    if excluded:
        assert excluded not in found.sequences["A"]
    else:
        assert found.sequences == {"A": "AAAAA"}
        assert found.loss == pytest.approx(-1)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_steps_are_those_of_pytorchs_optimizers(optimizer: Optimizer) -> None:
    options = DesignOptions(optimizer=optimizer, normalize_gradients=False)
    found = begun(task.hallucination(4), options, 0, 4)
    numbers = torch.from_numpy(found.numbers.copy()).requires_grad_()
    theirs = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer]([numbers], lr=0.3)
    for step in range(3):
        gradient = np.random.default_rng(step).normal(size=(4, 20))
        numbers.grad = torch.from_numpy(gradient.copy())
        theirs.step()
        found = found.moved(gradient, 0.3, options)
    np.testing.assert_allclose(found.numbers, numbers.detach().numpy(), rtol=1e-12)


def test_gradients_have_the_length_of_the_root_of_the_residues_that_have_any() -> None:
    found = begun(task.hallucination(5), DesignOptions(), 0, 5)
    gradient = np.random.default_rng(0).normal(size=(5, 20))
    gradient[3] = 0
    for scale in (1.0, 1e3):
        moved = found.moved(scale * gradient, 0.1, DesignOptions()).numbers - found.numbers
        assert np.linalg.norm(moved) == pytest.approx(0.1 * 4**0.5)
        np.testing.assert_allclose(moved / moved[0, 0], gradient / gradient[0, 0])


@pytest.mark.parametrize("fails", [False, True])
def test_a_step_with_dropout_leaves_the_network_and_pytorchs_random_numbers_as_they_were(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ready()
    designer = Designer(of_one_amino_acid(task.hallucination(5)), [model], SHORT)
    modes: list[bool] = []

    def value(weights: object, made: DesignPass) -> tuple[torch.Tensor, dict[str, float]]:
        modes.extend(module.training for module in model.network.modules())
        if fails:
            raise MemoryError
        return -made.sequence.mixed.sum(), {}

    monkeypatch.setattr(losses, "total", value)
    state = torch.get_rng_state()
    with pytest.raises(MemoryError) if fails else nullcontext():
        designer.advance(designer.begin(0), 0)
    assert modes
    assert all(modes)
    assert not any(module.training for module in model.network.modules())
    assert torch.equal(torch.get_rng_state(), state)


def test_the_best_of_the_hard_steps_is_the_design() -> None:
    losses = iter([1.0, 9.0, 3.0, 4.0])
    given = task.hallucination(5)
    wanted = {"own": WeightedLoss(loss=lambda made: made.sequence.mixed.sum((-1, -2)) * 0 + next(losses), weight=1.0)}
    options = replace(SHORT, logits_steps=1, soft_steps=0, hard_steps=3)
    designer = Designer(replace(given, losses=wanted), [ready()], options)
    trajectory, letters = designer.begin(0), []
    while not designer.is_finished(trajectory):
        # Each step has other numbers.
        other = generator(given, options, 7, trajectory.step).normal(size=(5, 20))
        trajectory = designer.advance(replace(trajectory, numbers=other), 0)
        letters.append("".join(LETTERS[kind] for kind in other.argmax(-1)))
    # The first step, whose sequence was soft, does not count, though its loss is the least.
    assert (trajectory.best_loss, trajectory.best_sequence) == (3.0, letters[2])


@pytest.mark.integration
def test_every_step_drops_out_other_parts_and_hard_ones_none() -> None:
    given, options = task.hallucination(6), replace(SHORT, logits_steps=0, soft_steps=2, hard_steps=2)
    designer = Designer(given, [ready()], options)
    begin = designer.begin(0)
    found = [designer.advance(replace(begin, step=step), 0).losses[-1]["loss"] for step in range(options.steps)]
    again = [designer.advance(replace(begin, step=step), 0).losses[-1]["loss"] for step in range(options.steps)]
    assert found == again
    warm = replace(designer._settings[1], mixture=designer._settings[0].mixture)
    designer._settings[1] = warm
    assert designer.advance(replace(begin, step=1), 0).losses[-1]["loss"] != found[0]
    assert found[2] == found[3]


@pytest.mark.integration
def test_restarts_follow_from_their_seeds_alone() -> None:
    given = task.hallucination(6)
    both = {each.number: each for each in design(given, [ready()], replace(SHORT, designs=2))}
    (second,) = design(given, [ready()], replace(SHORT, seed=1))
    assert both[1].sequences == second.sequences
    assert both[1].loss == second.loss
    assert both[0].trajectory.losses != second.trajectory.losses
    assert sorted(both, key=lambda number: both[number].loss) == list(both)
    assert set(second.losses) == {"con", "plddt", "pae", "helix"}
    assert second.plddt.shape == (6,)
    assert second.ptm is not None


@pytest.mark.integration
def test_a_design_goes_on_from_its_file_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    given, models = task.hallucination(6), [ready(), ready(seed=1)]
    options = replace(SHORT, optimizer="adam")
    designer = Designer(given, models, options)
    straight = designer.begin(0)
    while not designer.is_finished(straight):
        straight = designer.advance(straight, 0)
    trajectory = designer.begin(0)
    for _ in range(SHORT.steps):
        again = Designer(given, models, options)
        trajectory = again.advance(trajectory, 0)
        trajectory.save(tmp_path / "state.npz")
        trajectory = Trajectory.load(tmp_path / "state.npz", 6)
    for name in ("numbers", "mean", "square"):
        np.testing.assert_array_equal(getattr(trajectory, name), getattr(straight, name))
    assert (trajectory.losses, trajectory.best_sequence, trajectory.best_loss) == (
        straight.losses,
        straight.best_sequence,
        straight.best_loss,
    )
    with pytest.raises(InputError, match="state of another design"):
        Trajectory.load(tmp_path / "state.npz", 7)
    (tmp_path / "state.npz").write_bytes(b"none")
    with pytest.raises(InputError, match=r"state\.npz"):
        Trajectory.load(tmp_path / "state.npz", 6)


@pytest.mark.integration
def test_gradients_do_not_depend_on_what_is_recomputed() -> None:
    found = [
        Designer(task.hallucination(6), [ready()], SHORT, recomputed=RecomputeConfig.everywhere(keep))
        for keep in ("none", "block")
    ]
    ends = [each.advance(each.begin(0), 0).numbers for each in found]
    np.testing.assert_array_equal(*ends)


@pytest.mark.integration
def test_fixed_residues_stay(tmp_path: Path) -> None:
    length = len(CHAIN.sequence)
    given = task.fixed_backbone(CHAIN, name="hairpin", fixed=[0, length - 1])
    (found,) = design(of_one_amino_acid(given, "W"), [ready()], replace(SHORT, logits_steps=4, learning_rate=3.0))
    assert found.sequences["A"] == f"{CHAIN.sequence[0]}{'W' * (length - 2)}{CHAIN.sequence[-1]}"
    (kept,) = design(
        of_one_amino_acid(task.partial(CHAIN, [2, 3, 5], name="part", length=9, start=4, fix_sequence=True), "W"),
        [ready()],
        replace(SHORT, logits_steps=4, learning_rate=3.0),
    )
    sequence = CHAIN.sequence
    assert kept.sequences["A"] == f"WWWW{sequence[2]}{sequence[3]}W{sequence[5]}W"


def test_a_backbone_that_is_predicted_has_no_loss() -> None:
    given = task.fixed_backbone(CHAIN, name="hairpin")
    first = Designer(given, [ready()], SHORT)
    made = first.finished(first.begin(0), 0)
    # What the network predicts for a sequence is the backbone of another design of this sequence.
    known = replace(CHAIN, atom_positions=made.protein.atom_positions, atom_mask=made.protein.atom_mask)
    there = Designer(task.fixed_backbone(known, name="hairpin"), [ready()], SHORT)
    assert set(made.losses) == {"dgram", "con", "plddt", "pae"}
    assert there.task.chains[0].positions.shape == given.chains[0].positions.shape
    beta = given.chains[0].positions[:, 3]
    native = CHAIN.atom_mask[:, 3] > 0
    # C-beta atoms that the structure lacks are those of an ideal amino acid.
    assert np.linalg.norm(given.chains[0].positions[:, 1] - beta, axis=-1) == pytest.approx(1.53, abs=0.05)
    ideal, _ = with_ideal_betas(CHAIN.atom_positions, CHAIN.atom_mask * (np.arange(37) != 3))
    assert np.abs(ideal - CHAIN.atom_positions)[native, 3].max() < 0.3


@pytest.mark.integration
@pytest.mark.parametrize("preset", [tiny(), tiny_multimer()], ids=lambda preset: preset.name)
def test_a_binder_sees_its_target(preset: object) -> None:
    from helixfold.model.presets import Preset  # noqa: PLC0415
    from helixfold.weights.untrained import untrained_model  # noqa: PLC0415

    assert isinstance(preset, Preset)
    network = untrained_model(preset.model, 0)
    model = ReadyModel(preset=preset, network=network, digest="x")
    given = task.binder([CHAIN], 5, name="bound", hotspots=[("A", 2)])
    designer = Designer(given, [model], SHORT)
    (read,) = designer.inputs
    length = len(CHAIN.sequence)
    assert read.given.chain_ids == ("A", "B")
    assert read.target.sum() == length
    assert read.hotspots[0].nonzero().tolist() == [[2]]
    batch = read.batch
    assert batch.template_mask[0, 0] == 1
    np.testing.assert_allclose(
        batch.template_all_atom_positions[0, 0, :length], given.chains[0].positions * given.chains[0].mask[..., None]
    )
    assert not batch.template_all_atom_masks[0, 0, length:].any()
    assert (batch.template_aatype[0, 0, length:] == 21).all()
    trajectory = designer.advance(designer.begin(0), 0)
    moved = np.abs(trajectory.numbers - designer.begin(0).numbers).max(-1) > 0
    assert moved.tolist() == [False] * length + [True] * 5
    found = designer.finished(trajectory, 0)
    assert found.sequences["A"] == CHAIN.sequence
    assert len(found.sequences["B"]) == 5
    assert found.iptm is not None
    size = workload(given, model.preset, SHORT, DEVICE_MODELS["cpu"]).size
    assert size.residues == length + 5
    assert size.templates == batch.template_mask.shape[1]


def test_impossible_tasks_are_one_sentence() -> None:
    for make, problem in (
        (lambda: task.hallucination(1), "a design has 2 to 2,000 residues, got 1"),
        (lambda: task.partial(CHAIN, [], name="x"), "x: name the residues that are to be kept"),
        (lambda: task.partial(CHAIN, [0, 7], name="x", length=5), "the kept residues span 8, which do not fit into 5"),
        (
            lambda: task.fixed_backbone(CHAIN, name="x", fixed=range(len(CHAIN.sequence))),
            "so nothing is left to design",
        ),
        (lambda: task.hallucination(9).weighted({"beauty": 1.0}), "there is no loss beauty; choose among plddt, pae,"),
        (lambda: DesignOptions(logits_steps=0, soft_steps=0, hard_steps=0), "needs at least one step"),
        (lambda: DesignOptions(excluded="AJ"), "excluded are one-letter codes of amino acids, got 'J'"),
        (lambda: DesignOptions(excluded=LETTERS), "excluded are all amino acids"),
        (lambda: DesignOptions(optimizer="best"), "optimizer must be one of sgd, adam, got 'best'"),  # type: ignore[arg-type]
        (lambda: DesignOptions(dtype="float16"), "dtype must be one of auto, float32, bfloat16"),
        (lambda: Designer(task.hallucination(9), []), "needs at least one model"),
    ):
        with pytest.raises(InputError, match=problem):
            make()
