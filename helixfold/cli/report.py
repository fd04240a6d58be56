"""Define the command `helixfold report`, which rewrites the report pages of finished predictions."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from data_pipeline.io.errors import InputError
from helixfold.cli.command import Command
from helixfold.runtime.standard_streams import optional_output, print_note, print_summary

if TYPE_CHECKING:
    from helixfold.results.packed import PackedResults

app = Command(
    name="report",
    usage="helixfold report DIRECTORY [--reference FILE...] [--unpack]\nexample: helixfold report predictions/",
)


@app.default
@optional_output()
def report(
    directory: Path,
    /,
    *,
    reference: Annotated[tuple[Path, ...], Parameter(metavar="FILE...", consume_multiple=True)] = (),
    unpack: bool = False,
) -> int:
    """Rewrite the pages of finished predictions: report.html of every target, ensemble.html of targets with more than
    five predictions, and index.html and pulldown.html of the batch. All pages work offline. A packed target has a line
    in the pages of the batch; name it, as in predictions/protein, to unpack it and write its report.

    Parameters
    ----------
    directory
        Output directory of `helixfold predict`, or the directory of one target in it. Or results of ColabFold,
        AlphaFold 2 or AlphaFold DB: report.html is then written next to them, or <target>_report.html for several
        targets.
    reference
        Structures (mmCIF or PDB), such as two known conformations; ensemble.html compares all predictions with them.
    unpack
        Unpack all packed targets into directories, and write their reports, too.
    """
    from helixfold.report.ensemble import write_ensemble
    from helixfold.report.index import write_index
    from helixfold.report.load import write_reports_of_others
    from helixfold.report.page import counted
    from helixfold.report.pulldown import write_pulldown
    from helixfold.report.target_page import write_report
    from helixfold.results.failures import SOME_FAILED
    from helixfold.results.file_table import ENSEMBLE_PAGE, INDEX, PULLDOWN_PAGE, RANKING, REPORT
    from helixfold.results.packed import PackedResults

    with PackedResults(directory.parent) as packed_beside:
        if directory.name in packed_beside:
            print_note(f"{directory}: unpacked from {packed_beside.archive_of(directory.name)}")
            packed_beside.restore(directory.name)
    if not directory.is_dir():
        raise InputError.at(directory, "no such directory; name one that `helixfold predict` wrote")
    if pages := write_reports_of_others(directory):
        for page in pages:
            print_summary(page)
        return 0
    if RANKING.path(directory).is_file():
        if write_ensemble(directory, references=reference):
            print_summary(ENSEMBLE_PAGE.path(directory))
        write_report(directory)
        print_summary(REPORT.path(directory))
        return 0
    packed = PackedResults(directory)
    for problem in packed.problems.values():
        print(f"helixfold: {problem}; its targets are left out", file=sys.stderr)
    failed = _unpack_all(packed) if unpack else 0
    targets = sorted(path.parent for path in directory.glob(f"*/{RANKING.name()}"))
    in_archives = len(packed.names())
    if not targets and not in_archives:
        raise InputError.at(directory, f"no finished target is here or one level below (there is no {RANKING.name()})")
    written = 0
    for target in targets:
        try:
            write_ensemble(target, references=reference)
            write_report(target)
            written += 1
        except (InputError, OSError) as error:
            failed += 1
            print(f"helixfold: {target.name}: no report: {error}", file=sys.stderr)
    write_index(directory)
    report_count = f"{written} of {counted(len(targets), 'report')} written"
    others = ""
    if in_archives:
        advice = f"name one, such as {directory / min(packed.names())}, to unpack it, or pass --unpack for all"
        others = f"; {counted(in_archives, 'target')} packed; {advice}"
    print_summary(f"{INDEX.path(directory)}: {report_count}{others}")
    if write_pulldown(directory):
        print_summary(PULLDOWN_PAGE.path(directory))
    return SOME_FAILED if failed else 0


def _unpack_all(packed: "PackedResults") -> int:
    """Unpack all packed targets into directories, and return the number of those that cannot be unpacked."""
    failed = 0
    with packed:
        for name in packed.names():
            try:
                packed.restore(name)
            except InputError as error:
                failed += 1
                print(f"helixfold: {name}: not unpacked: {error}", file=sys.stderr)
    return failed
