"""A copy of the repository in which mistakes are made, and the tests that run there."""

import ast
import os
import shutil
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import count
from pathlib import Path

from scripts.mistakes import Mistake, apply

ROOT = Path(__file__).resolve().parents[1]
# Seconds without the end of a test after which it counts as failed.
TIMEOUT = 300.0
# Exit codes of pytest with nothing wrong: all passed, or none was chosen.
FINE = (0, 5)


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
        # Numba notices changes to a function's own file, but not to the functions it calls.
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
