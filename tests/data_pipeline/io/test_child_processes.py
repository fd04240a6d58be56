"""Processes that a command starts leave Ctrl-C to it from their first moment on, and end with it."""

import os
import signal
import subprocess
import sys
import textwrap

from tests.support.sources import ROOT

# A package whose import, which precedes every function of a new process, takes long enough to be interrupted.
CHILD = """
import os, sys, time
from data_pipeline.io.child_processes import end_with_parent, leave_interruptions_to_parent
os.write(1, b"importing\\n")
time.sleep(0.5)

def child():
    leave_interruptions_to_parent()
    end_with_parent()
    os.write(1, b"ready\\n")
    time.sleep(20)
    os.write(1, b"still there\\n")
"""
PARENT = """
import multiprocessing, os, signal, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from data_pipeline.io.child_processes import interruptions_postponed

if __name__ == "__main__":
    from slow_child import child
    # Ctrl-C may be delivered to any thread.
    threading.Thread(target=time.sleep, args=(20,), daemon=True).start()
    process = multiprocessing.get_context("spawn").Process(target=child)
    try:
        with interruptions_postponed():
            process.start()
            {during}
        process.join()
    except KeyboardInterrupt:
        os.write(1, b"interrupted\\n")
        process.terminate()
        process.join()
        os.write(1, f"ended by {{-process.exitcode}}\\n".encode())
"""


def started(tmp_path: os.PathLike[str], during: str = "") -> subprocess.Popen[str]:
    for name, content in (("slow_child.py", CHILD), ("parent.py", PARENT.format(during=during))):
        with open(os.path.join(tmp_path, name), "w") as file:
            file.write(textwrap.dedent(content))
    return subprocess.Popen(
        [sys.executable, "parent.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def rest(process: subprocess.Popen[str]) -> str:
    """What is printed until all processes have closed the pipe."""
    assert process.stdout is not None
    with process.stdout as printed:
        text = printed.read()
    process.wait()
    return text


def parents_lines(process: subprocess.Popen[str]) -> list[str]:
    """What the parent prints from now on: on a busy machine a line of the process may come between, or not at all."""
    return [line for line in rest(process).splitlines() if line not in ("importing", "ready")]


def lines_until(process: subprocess.Popen[str], last: str) -> None:
    assert process.stdout is not None
    while (line := process.stdout.readline()) != f"{last}\n":
        assert line in ("importing\n", "ready\n"), line + rest(process)


def test_control_c_prints_nothing_of_a_process_that_still_imports(tmp_path: os.PathLike[str]) -> None:
    process = started(tmp_path)
    lines_until(process, "importing")  # of the parent
    lines_until(process, "importing")
    os.killpg(process.pid, signal.SIGINT)
    assert parents_lines(process) == ["interrupted", f"ended by {int(signal.SIGTERM)}"]


def test_control_c_while_a_process_is_started_comes_after_it(tmp_path: os.PathLike[str]) -> None:
    process = started(tmp_path, "os.kill(os.getpid(), signal.SIGINT); time.sleep(0.2); os.write(1, b'started\\n')")
    lines_until(process, "started")
    assert parents_lines(process) == ["interrupted", f"ended by {int(signal.SIGTERM)}"]


def test_a_process_whose_parent_was_killed_ends_quietly(tmp_path: os.PathLike[str]) -> None:
    process = started(tmp_path)
    lines_until(process, "ready")
    process.kill()
    assert rest(process) == ""  # the end of the pipe: nobody holds it any more
