"""Define the command `helixfold finetune`, which adapts a trained model to proteins of one's own."""

from pathlib import Path

from cyclopts import App

from data_pipeline.errors import InputError
from helixfold.finetune.options import FinetuneOptions

_EXAMPLES = """examples:
  helixfold finetune kinases/ --weights params_model_1_ptm.npz --held-out kinases.txt --output kinases_lora
      train low-rank changes of the attention, and compare held-out chains before and after
  helixfold predict protein.fasta --weights params_model_1_ptm.npz --adapter kinases_lora/adapter.safetensors
      predict with them
  helixfold finetune --jobs jobs.toml --weights model_1_ptm.npz --output many
      several at once, over one set of parameters in memory

Run the same command again to go on.
"""
_USUAL = FinetuneOptions()
app = App(name="finetune", usage="helixfold finetune TRAINING_SET --output DIR [options]", help_epilogue=_EXAMPLES)


@app.default
def finetune(training_set: Path | None = None, /, *, options: FinetuneOptions = _USUAL) -> int:
    """Train a model further on a training set that `helixfold features` made: small changes of its weights, its heads,
    or all parameters.

    Parameters
    ----------
    training_set
        The training set; required, as --output is, except with --jobs, for --show-settings and --dry-run.
    """
    from helixfold.execution.allocator import keeping_freed_memory
    from helixfold.finetune import run
    from helixfold.planning.training import KEPT_BLOCKS

    if options.show_settings:
        print("\n".join(run.settings_lines(options)))
        return 0
    if options.dry_run:
        print("\n".join(run.forecast_of(options)))
        return 0
    if options.output is None:
        raise InputError("name --output, the directory of the run (or --show-settings or --dry-run alone)")
    table, jobs = options.task.table, options.several.jobs
    if [training_set, table, jobs].count(None) != 2:
        raise InputError("name one of a training set, a --table of values, and --jobs, a file of several fine-tunings")
    with keeping_freed_memory(KEPT_BLOCKS):
        if jobs is not None:
            return run.finetune_jobs(jobs, options, options.output)
        if table is not None:
            from helixfold.finetune.task_command import finetune_task

            return finetune_task(table, options, run.values_of(options), options.output)
        assert training_set is not None
        return run.finetune(training_set, options, options.output)
