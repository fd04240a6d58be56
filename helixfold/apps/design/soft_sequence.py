"""Put a sequence of probabilities into the network's input, and run passes with gradients with respect to it.

A soft sequence has a number for each residue and each of the 20 amino acids, in the order of
`data_pipeline.residues.RESTYPES`. They reach the features of the target, the first row of the MSA, and on request
templates (ColabDesign; Wicky et al. 2022). Numbers need not be probabilities: designs begin with logits. `AMINO_ACIDS`
is the number 20.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import one_hot, pad

from data_pipeline.residues import RESTYPES
from helixfold.execution.recompute import MethodReplacement, replace_method
from helixfold.model.alphafold import AlphaFold
from helixfold.model.batch import Batch, MultimerBatch
from helixfold.model.embedders import MSA_CHANNELS
from helixfold.model.geometry.frames import BackboneFrames
from helixfold.model.outputs import Outputs, Recycled
from helixfold.model.templates import TEMPLATE_TYPES
from helixfold.model.update import Executor

# Number of amino acids, 20.
AMINO_ACIDS = len(RESTYPES)
# Channels of a row of the MSA (AlphaFold 2, Suppl. Table 1): 23 letters, two of deletions, the 23 letters of the
# profile, and the mean of deletions.
_PROFILE_START = 25


def with_sequence(
    batch: Batch,
    sequence: Float[Tensor, "b r 20"],
    *,
    profile: Float[Tensor, "b r 20"] | None = None,
    templates: Sequence[int] = (),
) -> Batch:
    """Return the batch of a target with this soft sequence, through which gradients reach the sequence.

    The sequence replaces the target's features and the first row of the MSA, whose profile becomes `profile`, by
    default the sequence itself. `templates` are the indices of templates whose residue types become the sequence. Other
    rows of the MSA are not changed. `aatype`, which determines a residue's atoms, is its most probable amino acid.
    """
    profile = sequence if profile is None else profile
    letters = pad(sequence, (0, _PROFILE_START - AMINO_ACIDS))
    row = torch.cat([letters, pad(profile, (0, MSA_CHANNELS - _PROFILE_START - AMINO_ACIDS))], -1)
    msa = torch.cat([row[:, None].to(batch.msa_feat.dtype), batch.msa_feat[:, 1:]], 1)
    # A monomer's first channel marks breaks of the chain, which AlphaFold never sets; the last is the unknown residue.
    target = pad(sequence, (0, 1) if isinstance(batch, MultimerBatch) else (1, 1))
    changed = replace(batch, aatype=sequence.argmax(-1), target_feat=target.to(batch.target_feat.dtype), msa_feat=msa)
    if not templates:
        return changed
    template_types = batch.template_types
    types = (
        one_hot(batch.template_aatype, TEMPLATE_TYPES).to(sequence.dtype) if template_types is None else template_types
    )
    is_selected = torch.zeros(types.shape[1], dtype=torch.bool, device=types.device)
    is_selected[list(templates)] = True
    soft = pad(sequence, (0, TEMPLATE_TYPES - AMINO_ACIDS))
    return replace(changed, template_types=torch.where(rearrange(is_selected, "t -> t 1 1"), soft[:, None], types))


class AllPassedOn(MethodReplacement):
    """Replacement of the structure module's method `passed_on` that does not stop the gradients of rotations."""

    def __call__(self, frames: BackboneFrames) -> BackboneFrames:
        return frames


def with_exact_gradients(model: AlphaFold) -> None:
    """Change a model so that gradients of rotations pass through all iterations of the structure module.

    In training, AlphaFold stops them between iterations, for stability, which makes a sequence's gradient inexact.
    ColabDesign lets them pass. `restore_methods` undoes the change.
    """
    replace_method(model.structure_module, "passed_on", AllPassedOn)


def fold_sequence(
    model: AlphaFold,
    run: Executor,
    batch: Batch,
    *,
    num_recycles: int,
    dtype: torch.dtype = torch.float32,
    through_recycling: bool = True,
    previous: Recycled | None = None,
) -> Outputs:
    """Return the outputs of the last of `num_recycles + 1` recycling iterations on the same batch.

    The first iteration recycles `previous`, or nothing. With `through_recycling`, gradients pass through all
    iterations, exactly, and memory grows with their number. Otherwise only the last iteration has gradients, as in
    training, and the others take the memory of a prediction. `dtype` is the precision of the trunk.
    """
    ensembles = [[batch]] * num_recycles
    previous = model.recycle(run, ensembles, dtype, previous=previous, with_gradients=through_recycling)
    return model(run, [batch], previous, dtype)
