"""Estimate the memory of a design step by running the step on meta tensors, which hold no values."""

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from data_pipeline.io.errors import InputError, printable
from helixfold.apps.design.options import DesignOptions
from helixfold.apps.design.soft_sequence import AMINO_ACIDS, fold_sequence, with_exact_gradients, with_sequence
from helixfold.apps.design.task import DesignTask
from helixfold.execution.device import dtype_on
from helixfold.model.alphafold import AlphaFold
from helixfold.model.batch import Batch
from helixfold.model.confidence import plddt, predicted_aligned_error
from helixfold.model.presets import Preset
from helixfold.model.update import Executor
from helixfold.ops.device_properties import DeviceProperties
from helixfold.planning.estimate import RESERVE, Device, Training, estimate
from helixfold.planning.passes import Step
from helixfold.planning.size import PassSize, gib

if TYPE_CHECKING:
    from helixfold.weights.find import ReadyModel


def check_memory(task: DesignTask, models: Sequence["ReadyModel"], options: DesignOptions, device: Device) -> int:
    """Return the estimated peak memory of a step in bytes, with the model that needs the most.

    Raise `InputError` if this with a reserve of a tenth is more than the memory of `device`.
    """
    needed = max(estimate(workload(task, model.preset, options, device.properties), device).peak for model in models)
    if RESERVE * needed > device.memory:
        raise InputError(
            f"{printable(task.name)}: a step is forecast to take {gib(needed)} of the {gib(device.memory)} available; "
            f"take fewer --num-recycles, --gradients-through last, or fewer residues"
        )
    return needed


def workload(task: DesignTask, preset: Preset, options: DesignOptions, properties: DeviceProperties) -> Training:
    """Return a gradient step of a design with a model of this preset as a workload, whose memory can be estimated."""
    slots = 0
    if preset.model.template is not None:
        is_shown = any(chain.is_shown for chain in task.chains)
        slots = preset.sampling.max_templates if preset.model.method == "multimer" else int(is_shown)
    size = PassSize(
        residues=sum(len(chain.aatype) for chain in task.chains),
        msa_rows=1,
        extra_rows=1,
        templates=slots,
        dtype=dtype_on(options.dtype, properties),
    )
    return Training(model=preset.model, size=size, step=_step(options.num_recycles, options.gradients_through == "all"))


@cache
def _step(num_recycles: int, through_recycling: bool) -> Step:
    """Return the loss of a step, the same function for the same settings, so that it is counted once."""

    def step(network: AlphaFold, run: Executor, batch: Batch, dtype: torch.dtype) -> Tensor:
        with_exact_gradients(network)
        sequence = torch.rand(1, batch.aatype.shape[1], AMINO_ACIDS, device=batch.aatype.device).requires_grad_()
        logits = fold_sequence(
            network,
            run,
            with_sequence(batch, sequence),
            num_recycles=num_recycles,
            dtype=dtype,
            through_recycling=through_recycling,
        ).logits
        # A loss of each head that losses read; what others add is a few tensors of pairs of residues.
        losses = [plddt(logits.lddt).sum(), logits.distogram.log_softmax(-1).square().sum()]
        if logits.aligned_error is not None:
            losses.append(predicted_aligned_error(logits.aligned_error)[0].sum())
        return torch.stack(losses).sum()

    return step
