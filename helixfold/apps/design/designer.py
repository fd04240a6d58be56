"""Optimise the sequence of a design by the gradients of its losses through one network, or a random one of several.

`ENDED` has the reasons why a design ends early, by the stage after which it ends.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from data_pipeline.features.sequence import aatype_from_sequence
from data_pipeline.io.errors import InputError
from data_pipeline.protein import Protein
from data_pipeline.residues import RESTYPES
from helixfold.analysis.secondary_structure import STRAND, secondary_structure
from helixfold.apps.design import losses
from helixfold.apps.design.inputs import TaskInput, task_input
from helixfold.apps.design.options import DesignOptions, SequenceMixture, Stage, StepSettings
from helixfold.apps.design.sequence import DesignedSequence, designed_sequence
from helixfold.apps.design.soft_sequence import AMINO_ACIDS, fold_sequence, with_exact_gradients
from helixfold.apps.design.task import DesignTask
from helixfold.apps.design.trajectory import Trajectory, begun, generator
from helixfold.execution.device import cast_trunk, dtype_on
from helixfold.execution.recompute import RecomputeConfig, recompute, restore_methods
from helixfold.execution.whole import Whole
from helixfold.folding.readout import predicted_protein
from helixfold.folding.recycling import recycled_guess
from helixfold.model import confidence
from helixfold.model.alphafold import AlphaFold
from helixfold.model.outputs import Outputs
from helixfold.ops.device_properties import properties_of
from helixfold.runtime.screen import hides_bars
from helixfold.weights.find import ReadyModel

# Added to the logits of amino acids that are excluded (ColabDesign).
_EXCLUDED_BIAS = -1e6
# Percent of the designed residues in strands, above which a design has a sheet (BindCraft).
_MIN_SHEET_PERCENT = 15.0
# BindCraft's names of the reasons why a design ends early, by the stage after which it ends.
ENDED: dict[Stage, str] = {
    "screen": "Trajectory_logits_pLDDT",
    "soft": "Trajectory_softmax_pLDDT",
    "hard": "Trajectory_one-hot_pLDDT",
}
_HARD_MIXTURE = SequenceMixture(soft=1.0, hard=1.0, temperature=1.0)


@dataclass(frozen=True, kw_only=True)
class Design:
    """A sequence of a design: by chain, with its losses and the structure that the first model predicts for it.

    `loss` is the weighted sum of `losses`, for one amino acid per residue and without dropout. `losses` are not
    multiplied by weights. `plddt` has a value from 0 to 100 for each residue, and so do the B-factors of `protein`.
    `ptm` and `iptm` are 0 to 1, None for models without aligned errors. `trajectory` is the state after the last step.
    """

    number: int  # from 0
    sequences: dict[str, str]
    loss: float
    losses: dict[str, float]
    protein: Protein
    chain_ids: tuple[str, ...]
    plddt: Float[np.ndarray, "r"]
    ptm: float | None
    iptm: float | None
    trajectory: Trajectory
    pae: Float[np.ndarray, "r r"] | None = None  # Angstrom, of residue j when aligned on residue i


class Designer:
    """Designs the sequence of one task with one or more networks, of which a random one computes each step.

    The networks are not trained, but they are changed: moved to `device`, cast, and set to recompute what `recomputed`
    selects, to save memory (`execution.recompute`). Raise `InputError` without a model, or if a loss needs aligned
    errors that a model does not predict.
    """

    def __init__(
        self,
        task: DesignTask,
        models: Sequence[ReadyModel],
        options: DesignOptions | None = None,
        *,
        device: torch.device | str = "cpu",
        recomputed: RecomputeConfig | None = None,
    ) -> None:
        if not models:
            raise InputError("a design needs at least one model")
        self.task, self.models, self.options = task, tuple(models), options or DesignOptions()
        self.device = torch.device(device)
        self.dtype = dtype_on(self.options.dtype, properties_of(self.device))
        self.inputs = [task_input(task, model.preset, self.device) for model in self.models]
        for model in self.models:
            needs_errors = any(name in ("pae", "i_pae", "i_ptm") for name, each in task.losses.items() if each.weight)
            if needs_errors and model.network.heads.aligned_error is None:
                raise InputError(f"model {model.preset.name} predicts no aligned errors: weigh the losses pae with 0")
            network = model.network.requires_grad_(False).to(self.device)
            cast_trunk(network, self.dtype)
            restore_methods(network)
            with_exact_gradients(network)
            recompute(network, recomputed or RecomputeConfig())
        self._settings = list(self.options.schedule())
        longer = replace(
            self.options,
            logits_steps=self.options.logits_steps + self.options.sheet_logits_steps,
            soft_steps=self.options.soft_steps + self.options.sheet_soft_steps,
        )
        self._sheet_settings = list(longer.schedule())
        bias = torch.zeros(AMINO_ACIDS, device=self.device)
        bias[[RESTYPES.index(letter) for letter in self.options.excluded]] = _EXCLUDED_BIAS
        self._bias = bias

    def begin(self, number: int) -> Trajectory:
        """Return the trajectory of the design `number`, from 0, before its first step."""
        return begun(self.task, self.options, number, self.inputs[0].fixed.shape[1])

    def is_finished(self, trajectory: Trajectory) -> bool:
        """Return whether all steps of a trajectory are done, or it ended early (`ended`)."""
        return trajectory.step >= len(self.steps_of(trajectory)) or self.ended(trajectory) is not None

    def has_sheet(self, trajectory: Trajectory) -> bool:
        """Return whether more than 15 % of the designed residues were in strands in the best screening step.

        Such designs have more steps and recycling iterations. It is False without screening steps.
        """
        screening = self._of_stage(trajectory, "screen")
        return bool(screening) and screening[0].get("sheet", 0.0) > _MIN_SHEET_PERCENT

    def steps_of(self, trajectory: Trajectory) -> list[StepSettings]:
        """Return the settings of all steps of a trajectory, done or not, which depend on whether it has a sheet."""
        return self._sheet_settings if self.has_sheet(trajectory) else self._settings

    def ended(self, trajectory: Trajectory) -> str | None:
        """Return BindCraft's name of the reason why a design ends after the stage that was just completed, or None.

        The reason is a mean pLDDT, in the stage's best step, of at most `options.min_plddt`. Designs without screening
        steps do not end early.
        """
        steps, step = self.steps_of(trajectory), trajectory.step
        if not self.options.screen_steps or not step:
            return None
        stage = steps[step - 1].stage
        if stage not in ENDED or (step < len(steps) and steps[step].stage == stage):
            return None
        return ENDED[stage] if 1 - self._of_stage(trajectory, stage)[0]["plddt"] <= self.options.min_plddt else None

    def advance(self, trajectory: Trajectory, number: int) -> Trajectory:
        """Compute the next step of the design `number`, and return the trajectory after it.

        The result depends only on the task, the options, the trajectory and the number. Raise `InputError` if the
        gradient is not finite.
        """
        settings = self.steps_of(trajectory)[trajectory.step]
        random = generator(self.task, self.options, number, trajectory.step)
        model_index = int(random.integers(len(self.models)))
        if settings.stage == "greedy":
            return self._mutated(trajectory, model_index, random)
        numbers = torch.from_numpy(trajectory.numbers)[None].to(self.device, torch.float32).requires_grad_()
        with _dropping(self.models[model_index].network, int(random.integers(2**62)), drops=settings.dropout):
            sequence = self._sequence(self.inputs[model_index], numbers, settings.mixture)
            value, loss_values, outputs = self._losses(model_index, sequence, self._recycles(trajectory))
            (gradient,) = torch.autograd.grad(value, [numbers])
        if not bool(gradient.isfinite().all()):
            raise InputError(f"{self.task.name}: step {trajectory.step + 1} has a gradient that is not finite")
        if settings.stage == "screen" and self.options.sheet_recycles is not None:
            loss_values["sheet"] = self._sheet(model_index, outputs)
        best = self._best(trajectory, settings, float(value.detach()), sequence)
        moved = best.moved(gradient[0].double().cpu().numpy(), settings.learning_rate, self.options)
        return replace(moved, losses=(*trajectory.losses, {"loss": float(value.detach()), **loss_values}))

    def finished(self, trajectory: Trajectory, number: int) -> Design:
        """Return the best sequence of a trajectory as a design, predicted by the first model.

        Without hard and greedy steps, this is the sequence of the trajectory's numbers.
        """
        return self.evaluated(self._letters(trajectory), trajectory, number)

    @torch.no_grad()
    def evaluated(
        self,
        letters: str,
        trajectory: Trajectory,
        number: int,
        *,
        guess: Float[np.ndarray, "r 37 3"] | None = None,
    ) -> Design:
        """Predict a sequence by the first model without dropout, and return it as a design with its losses.

        `letters` has all residues, in the order in which the network reads them. The `trajectory` determines the number
        of recycling iterations, and is part of the result like `number`. The first iteration recycles the atoms of
        `guess` (Å), or nothing.
        """
        task_input, model = self.inputs[0], self.models[0].network
        sequence = self._certain(letters)
        with _dropping(model, 0, drops=False):
            value, loss_values, outputs = self._losses(0, sequence, self._recycles(trajectory), guess)
        several = len(task_input.given.chain_ids) > 1
        features = replace(task_input.given.features, aatype=aatype_from_sequence(letters).astype(np.int32))
        error = None
        if model.heads.aligned_error is not None:
            asym_id = torch.from_numpy(np.asarray(task_input.given.chain_index, np.int64))[None].to(self.device) + 1
            pair, mask = outputs.representations.pair, task_input.batch.seq_mask
            error = confidence.aligned_error(
                Whole(), model.heads.aligned_error, pair, mask, asym_id if several else None
            )
        return Design(
            number=number,
            sequences=self._by_chain(letters),
            loss=float(value),
            losses=loss_values,
            protein=predicted_protein(model, outputs, replace(task_input.given, features=features)),
            chain_ids=task_input.given.chain_ids,
            plddt=confidence.plddt(outputs.logits.lddt)[0].cpu().numpy(),
            ptm=None if error is None else float(error.ptm[0]),
            iptm=None if error is None or error.iptm is None else float(error.iptm[0]),
            pae=None if error is None else error.expected[0].cpu().numpy(),
            trajectory=trajectory,
        )

    def _losses(
        self,
        model_index: int,
        sequence: DesignedSequence,
        num_recycles: int,
        guess: Float[np.ndarray, "r 37 3"] | None = None,
    ) -> tuple[Tensor, dict[str, float], Outputs]:
        task_input, network = self.inputs[model_index], self.models[model_index].network
        batch = task_input.with_sequence(sequence)
        outputs = fold_sequence(
            network,
            Whole(),
            batch,
            num_recycles=num_recycles,
            dtype=self.dtype,
            through_recycling=self.options.gradients_through == "all",
            previous=None if guess is None else recycled_guess(Whole(), network, guess[None], self.dtype),
        )
        value, loss_values = losses.total(self.task.losses, task_input.design_pass(outputs, batch, sequence))
        return value, loss_values, outputs

    def _recycles(self, trajectory: Trajectory) -> int:
        sheet = self.options.sheet_recycles
        return sheet if sheet is not None and self.has_sheet(trajectory) else self.options.num_recycles

    def _of_stage(self, trajectory: Trajectory, stage: Stage) -> list[Mapping[str, float]]:
        """Return the losses of the completed steps of a stage, sorted by their weighted sum, the smallest first."""
        # Before the first step after screening, both schedules are the same.
        steps = self._settings if stage == "screen" else self.steps_of(trajectory)
        done = [each for each, step in zip(trajectory.losses, steps, strict=False) if step.stage == stage]
        return sorted(done, key=lambda each: each["loss"])

    def _sheet(self, model_index: int, outputs: Outputs) -> float:
        """Return the percentage of designed residues that are in strands in the predicted structure."""
        task_input, structure = self.inputs[model_index], outputs.structure
        protein = Protein(
            aatype=task_input.given.features.aatype,
            atom_positions=structure.positions[0].detach().cpu().numpy(),
            atom_mask=structure.mask[0].cpu().numpy(),
            residue_index=np.arange(1, len(task_input.given.features.aatype) + 1),
            chain_index=np.asarray(task_input.given.chain_index),
            b_factors=np.zeros_like(structure.mask[0].cpu().numpy()),
        )
        letters = np.array(list(secondary_structure(protein)))
        return 100 * float((letters[task_input.designed[0].cpu().numpy() > 0] == STRAND).mean())

    def _certain(self, letters: str) -> DesignedSequence:
        types = torch.from_numpy(aatype_from_sequence(letters).astype(np.int64))[None].to(self.device)
        certain = torch.nn.functional.one_hot(types, AMINO_ACIDS).float()
        return DesignedSequence(logits=certain, soft=certain, hard=certain, mixed=certain)

    @torch.no_grad()
    def _mutated(self, trajectory: Trajectory, model_index: int, random: np.random.Generator) -> Trajectory:
        """Return the trajectory after a greedy step: with its best mutant, or the same sequence if none is better.

        Residues to mutate are drawn in proportion to 1 - pLDDT, and new amino acids uniformly from all allowed ones.
        """
        # Differs from ColabDesign, which takes the best mutant even if the sequence itself is better.
        letters, model = self._letters(trajectory), self.models[model_index].network
        with _dropping(model, 0, drops=False):
            value, loss_values, outputs = self._losses(model_index, self._certain(letters), self._recycles(trajectory))
            best = letters, float(value), loss_values
            free = self.inputs[model_index].is_free[0].cpu().numpy()
            unsure = np.maximum(1 - confidence.plddt(outputs.logits.lddt)[0].double().cpu().numpy() / 100, 1e-6) * free
            for _ in range(math.ceil(int(free.sum()) * self.options.greedy_share)):
                residue = int(random.choice(len(letters), p=unsure / unsure.sum()))
                other_letters = [
                    each for each in RESTYPES if each not in self.options.excluded and each != letters[residue]
                ]
                mutant = (
                    f"{letters[:residue]}{random.choice(other_letters or [letters[residue]])}{letters[residue + 1 :]}"
                )
                value, loss_values, _ = self._losses(model_index, self._certain(mutant), self._recycles(trajectory))
                if float(value) < best[1]:
                    best = mutant, float(value), loss_values
        losses_of_step = (*trajectory.losses, {"loss": best[1], **best[2]})
        step = trajectory.step + 1
        return replace(trajectory, best_sequence=best[0], best_loss=best[1], step=step, losses=losses_of_step)

    def _letters(self, trajectory: Trajectory) -> str:
        """Return the best sequence of a trajectory so far, or the most probable one by its numbers."""
        numbers = torch.from_numpy(trajectory.numbers)[None].to(self.device, torch.float32)
        return trajectory.best_sequence or _letters(self._sequence(self.inputs[0], numbers, _HARD_MIXTURE))

    def _sequence(
        self, task_input: TaskInput, numbers: Float[Tensor, "1 r 20"], mixture: SequenceMixture
    ) -> DesignedSequence:
        return task_input.with_fixed(designed_sequence(numbers, self._bias.expand_as(numbers), mixture))

    def _best(
        self, trajectory: Trajectory, settings: StepSettings, loss: float, sequence: DesignedSequence
    ) -> Trajectory:
        """Return the trajectory with a step's sequence as its best one if the loss is lowest; only hard steps count."""
        if settings.stage != "hard" or (trajectory.best_loss is not None and trajectory.best_loss <= loss):
            return trajectory
        return replace(trajectory, best_sequence=_letters(sequence), best_loss=loss)

    def _by_chain(self, letters: str) -> dict[str, str]:
        chains = np.asarray(self.inputs[0].given.chain_index)
        names = self.inputs[0].given.chain_ids
        return {name: "".join(np.array(list(letters))[chains == place].tolist()) for place, name in enumerate(names)}


def design(
    task: DesignTask,
    models: Sequence[ReadyModel],
    options: DesignOptions | None = None,
    *,
    device: torch.device | str = "cpu",
    recomputed: RecomputeConfig | None = None,
    report: Callable[[int, Trajectory], object] = lambda *_: None,
) -> list[Design]:
    """Make `options.designs` designs of a task, and return them sorted by loss, the smallest first.

    `report` is called after each step with the design's number and its trajectory. Each design is determined by its
    seed. See `Designer` for the other arguments. A progress bar is shown after two seconds, on a terminal and in
    notebooks.
    """
    designer = Designer(task, models, options, device=device, recomputed=recomputed)
    designs = []
    total = designer.options.designs * designer.options.steps
    with tqdm(total=total, desc="steps", leave=False, delay=2.0, disable=hides_bars(None)) as bar:
        for number in range(designer.options.designs):
            trajectory = designer.begin(number)
            while not designer.is_finished(trajectory):
                trajectory = designer.advance(trajectory, number)
                report(number, trajectory)
                bar.update()
            designs.append(designer.finished(trajectory, number))
    return sorted(designs, key=lambda each: each.loss)


def _letters(sequence: DesignedSequence) -> str:
    """Return the most probable amino acids of a sequence as letters."""
    return "".join(RESTYPES[kind] for kind in sequence.hard[0].argmax(-1).tolist())


@contextmanager
def _dropping(model: AlphaFold, seed: int, *, drops: bool) -> Iterator[None]:
    """Within the context, let the network use dropout as in training with this random seed, or none at all."""
    device = next(model.parameters()).device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        model.train(drops)
        try:
            yield
        finally:
            model.eval()
