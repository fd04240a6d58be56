"""Define the command `helixfold doctor`, which shows what this machine has and what each target would use."""

from itertools import chain
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from helixfold.predict.options import TARGETS, OperatorOptions, SearchOptions

_SEARCH, _OPERATORS = SearchOptions(), OperatorOptions()
app = App(name="doctor", usage="helixfold doctor [FILE...] [options]")


@app.default
def doctor(
    *inputs: Annotated[Path, Parameter(name="FILE", group=TARGETS)],
    search: SearchOptions = _SEARCH,
    operators: OperatorOptions = _OPERATORS,
) -> None:
    """Show machine, parameters, search programs and databases; what targets would be made from; and, for a number of
    residues, how much memory each model takes and what computes each operator.

    Parameters
    ----------
    inputs
        Targets, as for `helixfold predict`.
    """
    from helixfold.benchmark.operators import operator_table
    from helixfold.predict.doctor import memory_table, report
    from helixfold.predict.search_plan import profile_of, server_of
    from helixfold.predict.targets import read_targets

    targets = read_targets(inputs, search.msa, search.templates or ())
    parts = (
        report(profile_of(search), targets, server_of(search)),
        [""],
        memory_table(operators.device, operators.length),
        [""],
        operator_table(operators),
    )
    for line in chain.from_iterable(parts):
        print(line, flush=True)
