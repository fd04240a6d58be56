"""Make mistakes in the code on purpose and count what the tests catch: `python scripts/mutations.py`.

The mistakes come from lists (tests/mutations/*.toml unless others are named; scripts/mistakes.py describes their
format) or, with --modules, are drawn at random. Each is made in a temporary copy of the repository, and the test files
that import its module run, then for some time those that import it through others, and with --whole all tests.
cosmic-ray and mutmut do not fit: one runs a fixed command for each mistake in a new process, the other wraps functions
in dispatchers that Triton and Numba cannot compile, and neither takes mistakes written by hand or leaves a choice of
tests to the project.
"""

import argparse
import ast
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter, deque
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from importlib import import_module
from importlib.util import find_spec
from itertools import count, groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # as a script, Python finds only this folder

from scripts.mistakes import Mistake, apply, draw_mistakes, find_pattern, read_list  # noqa: E402

LISTS = ROOT / "tests" / "mutations"
# Seconds without the end of a test after which it counts as failed.
TIMEOUT = 300.0
# Loaded once, before children run tests. Not plugins of pytest, which must come after it has begun, and not Numba and
# Triton, which read the environment when they are imported.
PRELOADED = ("pytest", "torch", "scipy.optimize", "beartype", "einops", "matplotlib", "gemmi")
# Exit codes of pytest with nothing wrong: all passed, or none was chosen.
FINE = (0, 5)
STAGES = ("direct", "nearby", "whole")


class ImportingTests:
    """The test files of a repository by what they import."""

    def __init__(self, root: Path) -> None:
        paths = [
            path for top in ("data_pipeline", "helixfold", "scripts", "tests") for path in (root / top).rglob("*.py")
        ]
        self._names = {str(path.relative_to(root)): _dotted_name(path.relative_to(root)) for path in sorted(paths)}
        known = {name: path for path, name in self._names.items()}
        self._imports = {
            path: {known[name] for name in _imported(root / path) if name in known} for path in self._names
        }
        self.all = [path for path in self._names if Path(path).name.startswith("test_") and path.startswith("tests/")]

    def direct(self, module: str) -> list[str]:
        """The test of the same name first, then those that import the module, the most specific ones first."""
        path = Path(module)
        parts = [path.parts[1:-1], path.parts[:-1]]
        mirrors = [str(Path("tests", *folders, f"test_{path.name}")) for folders in parts]
        chosen = [test for test in self.all if module in self._imports[test]]
        chosen.sort(key=lambda test: len(self._imports[test]))
        return list(dict.fromkeys([*(test for test in mirrors if test in self._imports), *chosen]))

    def nearby(self, module: str) -> list[str]:
        """The test files that import the module through others, the nearest first."""
        users: dict[str, list[str]] = {}
        for path, imports in self._imports.items():
            for name in imports:
                users.setdefault(name, []).append(path)
        reached, queue = {module: None}, deque([module])
        while queue:
            for user in users.get(queue.popleft(), ()):
                if user not in reached:
                    reached[user] = None
                    queue.append(user)
        direct = self.direct(module)
        return [path for path in reached if path in self.all and path not in direct]


def _dotted_name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _imported(path: Path) -> set[str]:
    """Names that a file imports anywhere, or has as a string, as in `python -m`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update((node.module, *(f"{node.module}.{alias.name}" for alias in node.names)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
    return names


@dataclass(frozen=True)
class Run:
    """The tests that began and those that failed, in order."""

    begun: list[str]
    failed: list[str]


@dataclass
class Copy:
    """A copy of the repository in which tests run, with and without mistakes."""

    root: Path
    failing: set[str] = field(default_factory=set)
    _unchanged: dict[tuple[str, ...], set[str]] = field(default_factory=dict)
    _times: "count[int]" = field(default_factory=lambda: count(int(time.time())))

    def first_failure(self, mistakes: list[Mistake], tests: list[str], seconds: float = 0) -> str | None:
        """The first test that fails because of mistakes; those that fail without them are left out from then on."""
        while True:
            run = self.run(mistakes, tests, "-x", seconds=seconds)
            if not run.failed or run.failed[0] in self.failing:
                return None
            begun = {_file(test) for test in (*run.begun, run.failed[0])}
            used = tuple(test for test in tests if _file(test) in begun) or tuple(tests)
            if used not in self._unchanged:
                self._unchanged[used] = set(self.run([], list(used)).failed)
                if any(test.startswith("pytest ") for test in self._unchanged[used]):
                    raise RuntimeError(f"the tests do not run: {(self.root.parent / 'output').read_text()}")
            if run.failed[0] not in self._unchanged[used]:
                return run.failed[0]
            self.failing |= self._unchanged[used]

    def run(self, mistakes: list[Mistake], tests: list[str], *options: str, seconds: float = 0) -> Run:
        """Run test files or tests with mistakes; end after some seconds of CPU time, unless they are 0."""
        chosen = [test for test in tests if test not in self.failing]
        if not chosen:
            return Run([], [])
        sources = {}
        for module in {mistake.module for mistake in mistakes}:
            sources[module] = (self.root / module).read_text()
            self._write(module, apply(sources[module], [mistake for mistake in mistakes if mistake.module == module]))
        try:
            return self._pytest([*options, *(f"--deselect={test}" for test in self.failing), *chosen], seconds, sources)
        finally:
            for module, source in sources.items():
                self._write(module, source)

    def _write(self, module: str, source: str) -> None:
        """Write a file with a time of its own: Python and Numba tell compiled files by time, in seconds, and size."""
        path, now = self.root / module, next(self._times)
        path.write_text(source)
        os.utime(path, (now, now))

    def _pytest(self, arguments: list[str], seconds: float, changed: Iterable[str]) -> Run:
        """Run pytest in a child that has large libraries loaded already."""
        log = self.root.parent / "log"
        plugin = _Log(log, seconds)
        log.write_text("")
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            _run_child(self.root, arguments, plugin, is_compiled=any("compiled" in path for path in changed))
        code, size, end = None, 0, time.monotonic() + TIMEOUT
        while code is None and time.monotonic() < end:
            time.sleep(0.05)
            pid, status = os.waitpid(child, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if pid else None
            if log.stat().st_size != size:
                size, end = log.stat().st_size, time.monotonic() + TIMEOUT
        with suppress(ProcessLookupError):  # also what tests have left running
            os.killpg(child, signal.SIGKILL)
        if code is None:
            os.waitpid(child, 0)
        lines = [line.split("\t") for line in log.read_text().splitlines()]
        begun, failed = ([test for kind, test in lines if kind == name] for name in ("begin", "fail"))
        is_over = any(kind == "over" for kind, _ in lines)
        if not failed and code not in FINE and not is_over:
            failed = begun[-1:] if code is None or code < 0 else [f"pytest ends with {code}"]
            failed = failed or ["pytest does not start"]
        return Run(begun, failed)


class _Log:
    """A plugin of pytest that writes which tests begin and fail, and ends the run after some seconds of CPU time."""

    def __init__(self, path: Path, seconds: float) -> None:
        self._path = path
        self._seconds = seconds
        self._parent = os.getpid()

    def _add(self, kind: str, test: str) -> None:
        with self._path.open("a") as file:
            file.write(f"{kind}\t{test}\n")

    def pytest_runtest_protocol(self, item, nextitem) -> None:  # type: ignore[no-untyped-def]
        if os.getppid() != self._parent:  # it was interrupted or killed
            os._exit(3)
        self._add("begin", item.nodeid)
        if self._seconds and sum(os.times()[:4]) > self._seconds:
            self._add("over", item.nodeid)
            item.session.shouldstop = "the time is over"

    def pytest_runtest_logreport(self, report) -> None:  # type: ignore[no-untyped-def]
        if report.failed:
            self._add("fail", report.nodeid)

    pytest_collectreport = pytest_runtest_logreport


def _run_child(root: Path, arguments: list[str], log: _Log, *, is_compiled: bool) -> None:
    """Run pytest and end this process."""
    code = 3
    try:
        os.setsid()
        with (root.parent / "output").open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        work = root.parent / "work"
        shutil.rmtree(work, ignore_errors=True)
        # Numba sees changes of the file of a function, but not of those of functions that it calls.
        cache = root.parent / "numba" / ("changed" if is_compiled else "unchanged")
        if is_compiled:
            shutil.rmtree(cache, ignore_errors=True)
        os.environ |= {"PYTHONPATH": str(root), "NUMBA_CACHE_DIR": str(cache)}
        for name in [name for name in sys.modules if name.split(".")[0] == "scripts"]:
            del sys.modules[name]
        sys.path[:] = [str(root), *(path for path in sys.path if Path(path).resolve() not in (ROOT, ROOT / "scripts"))]
        import pytest  # noqa: PLC0415

        options = ["-q", "-p", "no:cacheprovider", "-m", "not long", f"--basetemp={work}"]
        processes = ["-n", "0"] if find_spec("xdist") else []
        code = int(pytest.main([*options, *processes, *arguments], plugins=[log]))
    except BaseException:  # the child must not continue as its parent does
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code)


def _file(test: str) -> str:
    return test.partition("::")[0]


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
