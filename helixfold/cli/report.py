"""`helixfold report`: the pages of finished targets and of their batch, made anew from the files that are there."""

import argparse
import sys
from pathlib import Path

from data_pipeline.errors import InputError
from helixfold.report.files import RANKING
from helixfold.report.index import INDEX_FILE, Index
from helixfold.report.target_page import REPORT_FILE, write_report

SOME_FAILED = 1


def report(directory: Path) -> int:
    """Write the pages of a target's directory or of a whole output directory; 1 if some target's files are damaged.

    Raises `InputError` where no finished target is.
    """
    if not directory.is_dir():
        raise InputError.at(directory, "no such directory; name one that `helixfold predict` wrote")
    if (directory / RANKING).is_file():
        write_report(directory)
        print(directory / REPORT_FILE)
        return 0
    targets = sorted(path.parent for path in directory.glob(f"*/{RANKING}"))
    if not targets:
        raise InputError.at(directory, f"no finished target is here or one level below (there is no {RANKING})")
    failed = 0
    for target in targets:
        try:
            write_report(target)
        except (InputError, OSError) as error:
            failed += 1
            print(f"helixfold: {target.name}: no report: {error}", file=sys.stderr)
    Index(directory).write()
    print(f"{directory / INDEX_FILE}: {len(targets) - failed} of {len(targets)} reports written")
    return SOME_FAILED if failed else 0


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "report",
        help="make the report pages of finished targets anew",
        description="Make report.html of every finished target anew, and index.html of their batch, from the files "
        "that `helixfold predict` wrote. The pages are offline: open them in any browser.",
    )
    parser.add_argument("directory", type=Path, help="the output directory, or the directory of one target in it")
    parser.set_defaults(run=lambda options: report(options.directory))
