"""Make mistakes in the code on purpose and count what the tests catch: `python scripts/mutations.py`.

The mistakes come from lists (tests/mutations/*.toml unless others are named; scripts/mistakes.py describes their
format) or, with --modules, are drawn at random. Each is made in a temporary copy of the repository, and the test files
that import its module run, then for some time those that import it through others, and with --whole all tests.
cosmic-ray and mutmut do not fit: one runs a fixed command for each mistake in a new process, the other wraps functions
in dispatchers that Triton and Numba cannot compile, and neither takes mistakes written by hand or leaves a choice of
tests to the project.
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
sys.path.insert(0, str(ROOT))  # as a script, Python finds only this folder

from scripts.mistaken_copy import Copy, ImportingTests  # noqa: E402
from scripts.mistakes import Mistake, draw_mistakes, find_pattern, read_list  # noqa: E402

LISTS = ROOT / "tests" / "mutations"
# Loaded once, before children run tests. Not plugins of pytest, which must come after it has begun, and not Numba and
# Triton, which read the environment when they are imported.
PRELOADED = ("pytest", "torch", "scipy.optimize", "beartype", "einops", "matplotlib", "gemmi")
STAGES = ("direct", "nearby", "whole")


# Workers: each has a copy of its own

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
    """Run the tests near a module for each of its mistakes."""
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
    """The tests that fail with mistakes and pass without them."""
    failed = _copy.run(mistakes, tests).failed
    unchanged = _copy.run([], failed).failed if failed else []
    return [test for test in failed if test not in unchanged]


def _first_failure(mistake: Mistake, tests: list[str]) -> str | None:
    return _copy.first_failure([mistake], tests)


def _try_together(survivors: list[Mistake], pool: ProcessPoolExecutor, jobs: int) -> dict[int, str]:
    """Run all tests with many mistakes at once, then those that fail with one mistake at a time.

    A mistake can hide another: what is left is tried again until nothing more is caught. Return the tests that catch
    mistakes by their indices.
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
    """Indices of mistakes in groups of which each has at most one mistake in a function, and none that overlap."""
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
    """Make the mistakes, print and write results; return the exit code."""
    options = _options().parse_args(arguments)
    mistakes, invalid = _mistakes(options)
    for entry in invalid:
        print(f"invalid: {entry['list']}: {entry['about']}: {entry['reason']}")
    if options.check:
        print(f"{len(mistakes)} mistakes fit the code, {len(invalid)} do not")
        return 1 if invalid else 0
    os.environ.setdefault("HELIXFOLD_SHARED", str(ROOT.parent / "shared"))
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.pop("PYTEST_ADDOPTS", None)  # options of a test run that runs this script
    results, failing = _try_all(mistakes, options) if mistakes else ([], set())
    for test in sorted(failing):
        print(f"left out, as it fails without a mistake: {test}")
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
    parser.add_argument("--modules", nargs="+", metavar="GLOB", default=[], help="draw mistakes at random from these")
    parser.add_argument("--count", type=int, default=20, help="how many to draw (20)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draw (0)")
    parser.add_argument("--match", metavar="WORD", default="", help="only those whose module, function or text has it")
    parser.add_argument(
        "--check", action="store_true", help="only look whether the patterns fit, without running tests"
    )
    parser.add_argument(
        "--nearby",
        type=float,
        metavar="SECONDS",
        default=60,
        help="CPU time for tests that import a module through others (60; 0: none)",
    )
    parser.add_argument("--whole", action="store_true", help="run all tests for what the others miss")
    parser.add_argument("--jobs", type=int, default=1, help="mistakes tried at a time (1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    parser.add_argument("--required", type=float, metavar="SHARE", default=0, help="exit code 1 below this share (0)")
    return parser


def _mistakes(options: argparse.Namespace) -> tuple[list[Mistake], list[Result]]:
    """The mistakes that are asked for, and the entries of lists that do not fit the code."""
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
    chosen = [entry for entry in mistakes if options.match in f"{entry.module} {entry.function} {entry.about}"]
    return chosen, [
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
    """Counts by list and package."""
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
