"""Create the network's input for a design: features of its chains without alignments, and known atoms as a template."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from data_pipeline.features.complexes.chain_ids import ONLY_CHAIN
from data_pipeline.features.complexes.complex_input import AnyTarget, ComplexInput
from data_pipeline.features.complexes.pipeline import target_features
from data_pipeline.features.complexes.target import ComplexTarget
from data_pipeline.pipeline import Target
from data_pipeline.residues import GAP
from helixfold.apps.design.losses import DesignPass, KnownAtoms
from helixfold.apps.design.sequence import DesignedSequence
from helixfold.apps.design.soft_sequence import AMINO_ACIDS, with_sequence
from helixfold.apps.design.task import FREE, DesignTask
from helixfold.folding.model_input import ModelInput, batch_of, draw, model_input
from helixfold.model.batch import Batch, sampled_fields
from helixfold.model.geometry.atoms import pseudo_beta
from helixfold.model.outputs import Outputs
from helixfold.model.presets import Preset

_FIRST_SIDE_CHAIN_ATOM = 5  # of the 37 atoms; the first five are N, CA, C, CB and O


@dataclass(frozen=True, kw_only=True)
class TaskInput:
    """Input of one model for a design, with masks of the designed residues, the target and the hotspots (0 or 1).

    `given` is the model's input and `batch` the batch made from it, with glycines at free residues. `fixed` has the
    residue types that are fixed, and `FREE` elsewhere. `known` are the atoms that the design should have, if any. All
    residues are in the order in which the network reads them.
    """

    given: ModelInput
    batch: Batch
    fixed: Int[Tensor, "1 r"]
    designed: Float[Tensor, "1 r"]
    target: Float[Tensor, "1 r"]
    hotspots: Float[Tensor, "1 r"]
    known: KnownAtoms | None

    @property
    def is_free(self) -> Bool[Tensor, "1 r"]:
        """Return a mask of the residues whose amino acids are free."""
        return self.fixed == FREE

    def with_fixed(self, sequence: DesignedSequence) -> DesignedSequence:
        """Return the sequence with each fixed residue set to its amino acid, with probability 1, except in `logits`."""
        certain = one_hot(self.fixed.clamp(min=0), AMINO_ACIDS).to(sequence.soft.dtype)
        free = self.is_free[..., None]
        return replace(
            sequence,
            **{name: torch.where(free, getattr(sequence, name), certain) for name in ("soft", "hard", "mixed")},
        )

    def with_sequence(self, sequence: DesignedSequence) -> Batch:
        """Return the batch with a sequence's mixed form instead of the placeholders, for the network to read."""
        return with_sequence(self.batch, sequence.mixed)

    def design_pass(self, outputs: Outputs, batch: Batch, sequence: DesignedSequence) -> DesignPass:
        """Return a `DesignPass` of these outputs, batch and sequence with this input's masks, for losses to read."""
        chains = torch.from_numpy(np.asarray(self.given.chain_index, np.int64))[None].to(self.fixed.device)
        return DesignPass(
            outputs=outputs,
            batch=batch,
            sequence=sequence,
            designed=self.designed,
            target=self.target,
            hotspots=self.hotspots,
            chain_index=chains,
            known=self.known,
        )


def task_target(task: DesignTask, sequences: dict[str, str] | None = None) -> AnyTarget:
    """Return the chains of a design as a target of predictions, with these sequences by chain.

    Without `sequences`, free residues are glycine. All chains are read as proteins.
    """
    letters = {chain.name: chain.placeholder for chain in task.chains} if sequences is None else sequences
    if len(task.chains) == 1:
        return Target(name=task.name, sequence=letters[task.chains[0].name], as_protein=True)
    names = [chain.name for chain in task.chains]
    target = ComplexTarget.of(task.name, [letters[name] for name in names], chain_ids=names)
    return ComplexInput(target=target, as_protein=True)


def task_input(task: DesignTask, preset: Preset, device: torch.device | str = "cpu") -> TaskInput:
    """Return the input of a design for a model with this preset: without alignments, masking and random choices.

    Known atoms of shown chains become the first template, if the model reads templates. Known atoms of other chains are
    the goal of the design (`known`).
    """
    preset = replace(preset, sampling=replace(preset.sampling, masked_msa_fraction=0.0, unknown_fraction=0.0))
    inputs = model_input(target_features(task_target(task)), preset, cyclic=task.cyclic)
    batch = batch_of([draw(inputs, preset, [0])], preset, device, inputs.offsets)
    # A single chain is called A whatever its name is; chains of one sequence are read as neighbours.
    chains = {ONLY_CHAIN: task.chains[0]} if len(task.chains) == 1 else {chain.name: chain for chain in task.chains}
    ordered = [chains[name] for name in inputs.chain_ids]

    def joined(name: str, dtype: torch.dtype) -> Tensor:
        values = np.concatenate([getattr(chain, name) for chain in ordered])
        return torch.from_numpy(values)[None].to(device, dtype)

    designed = joined("designed", torch.float32)
    positions, mask = joined("positions", torch.float32), joined("mask", torch.float32)
    is_shown = torch.cat([torch.full(chain.aatype.shape, float(chain.is_shown)) for chain in ordered])[None].to(device)
    fixed = joined("aatype", torch.int64)
    hides = torch.cat([torch.full(chain.aatype.shape, chain.hides_sequence) for chain in ordered])[None].to(device)
    shown_mask = mask * is_shown[..., None]
    shown_mask[..., _FIRST_SIDE_CHAIN_ATOM:] *= ~hides[..., None]
    # Atoms that a template shows are not a goal of the design.
    aim = mask * (1 - is_shown)[..., None]
    return TaskInput(
        given=inputs,
        batch=_with_template(batch, fixed.masked_fill(hides, GAP), positions, shown_mask, preset),
        fixed=fixed,
        designed=designed,
        target=is_shown,
        hotspots=joined("hotspots", torch.float32),
        known=KnownAtoms(positions=positions, mask=aim) if bool(aim.any()) else None,
    )


def _with_template(
    batch: Batch,
    aatype: Int[Tensor, "1 r"],
    positions: Float[Tensor, "1 r 37 3"],
    mask: Float[Tensor, "1 r 37"],
    preset: Preset,
) -> Batch:
    """Return the batch with these atoms as its first template, if there are any and the model reads templates."""
    if preset.model.template is None or not bool(mask.any()):
        return batch
    present = mask.amax(-1) > 0
    types = torch.where(present, aatype, GAP)
    template = {
        "template_aatype": types,
        "template_all_atom_positions": positions * mask[..., None],
        "template_all_atom_masks": mask,
        "template_pseudo_beta": pseudo_beta(types.clamp(max=AMINO_ACIDS), positions) * present[..., None],
        "template_pseudo_beta_mask": present.to(mask.dtype),
        "template_mask": torch.ones(1, device=mask.device),
    }
    other_templates = {name: getattr(batch, name)[:, 1:] for name in sampled_fields(Batch) if name in template}
    return replace(
        batch, **{name: torch.cat([value[:, None], other_templates[name]], 1) for name, value in template.items()}
    )
