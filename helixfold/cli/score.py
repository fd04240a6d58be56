"""Define the command `helixfold score`, which scores structures by what a network makes of them."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from helixfold.scoring.options import ScoreOptions

_EXAMPLES = """examples:
  helixfold score decoys/ --reference native.pdb
      every structure of a directory, and how well the scores rank them
  helixfold score --rescore predictions/ colabfold/ --model model_2_ptm
      all ranked models of earlier predictions, by another model
  helixfold score --binders designs/
      complexes of designed binders with their target, ranked by the error between both

Run the same command again to go on: finished structures are not scored again.
"""
_USUAL = ScoreOptions()
app = App(name="score", usage="helixfold score STRUCTURE... [--output DIR] [options]", help_epilogue=_EXAMPLES)


@app.default
def score(
    *structures: Annotated[Path, Parameter(name="STRUCTURE", required=True)], options: ScoreOptions = _USUAL
) -> int:
    """Score structures of any program by what a network makes of them, without an alignment, and rank them: decoys of a
    target, ranked models, designed binders.

    Parameters
    ----------
    structures
        Structure files, PDB or mmCIF (.gz too), and directories of them, or of directories of them by target.
    """
    from helixfold.imports import collecting_no_garbage

    with collecting_no_garbage():
        from helixfold.scoring.score_run import score as run

    return run(replace(options, inputs=structures))
