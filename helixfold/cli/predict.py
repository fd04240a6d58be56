"""Define the command `helixfold predict`, which predicts structures from sequences and alignments."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from helixfold.apps.options import PredictOptions
from helixfold.apps.predict.compat import CompatibilityOptions, listing, resolve
from helixfold.cli.command import Command
from helixfold.cli.main import exit_code
from helixfold.runtime.options import MOST_USED

if TYPE_CHECKING:
    from data_pipeline.features.complexes.complex_input import AnyTarget

_HELP_EXAMPLES = """more examples:
  helixfold predict --example
      predict the protein that comes with helixfold, to try the installation
  helixfold predict msas/ --preset monomer_ptm --num-seeds 2 --output results
      predict every a3m file of a directory with five models and two seeds each
  helixfold predict proteins.csv --databases /data/alphafold --dry-run
      show how much memory and time a batch takes, without predicting anything

Run the same command again to resume: finished predictions are kept.
"""
_USAGE = "helixfold predict FILE... [--output DIR] [options]\nexample: helixfold predict protein.fasta --msa-server"
_DEFAULT_OPTIONS, _DEFAULT_COMPATIBILITY = PredictOptions(), CompatibilityOptions()
app = Command(name="predict", usage=_USAGE, help_epilogue=_HELP_EXAMPLES)


@app.default
def predict(
    *inputs: Annotated[Path, Parameter(name="FILE", group=MOST_USED)],
    options: PredictOptions = _DEFAULT_OPTIONS,
    others: CompatibilityOptions = _DEFAULT_COMPATIBILITY,
    command: Annotated[tuple[str, ...], Parameter(parse=False)] = (),
) -> int:
    """Predict the structures of proteins and complexes. Each target gets its own output directory with PDB and mmCIF
    files, confidences, plots and a report page.

    Parameters
    ----------
    inputs
        Sequences to predict: FASTA files, tables (.csv, .tsv with columns id and sequence), a3m alignments, directories
        of such files, or sequences of at least ten residues typed here.
    """
    if others.other_names:
        print("\n".join(listing()))
        return 0
    from helixfold.apps.fetched_inputs import with_fetched_inputs

    return predict_on_devices(with_fetched_inputs(resolve(replace(options, inputs=inputs, command=command), others)))


def predict_on_devices(options: PredictOptions, given_targets: "Sequence[AnyTarget] | None" = None) -> int:
    """Predict `given_targets`, or the targets in the files of the options, in one process per device or on a cluster.

    Return the exit code: 0, or 1 or 3 if a target failed. Raise `InputError` for invalid input found in this process;
    other processes print the error and return 2.
    """
    if options.cluster is not None:
        from helixfold.apps.cluster.run import run as run_on_cluster

        return run_on_cluster(options, given_targets)
    from helixfold.runtime.imports import collecting_no_garbage

    with collecting_no_garbage():
        from helixfold.apps.predict.devices import processes
        from helixfold.apps.predict.run import run
        from helixfold.apps.predict.runner import close_batch
        from helixfold.parallel.launch import launch
        from helixfold.results.lock import LOCK_FILE
        from helixfold.runtime.screen import logged_screen
        from helixfold.runtime.standard_streams import optional_output

    started = processes(options.devices, options.device, options.ranks_per_target)
    if started is None:
        return run(options, given_targets)
    here = replace(options, devices=None)
    ending = launch(
        exit_code,
        partial(run, here, given_targets),
        count=started.count,
        ranks_per_task=options.ranks_per_target,
        environment=started.environment,
    )
    # Do not create an output directory again that was moved with its lock.
    if ending.unclosed is None or not (options.output / LOCK_FILE).exists():
        return ending.code
    with logged_screen(options.log_file), optional_output():
        return close_batch(ending.unclosed.failures(), len(ending.unclosed), options.output)
