"""Define the command `helixfold plan`, which predicts how long a training takes on given hardware."""

from cyclopts import App

from helixfold.training.options import PlanOptions

_USUAL = PlanOptions()
_EXAMPLES = """examples:
  helixfold plan --hardware a100x128 a100x256+512
      days of AlphaFold's training on 128 GPUs; on 256, then 512
  helixfold plan --hardware h100x256 --layouts --parallel-blocks
      every way to divide 256 GPUs, branch parallelism among them
  helixfold plan --hardware h100x128 --step-seconds 1.8 5.5
      the same from times of a step that you know
  helixfold plan --hardware here herex2 --preset tiny --training-set peptides
      a small training on this machine, which is measured with examples of the training set, with 1 and 2 ranks
"""
app = App(name="plan", usage="helixfold plan [--hardware KINDxN...] [options]", help_epilogue=_EXAMPLES)


@app.default
def plan(options: PlanOptions = _USUAL) -> None:
    """Predict the days of a training on given hardware, from the time of a step with all its recycling iterations and
    messages, beside published trainings and the mean time of a step that they imply.

    Ranks are divided as is fastest: dp groups with samples of their own, each of bp (the two branches of blocks) x dap
    (parts of streams) ranks that share a sample. What a rank computes, sends and holds is counted by running it without
    numbers. Rates of named devices are published ones, in bfloat16; on this machine, passes and messages are measured.
    """
    from helixfold.training.plan import plan_lines, published_step_lines

    for line in published_step_lines() if options.published_steps else plan_lines(options):
        print(line, flush=True)
