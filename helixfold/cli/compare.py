"""Define the command `helixfold compare`, which shows in what two results differ that made them."""

import json
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from helixfold.standard_streams import optional_output

DIFFERENT = 1
app = App(name="compare", usage="helixfold compare RESULT RESULT [--json]")


@app.default
@optional_output()
def compare(first: Path, second: Path, /, *, as_json: Annotated[bool, Parameter(name="--json")] = False) -> int:
    """Show in what two results differ that made them: inputs, options, weights, seeds, programs, device, operators,
    command. Structures are compared by `helixfold evaluate`.

    The exit code is 0 if all is the same, 1 if not, and 2 for what is no result.

    Parameters
    ----------
    first
        Directory of a target, or its settings.json.
    second
        The same of another result.
    as_json
        Print one JSON object for programs, with whole values.
    """
    from helixfold.report.provenance_comparison import compare_provenance

    found = compare_provenance(first, second)
    if as_json:
        content = {"first": str(first), "second": str(second), "differences": found.differences, "same": found.same}
        print(json.dumps(content, indent=1))
    else:
        print("\n".join(found.lines()))
    return DIFFERENT if found.differences else 0
