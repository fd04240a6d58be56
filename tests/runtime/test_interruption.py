"""Ctrl-C is one sentence at any time, also within imports, which may turn it into other errors."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helixfold.runtime.interruption import INTERRUPTED, TERMINATED
from tests.support.sources import ROOT

SENTENCE = "helixfold: interrupted; run the same command again to resume\n"
TERMINATED_SENTENCE = SENTENCE.replace("interrupted", "terminated")
# A library as an extension module may be: the interruption of its import ends as another error, or is lost.
LIBRARY = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):
        pass
except KeyboardInterrupt:
    raise ImportError("cannot load module more than once per process")
"""
COMMAND = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # it is ignored in programs that `nohup` starts, such as these tests
from helixfold.cli.main import exit_code
{function}
def command():
    {action}
    for _ in range(100):
        time.sleep(0.1)
sys.exit(exit_code(command))
"""


def interrupted(tmp_path: Path, action: str, function: str = "") -> tuple[int, str]:
    (tmp_path / "library.py").write_text(LIBRARY)
    program = COMMAND.format(action=action, function=function)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, done.stdout + done.stderr


def test_an_import_in_the_middle_of_a_command_is_waited_for(tmp_path: Path) -> None:
    code, printed = interrupted(tmp_path, "import library; print('imported', flush=True)")
    assert (code, printed) == (INTERRUPTED, f"imported\n{SENTENCE}")


def test_a_command_that_still_imports_what_it_needs_ends_at_once(tmp_path: Path) -> None:
    function = """
from pathlib import Path
import helixfold.cli
path = str(Path(helixfold.cli.__file__).parent / "some.py")
exec(compile("def start(): import library; print('imported')", path, "exec"))
"""
    assert interrupted(tmp_path, "start()", function) == (INTERRUPTED, SENTENCE)


def test_an_error_that_an_interruption_was_turned_into_is_the_interruption(tmp_path: Path) -> None:
    action = """
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise ValueError("half of it")
"""
    assert interrupted(tmp_path, action) == (INTERRUPTED, SENTENCE)


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("SIGINT", INTERRUPTED, SENTENCE),
        ("SIGTERM", TERMINATED, TERMINATED_SENTENCE),
        ("SIGHUP", 129, TERMINATED_SENTENCE),
    ],
)
def test_a_signal_whose_exception_python_ignores_is_not_lost(tmp_path: Path, name: str, code: int, said: str) -> None:
    function = f"""
class Freed:
    def __del__(self):
        os.kill(os.getpid(), signal.{name})
        for _ in range(1000):
            pass
"""
    assert interrupted(tmp_path, "Freed()", f"import os\n{function}") == (code, said)


def test_what_fails_in_an_object_that_was_interrupted_while_it_was_made_is_not_told(tmp_path: Path) -> None:
    function = """
import os
class Made:
    def __init__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000):
            pass
    def __del__(self):
        self.closed
"""
    assert interrupted(tmp_path, "Made()", function) == (TERMINATED, TERMINATED_SENTENCE)


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", TERMINATED), ("SIGHUP", 129)])
def test_a_terminated_command_says_how_to_resume(tmp_path: Path, name: str, code: int) -> None:
    assert interrupted(tmp_path, f"signal.raise_signal(signal.{name})") == (code, TERMINATED_SENTENCE)


def test_a_process_of_a_terminated_command_leaves_the_message_to_its_parent(tmp_path: Path) -> None:
    function = """
import multiprocessing
def child():
    sys.exit(exit_code(lambda: signal.raise_signal(signal.SIGTERM)))
"""
    action = "process = multiprocessing.get_context('fork').Process(target=child); process.start(); process.join()"
    assert interrupted(tmp_path, f"{action}; sys.exit(process.exitcode)", function) == (TERMINATED, "")


@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP"])
def test_an_ignored_signal_stays_ignored(name: str) -> None:
    program = f"""
import signal, sys
signal.signal(signal.{name}, signal.SIG_IGN)
from helixfold.cli.main import exit_code
sys.exit(exit_code(lambda: signal.raise_signal(signal.{name})))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
