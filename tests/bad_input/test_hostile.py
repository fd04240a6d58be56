"""Hostile files of every kind are refused in under five seconds and 200 MiB; see `hostile` for what is measured."""

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.bad_input.hostile import ALLOWED_BYTES, ALLOWED_SECONDS, CASES, LONG, MIB

ROW = re.compile(r"(?P<name>.{38}) *(?P<cpu>[0-9.]+) +(?P<wall>[0-9.]+) +(?P<mib>-?[0-9]+)  (?P<outcome>.*)")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="limits on memory are Linux's")


def refusals(names: Iterable[str], folder: Path) -> list[re.Match[str]]:
    """What `hostile` prints about these cases, which are all refused and leave nothing."""
    command = [sys.executable, "-m", "tests.bad_input.hostile", str(folder), *names]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=900, check=False)
    print(done.stdout)
    rows = {row["name"].strip(): row for row in map(ROW.fullmatch, done.stdout.splitlines()[1:]) if row}
    assert rows.keys() == set(names), done.stderr[-1000:]
    assert not [name for name, row in rows.items() if not row["outcome"].startswith("exit code 2: ")]
    # And nothing was written beside them.
    assert {path.name for path in folder.iterdir()} <= {"x.fasta", "w.pt"}
    return [*rows.values()]


@on_linux
def test_hostile_files_are_refused_within_limited_memory(tmp_path: Path) -> None:
    """A process that maps more than the limit cannot refuse a file any more."""
    refusals(CASES.keys() - LONG, tmp_path)


@on_linux
@pytest.mark.long  # reads the memory and the time of processes
def test_hostile_files_are_refused_soon_and_in_little_memory(tmp_path: Path) -> None:
    rows = refusals(CASES, tmp_path)
    assert not [row["name"] for row in rows if float(row["cpu"]) > ALLOWED_SECONDS]
    assert not [row["name"] for row in rows if int(row["mib"]) > ALLOWED_BYTES / MIB]
