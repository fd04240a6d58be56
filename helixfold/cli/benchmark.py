"""Define the command `helixfold benchmark`, which measures speed and memory on this machine."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from cyclopts import App

from helixfold.benchmark.options import CommonOptions

if TYPE_CHECKING:
    from helixfold.benchmark.machine import BenchmarkDevice
    from helixfold.benchmark.table import Readings

# Each benchmark is a module with a function `run`; the first four need little more than torch.
BENCHMARKS = {
    "ops": "Measure every operator at its shapes in a block, by every backend and installed peer.",
    "block": "Measure one Evoformer block: forward, then forward and backward.",
    "model": "Measure one pass of the whole network, and of DeepMind's program.",
    "step": "Measure one training step: forward, backward, optimizer.",
    "kernels": "Compile the network's kernels and estimate their time, without a GPU.",
    "launches": "Count what blocks, structure module, losses and a training step launch, without a GPU.",
    "memory": "Measure peak memory of predictions by executor, beside the floor and the forecast.",
    "precision": "Measure how far predictions in bfloat16 are from those in float32, by executor and operators.",
    "data": "Measure chains per second and size of a feature store, built and read.",
    "loader": "Measure training examples per second, from a store and from the files that it was made of.",
    "search": "Measure a search for a batch of targets beside searches for one after another.",
    "recompute": "Measure the memory of a training pass by what is recomputed.",
    "finetuning": "Measure the memory of a fine-tuning step by what is trained, beside the forecast.",
    "ablation": "Measure a training step and a prediction with everything on, then with one technique off at a time.",
    "layouts": "Measure a training step by how ranks are divided, beside the forecast.",
    "optimizer": "Measure an optimizer step, beside PyTorch's Adam, clipping and moving average by tensor.",
}
# `all` measures these, one after the other.
MEASURED = ("ops", "block", "model", "step")
# Sizes at which operators are compared on a GPU.
_GPU_RESIDUES = (256, 512, 1024)
_COMMON = CommonOptions()
app = App(
    name="benchmark", usage="helixfold benchmark BENCHMARK [options]", help="Measure speed and memory on this machine."
)
for number, (name, summary) in enumerate(BENCHMARKS.items()):
    app.command(f"helixfold.benchmark.{name}:run", name=name, help=summary, sort_key=number)


@app.command(name="all", help=f"Measure {', '.join(MEASURED)}, one after the other.")
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
