"""Define the command `helixfold score`, which ranks structures by the confidence of the network."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from helixfold.apps.score.options import ScoreOptions
from helixfold.cli.command import Command
from helixfold.runtime.options import MOST_USED

_HELP_EXAMPLES = """more examples:
  helixfold score --rescore predictions/ colabfold/ --model model_2_ptm
      score the ranked models of earlier predictions with another model
  helixfold score --binders designs/
      rank complexes by the predicted error between binder and target

Run the same command again to resume: finished structures are kept.
"""
_USAGE = (
    "helixfold score STRUCTURE... [--output DIR] [options]\nexample: helixfold score decoys/ --reference native.pdb"
)
_DEFAULT_OPTIONS = ScoreOptions()
app = Command(name="score", usage=_USAGE, help_epilogue=_HELP_EXAMPLES)


@app.default
def score(
    *structures: Annotated[Path, Parameter(name="STRUCTURE", required=True, group=MOST_USED)],
    options: ScoreOptions = _DEFAULT_OPTIONS,
) -> int:
    """Rank structures from any program by the confidence that the network gives them, without an alignment: decoys,
    ranked models, designed binders.

    Parameters
    ----------
    structures
        PDB or mmCIF files (.gz too), or directories of them, with one subdirectory per target if there are several.
    """
    from helixfold.runtime.imports import collecting_no_garbage

    with collecting_no_garbage():
        from helixfold.apps.score.score_run import score as run
        from helixfold.runtime.screen import logged_screen

    with logged_screen(options.log_file):
        return run(replace(options, inputs=structures))
