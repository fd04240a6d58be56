"""Make deliberate mistakes in the code and count how many the tests catch: `python scripts/mutations.py`.

The mistakes come from lists (by default tests/mutations/*.toml; scripts/mistakes.py describes the format) or, with
--modules, are random. Each is made in a temporary copy of the repository. The test files that import its module run
first, then for a limited time those that import it indirectly, and with --whole all tests.

cosmic-ray and mutmut are not suitable: one runs a fixed command for each mistake in a new process, and the other wraps
functions in dispatchers that Triton and Numba cannot compile. Neither accepts handwritten mistakes or a selection of
tests.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from fnmatch import fnmatch
from importlib import import_module
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # Python finds only the folder of a script

from scripts.mistaken_copy import Copy, ImportingTests  # noqa: E402
from scripts.mistakes import Mistake, draw_mistakes, find_pattern, read_list  # noqa: E402

LISTS = ROOT / "tests" / "mutations"
# Imported once, before child processes run tests. Excluded are pytest plugins, which must be imported after its start,
# and Numba and Triton, which read the environment during import.
PRELOADED = ("pytest", "torch", "scipy.optimize", "beartype", "einops", "matplotlib", "gemmi")
STAGES = ("direct", "nearby", "whole")


# Workers, each with its own copy

_copy: Copy


def _start_worker(directory: str) -> None:
    global _copy  # noqa: PLW0603
    for name in PRELOADED:
        if find_spec(name.partition(".")[0]):
            import_module(name)
    root = Path(tempfile.mkdtemp(dir=directory)) / ROOT.name
    files = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, stdout=-1, check=True
    ).stdout
    for name in filter(None, files.decode().split("\0")):
        if (ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, root / name)
    os.chdir(root)
    _copy = Copy(root)


Result = dict[str, str | float | None]


def _try_alone(mistakes: list[Mistake], nearby_seconds: float) -> tuple[list[Result], set[str]]:
    """Run the tests of a module for each of its mistakes."""
    tests = ImportingTests(_copy.root)
    direct, nearby = tests.direct(mistakes[0].module), tests.nearby(mistakes[0].module)
    results = []
    for mistake in mistakes:
        start = time.monotonic()
        stage, test = "direct", _copy.first_failure([mistake], direct)
        if test is None and nearby_seconds:
            stage, test = "nearby", _copy.first_failure([mistake], nearby, nearby_seconds)
        results.append(_result(mistake, stage if test else "survived", test, time.monotonic() - start))
    return results, _copy.failing


def _result(mistake: Mistake, result: str, test: str | None = None, seconds: float = 0) -> Result:
    line = f"{result:9} {seconds:6.1f} s  {mistake.module}:{mistake.line} {mistake.function}: {mistake.about}"
    print(line + (f"  [{test}]" if test else ""), flush=True)
    place = {"module": mistake.module, "function": mistake.function, "line": mistake.line, "about": mistake.about}
    return {
        "list": mistake.origin,
        "package": mistake.package,
        "result": result,
        "test": test,
        "seconds": seconds,
        **place,
    }


def _failing_with(mistakes: list[Mistake], tests: list[str]) -> list[str]:
    """Return the tests that fail with mistakes and pass without them."""
    failed = _copy.run(mistakes, tests).failed
    unchanged = _copy.run([], failed).failed if failed else []
    return [test for test in failed if test not in unchanged]


def _first_failure(mistake: Mistake, tests: list[str]) -> str | None:
    return _copy.first_failure([mistake], tests)


def _try_together(survivors: list[Mistake], pool: ProcessPoolExecutor, jobs: int) -> dict[int, str]:
    """Run all tests with many mistakes together, then the failing tests with one mistake at a time.

    One mistake can hide another, so the remaining mistakes are retried until no more are caught. Return the tests that
    catch mistakes, by the index of the mistake.
    """
    files, caught, left = ImportingTests(ROOT).all, {}, set(range(len(survivors)))
    groups = _compatible_groups(survivors)
    while groups:
        group = groups.pop(0)
        together = [survivors[index] for index in group]
        parts = [pool.submit(_failing_with, together, files[start::jobs]) for start in range(jobs)]
        failed = [test for part in parts for test in part.result()]
        alone = {index: pool.submit(_first_failure, survivors[index], failed) for index in group if failed}
        new = {index: test for index, future in alone.items() if (test := future.result())}
        caught |= new
        left -= set(new)
        if new and (rest := [index for index in group if index in left]):
            groups.append(rest)
    return caught


def _compatible_groups(mistakes: list[Mistake]) -> list[list[int]]:
    """Return groups of indices of non-overlapping mistakes, with at most one mistake per function in a group."""
    groups: list[list[int]] = []
    for index, mistake in enumerate(mistakes):
        for group in groups:
            others = [mistakes[i] for i in group if mistakes[i].module == mistake.module]
            if not any(
                o.function == mistake.function or (o.start < mistake.end and mistake.start < o.end) for o in others
            ):
                group.append(index)
                break
        else:
            groups.append([index])
    return groups


# The command


def main(arguments: list[str] | None = None) -> int:
    """Make the mistakes, print and write the results, and return the exit code."""
    options = _options().parse_args(arguments)
    mistakes, invalid = _mistakes(options)
    for entry in invalid:
        print(f"invalid: {entry['list']}: {entry['about']}: {entry['reason']}")
    if options.check:
        print(f"{len(mistakes)} mistakes fit the code, {len(invalid)} do not")
        return 1 if invalid else 0
    os.environ.setdefault("HELIXFOLD_SHARED", str(ROOT.parent / "shared"))
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.pop("PYTEST_ADDOPTS", None)  # set by a test run that runs this script
    results, failing = _try_all(mistakes, options) if mistakes else ([], set())
    for test in sorted(failing):
        print(f"excluded because it fails without a mistake: {test}")
    print(table([*results, *invalid]))
    share = 1 - sum(entry["result"] in ("survived", "invalid") for entry in [*results, *invalid]) / max(
        1, len(results) + len(invalid)
    )
    print(f"caught {100 * share:.1f} %")
    if options.json:
        report = {"share": share, "left_out": sorted(failing), "mistakes": [*results, *invalid]}
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if share >= options.required else 1


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lists", nargs="*", type=Path, help="lists of mistakes (default: tests/mutations/*.toml)")
    parser.add_argument(
        "--modules", nargs="+", metavar="GLOB", default=[], help="make random mistakes in these modules"
    )
    parser.add_argument("--count", type=int, default=20, help="number of random mistakes (20)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (0)")
    parser.add_argument(
        "--match", metavar="WORD", default="", help="only mistakes with this word in the module, function or text"
    )
    parser.add_argument(
        "--check", action="store_true", help="only check that the patterns match, without running tests"
    )
    parser.add_argument(
        "--nearby",
        type=float,
        metavar="SECONDS",
        default=60,
        help="CPU seconds for tests that import a module indirectly (60; 0: none)",
    )
    parser.add_argument("--whole", action="store_true", help="run all tests for mistakes that the others miss")
    parser.add_argument("--jobs", type=int, default=1, help="number of parallel processes (1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file")
    parser.add_argument(
        "--required", type=float, metavar="SHARE", default=0, help="exit with code 1 if a smaller share is caught (0)"
    )
    return parser


def _mistakes(options: argparse.Namespace) -> tuple[list[Mistake], list[Result]]:
    """Return the selected mistakes, and the entries of lists that do not match the code."""
    mistakes: list[Mistake] = []
    invalid: list[Result] = []
    for path in options.lists or ([] if options.modules else sorted(LISTS.glob("*.toml"))):
        for pattern in read_list(path):
            try:
                mistakes.append(find_pattern(pattern, ROOT, path.stem))
            except (ValueError, SyntaxError) as error:
                package = "/".join(pattern.module.split("/")[:-1][:2])
                entry = {"list": path.stem, "package": package, "module": pattern.module, "function": pattern.function}
                invalid.append({**entry, "result": "invalid", "about": pattern.about, "reason": str(error)})
    if options.modules:
        files = [
            str(path.relative_to(ROOT)) for top in ("data_pipeline", "helixfold") for path in (ROOT / top).rglob("*.py")
        ]
        modules = [name for name in files if any(fnmatch(name, pattern) for pattern in options.modules)]
        mistakes += draw_mistakes(ROOT, modules, options.count, options.seed)
    selected = [entry for entry in mistakes if options.match in f"{entry.module} {entry.function} {entry.about}"]
    return selected, [
        entry for entry in invalid if options.match in f"{entry['module']} {entry['function']} {entry['about']}"
    ]


def _try_all(mistakes: list[Mistake], options: argparse.Namespace) -> tuple[list[Result], set[str]]:
    mistakes = sorted(mistakes, key=lambda mistake: mistake.module)
    groups = [list(group) for _, group in groupby(mistakes, lambda mistake: mistake.module)]
    context = multiprocessing.get_context("fork")
    with (
        tempfile.TemporaryDirectory(prefix="mutations", ignore_cleanup_errors=True) as directory,
        ProcessPoolExecutor(options.jobs, context, _start_worker, (directory,)) as pool,
    ):
        answers = list(pool.map(_try_alone, groups, [options.nearby] * len(groups)))
        results = [result for answer, _ in answers for result in answer]
        survived = [index for index, result in enumerate(results) if result["result"] == "survived"]
        if options.whole and survived:
            caught = _try_together([mistakes[index] for index in survived], pool, options.jobs)
            for position, test in caught.items():
                results[survived[position]] = _result(mistakes[survived[position]], "whole", test)
    return results, set().union(*(failing for _, failing in answers))


def table(results: list[Result]) -> str:
    """Return a table of counts by list and package."""
    columns = (*STAGES, "survived", "invalid")
    lines = [f"{'list':20} {'package':28} " + " ".join(f"{column:>8}" for column in columns)]
    counts = Counter((key, str(entry["result"])) for entry in results for key in (_key(entry), ("all", "")))
    for origin, package in [*sorted({_key(entry) for entry in results}), ("all", "")]:
        cells = " ".join(f"{counts[(origin, package), column]:8}" for column in columns)
        lines.append(f"{origin:20} {package:28} {cells}")
    return "\n".join(lines)


def _key(entry: Result) -> tuple[str, str]:
    return str(entry["list"]), str(entry["package"])


if __name__ == "__main__":
    sys.exit(main())
