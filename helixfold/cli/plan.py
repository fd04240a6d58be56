"""Define the command `helixfold plan`, which predicts how long a training takes on given hardware."""

from helixfold.cli.command import Command
from helixfold.training.options import PlanOptions

_DEFAULT_OPTIONS = PlanOptions()
_HELP_EXAMPLES = """more examples:
  helixfold plan --hardware h100x256 --layouts --parallel-blocks
      all layouts on 256 GPUs, including branch parallelism
  helixfold plan --hardware h100x128 --step-seconds 1.8 5.5
      days from step times that you measured
  helixfold plan --hardware here herex2 --preset tiny --training-set peptides
      a small training on this machine, measured with examples of the training set, with 1 and 2 ranks
"""
_USAGE = "helixfold plan [--hardware KINDxN...] [options]\nexample: helixfold plan --hardware a100x128 a100x256+512"
app = Command(name="plan", usage=_USAGE, help_epilogue=_HELP_EXAMPLES)


@app.default
def plan(options: PlanOptions = _DEFAULT_OPTIONS) -> None:
    """Estimate how many days a training takes on given hardware, next to published trainings.

    The estimate uses the fastest layout of ranks: dp groups train on their own samples, and the bp x dap ranks of a
    group share a sample (bp: the two branches of a block; dap: parts of the streams). The operations, messages and
    memory of a rank are counted. Rates of named devices are published values for bfloat16; this machine is measured.
    """
    from helixfold.training.plan import plan_lines, published_step_lines

    for line in published_step_lines() if options.published_steps else plan_lines(options):
        print(line, flush=True)
