"""A closed terminal, a full disk or a closed pipe behind the standard streams ends no command that makes files."""

import io
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TextIO

import pytest

from helixfold.cli.main import FAILED, exit_code
from helixfold.runtime.standard_streams import optional_output
from tests.support.sources import ROOT

# A command that prints, makes a file and prints again, also as libraries in C do, past Python's streams.
COMMAND = """
import os, sys, time
from helixfold.cli.main import exit_code
from helixfold.runtime.standard_streams import optional_output

@optional_output()
def command():
    print("first")
    print("first error", file=sys.stderr, flush=True)
    with open("made", "w") as file:
        for number in (1, 2):
            try:
                os.write(number, b"of a library")
            except OSError:
                pass
        print("x" * 20000, flush=True)
        file.write("whole")
    print("last")

sys.exit(exit_code(command))
"""
REDIRECTIONS = [">/dev/full", "2>/dev/full", ">/dev/full 2>&1", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"]


@pytest.mark.parametrize("redirection", REDIRECTIONS)
def test_a_command_makes_its_files_whatever_is_behind_its_streams(redirection: str, tmp_path: Path) -> None:
    command = f'"$0" -c "$1" {redirection}'
    done = subprocess.run(
        ["/bin/sh", "-c", command, sys.executable, COMMAND],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    # Not 120 either, which is Python's own code when it cannot write the streams in the end.
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "made").read_text() == "whole"
    assert done.stderr in ("", "first error\nof a library")


def test_a_command_goes_on_when_its_terminal_is_closed(tmp_path: Path) -> None:
    terminal, own = os.openpty()
    program = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); input()\n{COMMAND}"
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=own,
        stderr=own,
    )
    os.close(own)
    os.close(terminal)
    process.communicate(b"\n", timeout=60)
    assert process.returncode == 0
    assert (tmp_path / "made").read_text() == "whole"


def full_disk() -> TextIO:
    return open("/dev/full", "w")


def closed_pipe() -> TextIO:
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, "w")


def listing() -> None:
    print("what was asked for")


@pytest.mark.parametrize(
    ("command", "stream", "code", "said"),
    [
        (listing, full_disk, FAILED, "helixfold: error: standard output: No space left on device\n"),
        (listing, closed_pipe, FAILED, ""),
        (optional_output()(listing), full_disk, 0, ""),
        (optional_output()(listing), closed_pipe, 0, ""),
    ],
)
def test_only_a_command_whose_result_is_its_output_fails_with_it(
    command: Callable[[], None], stream: Callable[[], TextIO], code: int, said: str
) -> None:
    with stream() as output, redirect_stdout(output), redirect_stderr(io.StringIO()) as errors:
        assert exit_code(command) == code
    assert errors.getvalue() == said


def test_characters_that_an_encoding_lacks_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert exit_code(lambda: print("Ångström \udcff")) == 0
    assert written.getvalue() == b"\\xc5ngstr\\xf6m \\udcff\n"
