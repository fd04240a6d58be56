"""A copy of the repository for mutation tests: select tests, and run them with deliberate mistakes."""

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
# Seconds after which a test counts as failed.
TIMEOUT = 300.0
# Exit codes of pytest without a failure: all tests passed, or none was selected.
FINE = (0, 5)


class ImportingTests:
    """The test files of a repository, ordered by their imports of a module."""

    def __init__(self, root: Path) -> None:
        paths = [
            path for top in ("data_pipeline", "helixfold", "scripts", "tests") for path in (root / top).rglob("*.py")
        ]
        self._names = {str(path.relative_to(root)): _dotted_name(path.relative_to(root)) for path in sorted(paths)}
        paths_by_name = {name: path for path, name in self._names.items()}
        self._imports = {
            path: {paths_by_name[name] for name in _imported(root / path) if name in paths_by_name}
            for path in self._names
        }
        self.all = [path for path in self._names if Path(path).name.startswith("test_") and path.startswith("tests/")]

    def direct(self, module: str) -> list[str]:
        """Return the test with the name of the module, then tests that import it, first those with few imports."""
        path = Path(module)
        parts = [path.parts[1:-1], path.parts[:-1]]
        mirrors = [str(Path("tests", *folders, f"test_{path.name}")) for folders in parts]
        if path.is_relative_to("helixfold/ops"):
            mirrors.append("tests/ops/test_backends.py")  # imports operators, which name their backends' modules
        importing = [test for test in self.all if module in self._imports[test]]
        importing.sort(key=lambda test: len(self._imports[test]))
        return list(dict.fromkeys([*(test for test in mirrors if test in self._imports), *importing]))

    def nearby(self, module: str) -> list[str]:
        """Return the test files that import the module indirectly, the nearest first."""
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
    """Return the names that a file imports anywhere, or contains as strings, as in `python -m`."""
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
    """The tests that began and the tests that failed, in order."""

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
        """Return the first test that fails because of mistakes, and exclude tests that fail without them."""
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
        """Run tests with mistakes, for at most `seconds` of CPU time unless 0."""
        selected = [test for test in tests if test not in self.failing]
        if not selected:
            return Run([], [])
        sources = {}
        for module in {mistake.module for mistake in mistakes}:
            sources[module] = (self.root / module).read_text()
            self._write(module, apply(sources[module], [mistake for mistake in mistakes if mistake.module == module]))
        try:
            return self._pytest(
                [*options, *(f"--deselect={test}" for test in self.failing), *selected], seconds, sources
            )
        finally:
            for module, source in sources.items():
                self._write(module, source)

    def _write(self, module: str, source: str) -> None:
        """Write a file with a unique time: Python and Numba identify compiled files by size and time in seconds."""
        path, now = self.root / module, next(self._times)
        path.write_text(source)
        os.utime(path, (now, now))

    def _pytest(self, arguments: list[str], seconds: float, changed: Iterable[str]) -> Run:
        """Run pytest in a child process, in which large libraries are already imported."""
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
        with suppress(ProcessLookupError):  # including processes that tests left running
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
    """A pytest plugin that logs which tests begin and fail, and ends the run after `seconds` of CPU time."""

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
    """Run pytest and exit this process."""
    code = 3
    try:
        os.setsid()
        with (root.parent / "output").open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        work = root.parent / "work"
        shutil.rmtree(work, ignore_errors=True)
        # Numba detects changes of the file of a function, but not of the functions that it calls.
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
    except BaseException:  # the child must not continue with the code of its parent
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code)


def _file(test: str) -> str:
    return test.partition("::")[0]
