"""Define the command `helixfold compare`, which compares how two results were produced."""

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from helixfold.cli.command import Command
from helixfold.runtime.standard_streams import optional_output

DIFFERENT = 1  # the exit code for results that differ
app = Command(
    name="compare",
    usage="helixfold compare FIRST SECOND [--json]\nexample: helixfold compare run1/protein run2/protein",
)


@app.default
@optional_output()
def compare(first: Path, second: Path, /, *, as_json: Annotated[bool, Parameter(name="--json")] = False) -> int:
    """Compare how two results were produced: inputs, options, weights, seeds, programs, device, operators and command.
    To compare the structures themselves, use `helixfold evaluate`.

    The exit code is 0 if nothing differs, 1 if something does, and 2 if an argument is not a result.

    Parameters
    ----------
    first
        Output directory of a target, packed or not, or its settings.json.
    second
        The same for another result.
    as_json
        Print one JSON object with complete values.
    """
    from helixfold.report.provenance import compare_provenance
    from helixfold.results.packed import readable_target

    with readable_target(first) as one, readable_target(second) as other:
        comparison = compare_provenance(one, other)
    if as_json:
        content = {
            "first": str(first),
            "second": str(second),
            "differences": comparison.differences,
            "same": comparison.same,
        }
        print(json.dumps(content, indent=1))
    else:
        print("\n".join(comparison.lines()))
    return DIFFERENT if comparison.differences else 0
