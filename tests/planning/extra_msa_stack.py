"""Passes of the extra-MSA stack, whose memory is compared with its estimate."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from helixfold.benchmark.measurement import peak_beyond, settle
from helixfold.execution.allocator import keeping_freed_memory
from helixfold.execution.counter import Counter
from helixfold.execution.recompute import Keep, RecomputeConfig, recompute
from helixfold.execution.whole import Whole
from helixfold.model.alphafold import AlphaFold
from helixfold.model.config import of_blocks
from helixfold.model.evoformer import EvoformerStack
from helixfold.model.presets import preset
from helixfold.ops.device_properties import DEVICE_MODELS, simulated_device
from helixfold.ops.dispatch import forced
from helixfold.parallel.mesh import Mesh
from helixfold.planning.passes import KEPT_BLOCKS, META, library_memory
from helixfold.planning.size import PassSize

PRESET = "model_1"


@dataclass(frozen=True, kw_only=True)
class StackPass:
    """Forward and backward of `blocks` blocks; `keep` is the checkpoint policy."""

    size: PassSize
    keep: Keep
    blocks: int = 1

    def estimate(self) -> int:
        """Return the estimate of the peak in bytes, counted by running the pass on meta tensors."""
        with simulated_device(DEVICE_MODELS["cpu"]), META, Counter() as counter:
            run = self.prepared(META)
            counter.begin("run")
            start = counter.live
            run()
        return counter.peak - start + library_memory(DEVICE_MODELS["cpu"], preset(PRESET).model, self.size)

    def prepared(self, device: torch.device) -> Callable[[], None]:
        """Return the pass as a function.

        A small pass has been run, so that gradients, and what libraries allocate once, exist before memory is counted.
        """
        model = preset(PRESET).model
        # `recompute` looks for blocks in a network, of which only this stack has real parameters.
        with META:
            network = AlphaFold(of_blocks(model, 1))
        config = replace(model.extra_msa, blocks=self.blocks)
        with device:
            network.extra_msa_stack = EvoformerStack(config, model.c_z, global_columns=True).train()
        recompute(network, RecomputeConfig.everywhere(self.keep))

        def run(size: PassSize) -> None:
            def stream(count: int, channels: int) -> Tensor:
                shape = (1, count, size.residues, channels)
                return torch.randn(shape, dtype=size.dtype, device=device, requires_grad=True)

            masks = [torch.ones(1, count, size.residues, device=device) for count in (size.extra_rows, size.residues)]
            # By way of the network, which must live as long: its parameters are counted, and if it were garbage the
            # peak would depend on when that is collected. The stack's alignment is not used after it.
            pair = network.extra_msa_stack(
                Whole(), stream(size.extra_rows, config.c_m), stream(size.residues, model.c_z), *masks
            )[1]
            pair.backward(torch.ones_like(pair))

        run(replace(self.size, residues=8, msa_rows=4, extra_rows=4))
        return lambda: run(self.size)


def peak_in_plain_pytorch(mesh: Mesh, stack: StackPass) -> int:
    """Return the peak memory of a pass in bytes beyond parameters and their gradients; a fresh process calls this."""
    torch.manual_seed(0)
    with keeping_freed_memory(KEPT_BLOCKS), forced("reference"):
        run = stack.prepared(mesh.device)
        settle()
        return peak_beyond(run, mesh.device)
