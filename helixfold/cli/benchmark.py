"""Define the command `helixfold benchmark`, which measures speed and memory on this machine."""

from cyclopts import App, Group

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
    "loader": "Measure training examples per second, from a store and from raw files.",
    "ablation": "Measure training and prediction with one technique switched off at a time.",
}
app = App(
    name="benchmark",
    usage="helixfold benchmark BENCHMARK [options]\nexample: helixfold benchmark block",
    help="Measure speed and memory on this machine.",
    group_commands=Group.create_ordered("Benchmarks"),
)
for number, (name, summary) in enumerate(BENCHMARKS.items()):
    app.command(f"helixfold.benchmark.{name}:run", name=name, help=summary, sort_key=number)
