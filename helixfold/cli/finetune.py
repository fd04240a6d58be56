"""Define the command `helixfold finetune`, which adapts a trained model to your own data."""

from pathlib import Path

from data_pipeline.io.errors import InputError
from helixfold.cli.command import Command
from helixfold.training.finetune.options import FinetuneOptions

_HELP_EXAMPLES = """more examples:
  helixfold finetune kinases/ --held-out kinases.txt --output kinases_lora
      compare the held-out chains before and after
  helixfold predict protein.fasta --adapter kinases_lora/adapter.safetensors
      predict with the trained adapter
  helixfold finetune --jobs jobs.toml --output many
      run several fine-tunings over one set of parameters in memory

Run the same command again to resume.
"""
_USAGE = (
    "helixfold finetune TRAINING_SET --output DIR [options]\nexample: helixfold finetune kinases/ --output kinases_lora"
)
_DEFAULT_OPTIONS = FinetuneOptions()
app = Command(name="finetune", usage=_USAGE, help_epilogue=_HELP_EXAMPLES)


@app.default
def finetune(training_set: Path | None = None, /, *, options: FinetuneOptions = _DEFAULT_OPTIONS) -> int:
    """Adapt a trained model to a training set made by `helixfold features`, or to values in a table: with a low-rank
    adapter, or by training the heads or all parameters.

    Parameters
    ----------
    training_set
        Training set. Required, like --output, except with --jobs, --show-settings or --dry-run.
    """
    from helixfold.execution.allocator import keeping_freed_memory
    from helixfold.planning.passes import KEPT_BLOCKS
    from helixfold.training.finetune import run

    if options.show_settings:
        print("\n".join(run.settings_lines(options)))
        return 0
    if options.dry_run:
        print("\n".join(run.dry_run_lines(options)))
        return 0
    if options.output is None:
        raise InputError("pass --output, the directory of the run (or only --show-settings or --dry-run)")
    table, jobs = options.table, options.jobs
    if [training_set, table, jobs].count(None) != 2:
        raise InputError(
            "pass exactly one of a training set, a --table of values, and --jobs, a file of several fine-tunings"
        )
    if jobs is None and options.progress != "bars":
        raise InputError("--progress json is for --jobs; a single training writes log.jsonl")
    if options.new_parameters and training_set is None:
        raise InputError("--new-parameters is for a training set; train the new parameters first")
    with keeping_freed_memory(KEPT_BLOCKS):
        if jobs is not None:
            return run.finetune_jobs(jobs, options, options.output)
        if table is not None:
            from helixfold.training.finetune.task_command import finetune_task

            return finetune_task(table, options, options.output)
        assert training_set is not None
        return run.finetune(training_set, options, options.output)
