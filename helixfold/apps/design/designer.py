"""Optimise the sequence of a design by the gradients of its losses through a network, or through several by turns."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from data_pipeline.features.sequence import aatype_from_sequence
from data_pipeline.io.errors import InputError
from data_pipeline.protein import Protein
from data_pipeline.residues import RESTYPES
from helixfold.apps.design import losses
from helixfold.apps.design.inputs import TaskInput, task_input
from helixfold.apps.design.options import DesignOptions, SequenceMixture, StepSettings
from helixfold.apps.design.sequence import DesignedSequence, designed_sequence
from helixfold.apps.design.soft_sequence import AMINO_ACIDS, fold_sequence, with_exact_gradients
from helixfold.apps.design.task import DesignTask
from helixfold.apps.design.trajectory import Trajectory, begun, generator
from helixfold.execution.device import cast_trunk, dtype_on
from helixfold.execution.recompute import RecomputeConfig, recompute, restore_methods
from helixfold.execution.whole import Whole
from helixfold.folding.readout import predicted_protein
from helixfold.model import confidence
from helixfold.model.alphafold import AlphaFold
from helixfold.ops.device_properties import properties_of
from helixfold.weights.find import ReadyModel

# Added to the logits of amino acids that are excluded (ColabDesign).
_EXCLUDED = -1e6
_HARD = SequenceMixture(soft=1.0, hard=1.0, temperature=1.0)


@dataclass(frozen=True, kw_only=True)
class Design:
    """A finished design: its sequences by chain, its losses, and the structure that the first model predicts for it.

    `loss` is the weighted sum of `losses` for the sequence itself, without dropout. `plddt` has a value from 0 to 100
    for each residue, and so do B-factors. `ptm` and `iptm` are 0 to 1, None for models without them.
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


class Designer:
    """Designs of one task by one or more networks, which are not trained: a random one of them makes each step.

    `recomputed` says what steps recompute to save memory; the networks are changed to do so, see
    `execution.recompute`. Raise `InputError` if there is a loss that a model does not have.
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
            needs_errors = any(name in ("pae", "i_pae") for name, each in task.losses.items() if each.weight)
            if needs_errors and model.network.heads.aligned_error is None:
                raise InputError(f"model {model.preset.name} predicts no aligned errors: weigh the losses pae with 0")
            network = model.network.requires_grad_(False).to(self.device)
            cast_trunk(network, self.dtype)
            restore_methods(network)
            with_exact_gradients(network)
            recompute(network, recomputed or RecomputeConfig())
        self._settings = list(self.options.schedule())
        bias = torch.zeros(AMINO_ACIDS, device=self.device)
        bias[[RESTYPES.index(letter) for letter in self.options.excluded]] = _EXCLUDED
        self._bias = bias

    def begin(self, number: int) -> Trajectory:
        """Return the beginning of the design of this number, from 0."""
        return begun(self.task, self.options, number, self.inputs[0].fixed.shape[1])

    def is_finished(self, trajectory: Trajectory) -> bool:
        """Return whether all steps of a design are done."""
        return trajectory.step >= len(self._settings)

    def advance(self, trajectory: Trajectory, number: int) -> Trajectory:
        """Return a design after its next step, which depends only on the trajectory and the design's number."""
        settings = self._settings[trajectory.step]
        random = generator(self.task, self.options, number, trajectory.step)
        chosen = int(random.integers(len(self.models)))
        numbers = torch.from_numpy(trajectory.numbers)[None].to(self.device, torch.float32).requires_grad_()
        with _dropping(self.models[chosen].network, int(random.integers(2**62)), drops=settings.dropout):
            value, found, sequence = self._losses(chosen, numbers, settings.mixture)
            (gradient,) = torch.autograd.grad(value, [numbers])
        if not bool(gradient.isfinite().all()):
            raise InputError(f"{self.task.name}: step {trajectory.step + 1} has a gradient that is no number")
        best = self._best(trajectory, settings, float(value.detach()), sequence)
        moved = best.moved(gradient[0].double().cpu().numpy(), settings.learning_rate, self.options)
        return replace(moved, losses=(*trajectory.losses, {"loss": float(value.detach()), **found}))

    def finished(self, trajectory: Trajectory, number: int) -> Design:
        """Return the design of a trajectory, as the first model predicts it."""
        numbers = torch.from_numpy(trajectory.numbers)[None].to(self.device, torch.float32)
        letters = trajectory.best_sequence or _letters(self._sequence(self.inputs[0], numbers, _HARD))
        return self.evaluated(letters, trajectory, number)

    @torch.no_grad()
    def evaluated(self, letters: str, trajectory: Trajectory, number: int) -> Design:
        """Return a sequence of all residues, as letters in the order in which the network reads them, as a design."""
        given, model = self.inputs[0], self.models[0].network
        types = torch.from_numpy(aatype_from_sequence(letters).astype(np.int64))[None].to(self.device)
        certain = torch.nn.functional.one_hot(types, AMINO_ACIDS).float()
        sequence = DesignedSequence(logits=certain, soft=certain, hard=certain, mixed=certain)
        with _dropping(model, 0, drops=False):
            batch = given.with_sequence(sequence)
            outputs = fold_sequence(model, Whole(), batch, num_recycles=self.options.num_recycles, dtype=self.dtype)
        made = given.made(outputs, batch, sequence)
        value, found = losses.total(self.task.losses, made)
        several = len(given.given.chain_ids) > 1
        error = None
        if model.heads.aligned_error is not None:
            asym_id = made.chain_index + 1 if several else None
            pair = outputs.representations.pair
            error = confidence.aligned_error(Whole(), model.heads.aligned_error, pair, batch.seq_mask, asym_id)
        features = replace(given.given.features, aatype=types[0].cpu().numpy().astype(np.int32))
        protein = predicted_protein(model, outputs, replace(given.given, features=features))
        return Design(
            number=number,
            sequences=self._by_chain(letters),
            loss=float(value),
            losses=found,
            protein=protein,
            chain_ids=given.given.chain_ids,
            plddt=confidence.plddt(outputs.logits.lddt)[0].cpu().numpy(),
            ptm=None if error is None else float(error.ptm[0]),
            iptm=None if error is None or error.iptm is None else float(error.iptm[0]),
            trajectory=trajectory,
        )

    def _losses(
        self, chosen: int, numbers: Float[Tensor, "1 r 20"], mixture: SequenceMixture
    ) -> tuple[Tensor, dict[str, float], DesignedSequence]:
        given, options = self.inputs[chosen], self.options
        sequence = self._sequence(given, numbers, mixture)
        batch = given.with_sequence(sequence)
        outputs = fold_sequence(
            self.models[chosen].network,
            Whole(),
            batch,
            num_recycles=options.num_recycles,
            dtype=self.dtype,
            through_recycling=options.gradients_through == "all",
        )
        value, found = losses.total(self.task.losses, given.made(outputs, batch, sequence))
        return value, found, sequence

    def _sequence(
        self, given: TaskInput, numbers: Float[Tensor, "1 r 20"], mixture: SequenceMixture
    ) -> DesignedSequence:
        return given.with_fixed(designed_sequence(numbers, self._bias.expand_as(numbers), mixture))

    def _best(
        self, trajectory: Trajectory, settings: StepSettings, loss: float, sequence: DesignedSequence
    ) -> Trajectory:
        """Return the trajectory with a step's sequence as the best one, if it is: those of hard steps alone compare."""
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
    """Return the designs of a task, the smallest loss first; `report` is called with each one's number after each step.

    Seeds determine them, whatever was designed before; see `Designer` for the other arguments.
    """
    designer = Designer(task, models, options, device=device, recomputed=recomputed)
    found = []
    for number in range(designer.options.designs):
        trajectory = designer.begin(number)
        while not designer.is_finished(trajectory):
            trajectory = designer.advance(trajectory, number)
            report(number, trajectory)
        found.append(designer.finished(trajectory, number))
    return sorted(found, key=lambda each: each.loss)


def _letters(sequence: DesignedSequence) -> str:
    """Return the most probable amino acids of a sequence as letters."""
    return "".join(RESTYPES[kind] for kind in sequence.hard[0].argmax(-1).tolist())


@contextmanager
def _dropping(model: AlphaFold, seed: int, *, drops: bool) -> Iterator[None]:
    """Let the network drop what it drops in training, as the seed decides, or nothing."""
    device = next(model.parameters()).device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        model.train(drops)
        try:
            yield
        finally:
            model.eval()
