"""Hostile files of every kind are refused in under five seconds and 200 MiB; see `hostile` for what is measured."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bad_input.hostile import ALLOWED_BYTES, ALLOWED_SECONDS, CASES, LONG, MIB

ROW = re.compile(r"(?P<name>.{38}) *(?P<cpu>[0-9.]+) +(?P<wall>[0-9.]+) +(?P<mib>-?[0-9]+)  (?P<outcome>.*)")


@pytest.mark.skipif(sys.platform != "linux", reason="limits on memory are Linux's")
@pytest.mark.parametrize("is_long", [False, pytest.param(True, marks=pytest.mark.long)])
def test_hostile_files_are_refused_soon_and_in_little_memory(is_long: bool, tmp_path: Path) -> None:
    names = {name for name in CASES if (name in LONG) == is_long}
    command = [sys.executable, "-m", "tests.bad_input.hostile", str(tmp_path), *names]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=900, check=False)
    print(done.stdout)
    rows = {row["name"].strip(): row for row in map(ROW.fullmatch, done.stdout.splitlines()[1:]) if row}
    assert rows.keys() == names, done.stderr[-1000:]
    assert not [name for name, row in rows.items() if not row["outcome"].startswith("exit code 2: ")]
    assert not [name for name, row in rows.items() if float(row["cpu"]) > ALLOWED_SECONDS]
    assert not [name for name, row in rows.items() if int(row["mib"]) > ALLOWED_BYTES / MIB]
    # And nothing was written beside them.
    assert {path.name for path in tmp_path.iterdir()} <= {"x.fasta", "w.pt"}
