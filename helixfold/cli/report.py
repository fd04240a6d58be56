"""Define the command `helixfold report`, which writes the pages of finished targets and of their batch again."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from data_pipeline.errors import InputError
from helixfold.standard_streams import optional_output

SOME_FAILED = 1
app = App(
    name="report", usage="helixfold report DIRECTORY [--reference FILE...]\nexample: helixfold report predictions/"
)


@app.default
@optional_output()
def report(
    directory: Path,
    /,
    *,
    reference: Annotated[tuple[Path, ...], Parameter(metavar="FILE...", consume_multiple=True)] = (),
) -> int:
    """Rewrite the pages of finished predictions: report.html of every target, ensemble.html of targets with more than
    five predictions, and index.html and pulldown.html of the batch. All pages work offline.

    Parameters
    ----------
    directory
        Output directory of `helixfold predict`, or the directory of one target in it.
    reference
        Structures (mmCIF or PDB), such as two known conformations; ensemble.html compares all predictions with them.
    """
    from helixfold.report.ensemble import PAGE_FILE as ENSEMBLE_FILE
    from helixfold.report.ensemble import write_ensemble
    from helixfold.report.files import RANKING
    from helixfold.report.index import INDEX_FILE, write_index
    from helixfold.report.page import counted
    from helixfold.report.pulldown import PAGE_FILE, write_pulldown
    from helixfold.report.target_page import REPORT_FILE, write_report

    if not directory.is_dir():
        raise InputError.at(directory, "no such directory; name one that `helixfold predict` wrote")
    if (directory / RANKING).is_file():
        if write_ensemble(directory, references=reference):
            print(directory / ENSEMBLE_FILE)
        write_report(directory)
        print(directory / REPORT_FILE)
        return 0
    targets = sorted(path.parent for path in directory.glob(f"*/{RANKING}"))
    if not targets:
        raise InputError.at(directory, f"no finished target is here or one level below (there is no {RANKING})")
    failed = 0
    for target in targets:
        try:
            write_ensemble(target, references=reference)
            write_report(target)
        except (InputError, OSError) as error:
            failed += 1
            print(f"helixfold: {target.name}: no report: {error}", file=sys.stderr)
    write_index(directory)
    print(f"{directory / INDEX_FILE}: {len(targets) - failed} of {counted(len(targets), 'report')} written")
    if write_pulldown(directory):
        print(directory / PAGE_FILE)
    return SOME_FAILED if failed else 0
