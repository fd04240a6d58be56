"""Define the command `helixfold benchmark`, which measures speed and memory on this machine."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from cyclopts import App, Group

from helixfold.benchmark.options import CommonOptions

if TYPE_CHECKING:
    from helixfold.benchmark.machine import BenchmarkDevice
    from helixfold.benchmark.table import Readings

# Each benchmark is a module with a function `run`; the first four need little more than torch.
BENCHMARKS = {
    "ops": "Time every operator, for each backend and installed peer.",
    "block": "Time an Evoformer block: forward, and forward with backward.",
    "model": "Time one recycling iteration of the network, and of DeepMind's program.",
    "step": "Time a training step: forward, backward and optimizer.",
    "kernels": "Compile the GPU kernels and list their registers and spills; needs no GPU.",
    "launches": "Count kernel launches of blocks, losses and a training step; needs no GPU.",
    "memory": "Measure peak memory of predictions for each executor, and compare with the estimate.",
    "precision": "Measure the error of bfloat16 predictions, for each executor.",
    "data": "Measure the size and speed of a feature store.",
    "loader": "Measure training examples per second, from a store and from raw files.",
    "search": "Time one search for a batch of targets against single searches.",
    "recompute": "Measure the memory of a training step for each checkpoint policy.",
    "finetuning": "Measure the memory of a fine-tuning step, and compare with the estimate.",
    "ablation": "Measure training and prediction with one technique switched off at a time.",
    "layouts": "Time a training step for each layout of ranks, and compare with the estimate.",
    "optimizer": "Time an optimizer step against PyTorch's Adam.",
}
# `all` measures these, one after the other.
MEASURED = ("ops", "block", "model", "step")
# Sizes at which operators are compared on a GPU.
_GPU_RESIDUES = (256, 512, 1024)
_COMMON = CommonOptions()
app = App(
    name="benchmark",
    usage="helixfold benchmark BENCHMARK [options]\nexample: helixfold benchmark block",
    help="Measure speed and memory on this machine.",
    group_commands=Group.create_ordered("Benchmarks"),
)
for number, (name, summary) in enumerate(BENCHMARKS.items()):
    app.command(f"helixfold.benchmark.{name}:run", name=name, help=summary, sort_key=number)


@app.command(name="all", help=f"Run {', '.join(MEASURED)} at their default sizes.")
def measure_all(common: CommonOptions = _COMMON) -> None:
    """Measure what has readings of one form, at the default sizes."""
    from helixfold.benchmark import block, model, ops, step
    from helixfold.benchmark.table import show

    def readings(machine: "BenchmarkDevice") -> Iterator["Readings"]:
        operators = ops.OpsOptions()
        if machine.device.type == "cuda":
            operators = replace(operators, residues=_GPU_RESIDUES)
        yield from ops.readings(operators, common, machine)
        yield from block.readings(block.BlockOptions(), common, machine)
        yield from model.readings(model.ModelOptions(), common, machine)
        yield from step.readings(step.StepOptions(), common, machine)

    show(readings, common)
