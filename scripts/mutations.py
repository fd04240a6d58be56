"""Break the code on purpose, one mistake after another, and see what the tests miss: `python scripts/mutations.py`.

The mistakes are listed in tests/mutations/*.toml, each with the tests that should catch it. They are made in a
temporary copy of the project. Words as arguments choose those mistakes whose file, change or tests contain one of them.
Exit code 1: fewer than 98 % were caught.
"""

import os
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import traceback
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLES = ROOT / "tests" / "mutations"
# Seconds after which a test that hangs counts as failed.
TIMEOUT = 180.0
# Share of the mistakes that the tests must catch.
REQUIRED = 0.98
# Exit codes of pytest.
PASSED, FAILED, BROKEN = 0, 1, 3


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """A change to one file that gives wrong results, and the tests that should fail because of it."""

    change: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def applied(self, source: str) -> str:
        """Return the source with the mistake; raise ValueError unless the old text occurs exactly once."""
        if (count := source.count(self.old)) != 1:
            raise ValueError(f"{self.file}: {self.old!r} of {self.change!r} occurs {count} times")
        return source.replace(self.old, self.new)


def read_mutations() -> list[Mutation]:
    """Read the tables of mistakes, in the order of their files' names."""
    tables = [tomllib.loads(path.read_text()) for path in sorted(TABLES.glob("*.toml"))]
    return [Mutation(**(entry | {"tests": tuple(entry["tests"])})) for table in tables for entry in table["mutation"]]


def main(words: list[str]) -> int:
    """Try the mistakes that contain one of the words, or all; return the exit code."""
    chosen = [
        mutation
        for mutation in read_mutations()
        if not words or any(word in f"{mutation.file} {mutation.change} {mutation.tests}" for word in words)
    ]
    if not chosen:
        raise SystemExit(f"no mistake has one of the words {', '.join(words)} in its file, change or tests")
    os.environ.setdefault("HELIXFOLD_SHARED", str(ROOT.parent / "shared"))
    with tempfile.TemporaryDirectory(prefix="mutations") as directory:
        copy = Path(directory) / ROOT.name
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "__pycache__", "build", "dist"))
        os.chdir(copy)
        os.environ["PYTHONPATH"] = str(copy)
        sys.path[:0] = [str(copy)]
        tests = sorted({test for mutation in chosen for test in mutation.tests})
        if _run(tests, copy.parent / "unchanged.txt") != PASSED:
            print((copy.parent / "unchanged.txt").read_text())
            print("the tests must pass before anything is changed")
            return 1
        survived = [mutation for mutation in chosen if not _is_caught(mutation, copy)]
    caught = len(chosen) - len(survived)
    print(f"caught {caught} of {len(chosen)}")
    return 0 if caught >= REQUIRED * len(chosen) else 1


def _is_caught(mutation: Mutation, copy: Path) -> bool:
    """Make the mistake, run its tests, print a line, and undo the mistake."""
    path, log = copy / mutation.file, copy.parent / "mutated.txt"
    source, start = path.read_text(), time.monotonic()
    path.write_text(mutation.applied(source))
    _forget_bytecode(path)
    try:
        code = _run(list(mutation.tests), log)
    finally:
        path.write_text(source)
        _forget_bytecode(path)
    if code not in (PASSED, FAILED):
        print(log.read_text())
    result = {PASSED: "SURVIVED", FAILED: "caught"}.get(code, f"pytest gave {code}")
    print(f"{result:9} {time.monotonic() - start:5.1f} s  {mutation.file}: {mutation.change}", flush=True)
    return code == FAILED


def _forget_bytecode(path: Path) -> None:
    """Remove what Python keeps of a file, which is told from a changed one by size and second only."""
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        compiled.unlink()


def _run(tests: list[str], log: Path) -> int:
    """Run tests in a child that has large libraries loaded already; return pytest's exit code, that of a failure if it
    hangs.
    """
    import pytest  # noqa: PLC0415
    import torch  # noqa: F401, PLC0415

    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            with log.open("w") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            code = int(pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]))
        except BaseException:  # the child must not go on as its parent does
            traceback.print_exc()
            code = BROKEN
        sys.stdout.flush()
        os._exit(code)
    end = time.monotonic() + TIMEOUT * max(1, len(tests) / 3)
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
