"""Define the command `helixfold doctor`, which checks the installation on this machine."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from helixfold.apps.options import TARGETS, OperatorOptions, SearchOptions
from helixfold.cli.command import Command

_DEFAULT_SEARCH, _DEFAULT_OPERATORS = SearchOptions(), OperatorOptions()
app = Command(name="doctor", usage="helixfold doctor [FILE...] [options]\nexample: helixfold doctor")


@app.default
def doctor(
    *inputs: Annotated[Path, Parameter(name="FILE", group=TARGETS)],
    search: SearchOptions = _DEFAULT_SEARCH,
    operators: OperatorOptions = _DEFAULT_OPERATORS,
) -> None:
    """Check this installation: devices, memory, models and the lengths that fit, configuration files, search programs
    and databases. With FILE, also show which alignments, templates and models each target would use.

    Parameters
    ----------
    inputs
        Targets, as in `helixfold predict`.
    """
    from data_pipeline.features.complexes.target_files import read_targets
    from data_pipeline.io.site_configuration import without_configuration
    from helixfold.apps.predict.doctor import configuration_facts, facts, report
    from helixfold.apps.search_plan import profile_of, server_of, with_site_sources
    from helixfold.benchmark.operators import operator_backends, operator_lines

    targets = read_targets(inputs, search.msa, search.templates or ())
    configuration = configuration_facts()
    # If a configuration file has an error, report everything else with the built-in defaults.
    with nullcontext() if configuration["error"] is None else without_configuration():
        search = with_site_sources(search, targets, announce=False)
        checks = facts(profile_of(search), targets, server_of(search), operators.length, operators.device)
        checks["configuration"] = configuration
        if operators.operators:
            checks["operators"] = operator_backends(operators)
        if operators.json:
            print(json.dumps(checks, indent=1))
            return
        for line in report(checks):
            print(line, flush=True)
        if operators.operators:
            print("", *operator_lines(operators, checks["operators"]), sep="\n")
