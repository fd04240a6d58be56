import contextlib
import io
import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from data_pipeline.io.errors import InputError, SearchError
from data_pipeline.search.process import (
    _CHUNK_BYTES,
    _keep_end,
    find_program,
    program_version,
    require_program,
    run_program,
    working_directory,
)
from tests.support.alarm import time_limit

ROOT = Path(__file__).parents[3]


def python(code: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code)]


# A child that starts a grandchild; both write their process ids and then sleep far longer than any test.
FAMILY = """
    import os, subprocess, sys, time
    grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open("pids.new", "w") as file:
        file.write(f"{os.getpid()} {grandchild.pid}")
    os.rename("pids.new", "pids")
"""


def is_running(pid: int) -> bool:
    """Whether the process is there and no zombie: who reaps orphans is the machine's first process, not we."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def eventually(condition: Callable[[], bool]) -> bool:
    for _ in range(12_000):
        if condition():
            return True
        time.sleep(0.01)
    return False


def family(directory: Path) -> list[int]:
    path = directory / "pids"
    assert eventually(path.exists)
    return [int(word) for word in path.read_text().split()]


def assert_ended(pids: list[int]) -> None:
    child, *descendants = pids
    with pytest.raises(ProcessLookupError):  # not even a zombie
        os.kill(child, 0)
    assert eventually(lambda: not any(map(is_running, descendants)))


def test_what_a_program_prints_comes_back(tmp_path: Path) -> None:
    code = "import sys; print('out', end=''); print('error', end='', file=sys.stderr)"
    done = run_program(python(code), timeout=60, directory=tmp_path)
    assert (done.stdout, done.stderr) == (b"out", b"error")


def test_the_end_of_what_is_printed_is_kept_and_more_where_it_is_asked_for(tmp_path: Path) -> None:
    command = python("print('a' * 100_000 + 'z', end='')")
    assert run_program(command, timeout=60, directory=tmp_path).stdout == b"a" * (2**16 - 1) + b"z"
    assert len(run_program(command, timeout=60, directory=tmp_path, kept_bytes=2**20).stdout) == 100_001


def test_a_program_runs_in_its_directory_without_input_shell_or_strange_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_SECRET", "token")
    code = """
        import os, sys
        print(os.getcwd(), os.environ["TMPDIR"], repr(sys.stdin.read()), sys.argv[1], "SOME_SECRET" in os.environ)
    """
    done = run_program([*python(code), "$HOME;*"], timeout=60, directory=tmp_path)
    assert done.stdout.decode().split() == [str(tmp_path), str(tmp_path), "''", "$HOME;*", "False"]


def test_a_program_that_fails_names_command_exit_code_and_the_end_of_what_it_printed(tmp_path: Path) -> None:
    code = (
        "import sys; print('first', file=sys.stderr); print('\\x1b[31mno such database', file=sys.stderr); sys.exit(7)"
    )
    with pytest.raises(SearchError) as error:
        run_program(python(code), timeout=60, directory=tmp_path)
    text = str(error.value)
    assert "failed with exit code 7; it printed: first | \\x1b[31mno such database; command: " in text
    assert sys.executable in text
    assert text.isprintable()


def test_a_program_that_explains_its_failure_on_stdout_is_heard_too(tmp_path: Path) -> None:
    with pytest.raises(SearchError, match="exit code 1; it printed: Can not open input"):
        run_program(python("print('Can not open input'); raise SystemExit(1)"), timeout=60, directory=tmp_path)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_is_named(tmp_path: Path, number: signal.Signals) -> None:
    with pytest.raises(SearchError, match=f"was killed by {number.name}"):
        run_program(python(f"import os; os.kill(os.getpid(), {int(number)})"), timeout=60, directory=tmp_path)


@pytest.mark.parametrize("closed", ["", "import os; os.close(1); os.close(2)"])
def test_the_time_limit_ends_grandchildren_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: str) -> None:
    """Also where the program has closed its streams, so that there is nothing to read."""
    wait = subprocess.Popen.wait

    def time_over(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        if timeout is None:
            return wait(process)
        family(tmp_path)
        raise subprocess.TimeoutExpired(process.args, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", time_over)
    code = textwrap.dedent(FAMILY) + f"{closed}\ntime.sleep(600)"
    with pytest.raises(SearchError, match="did not finish within 2 s and was stopped"):
        run_program(python(code), timeout=2, directory=tmp_path)
    assert_ended(family(tmp_path))


def test_a_grandchild_that_outlives_its_parent_is_ended_and_not_waited_for(tmp_path: Path) -> None:
    with time_limit(300):  # the grandchild holds the streams open for 600 seconds
        done = run_program(python(FAMILY + "    print('done', end='')"), timeout=None, directory=tmp_path)
    assert done.stdout == b"done"
    assert_ended(family(tmp_path))


def test_control_c_ends_the_whole_family(tmp_path: Path) -> None:
    def interrupt() -> None:
        family(tmp_path)
        os.kill(os.getpid(), signal.SIGINT)

    # A shell that starts the tests in the background lets them ignore the signal.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt)
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            run_program(python(textwrap.dedent(FAMILY) + "time.sleep(600)"), timeout=60, directory=tmp_path)
    finally:
        thread.join()
        signal.signal(signal.SIGINT, handler)
    assert_ended(family(tmp_path))


def test_an_interruption_before_the_output_is_read_ends_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: threading.Thread) -> None:
        family(tmp_path)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_program(python(FAMILY + "    time.sleep(600)"), timeout=None, directory=tmp_path)
    assert_ended(family(tmp_path))


def test_of_a_flood_no_more_than_a_chunk_is_held_beside_its_end() -> None:
    tail, held, kept = bytearray(), list[int](), 1000

    class Flood(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            held.append(len(tail) + size)
            return b"x" * size if len(held) < 100 else b"the end" if len(held) == 100 else b""

    _keep_end(Flood(), tail, kept)  # type: ignore[arg-type]
    assert len(held) == 101
    assert max(held) <= kept + _CHUNK_BYTES
    assert tail == b"x" * (kept - 7) + b"the end"


@pytest.mark.long  # reads the memory of a process
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_flood_costs_no_memory_and_its_end_is_kept(tmp_path: Path, stream: str) -> None:
    """In a process of its own, whose memory is limited to far less than what is printed."""
    check = f"""
        import resource, sys
        from pathlib import Path
        from data_pipeline.search.process import run_program
        flood = "import sys\\nfor _ in range(512): sys.{stream}.write('x' * 2**20)\\nsys.{stream}.write('the end')"
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        done = run_program([sys.executable, "-c", flood], timeout=100, directory=Path.cwd())
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024
        assert len(done.{stream}) == 2**16 and done.{stream}.endswith(b"xthe end"), len(done.{stream})
    """
    subprocess.run(python(check), cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, timeout=120)


def test_a_flood_does_not_outlast_the_time_limit(tmp_path: Path) -> None:
    with pytest.raises(SearchError, match=r"did not finish within 0\.5 s"):
        run_program(python("while True: print('x' * 10000)"), timeout=0.5, directory=tmp_path)


def test_both_streams_are_read_at_once(tmp_path: Path) -> None:
    code = "import os\nfor _ in range(64): os.write(2, b'e' * 65536); os.write(1, b'o' * 65536)"
    done = run_program(python(code), timeout=60, directory=tmp_path)
    assert (len(done.stdout), len(done.stderr)) == (2**16, 2**16)


def test_programs_that_cannot_start_say_why(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("not a program")
    with pytest.raises(SearchError, match=r"^nothing-of-this-name cannot be started: No such file"):
        run_program(["nothing-of-this-name"], timeout=1, directory=tmp_path)
    with pytest.raises(SearchError, match=r"^script cannot be started: Permission denied"):
        run_program([script], timeout=1, directory=tmp_path)
    script.chmod(0o755)
    with pytest.raises(SearchError, match=r"^script cannot be started: Exec format error"):
        run_program([script], timeout=1, directory=tmp_path)
    with pytest.raises(SearchError, match="cannot be started: embedded null byte"):
        run_program([sys.executable, "a\0b"], timeout=1, directory=tmp_path)


def test_no_file_descriptors_are_left_open(tmp_path: Path) -> None:
    descriptors = Path("/proc/self/fd")
    if not descriptors.is_dir():
        pytest.skip("needs /proc")
    before = len(list(descriptors.iterdir()))
    for code in ("pass", "raise SystemExit(1)"):
        with contextlib.suppress(SearchError):
            run_program(python(code), timeout=60, directory=tmp_path)
    assert len(list(descriptors.iterdir())) == before


@pytest.mark.parametrize("error", [None, SearchError("failed"), KeyboardInterrupt()])
def test_the_working_directory_is_removed_whatever_happens(tmp_path: Path, error: BaseException | None) -> None:
    try:
        with working_directory(tmp_path) as directory:
            (directory / "folder").mkdir()
            (directory / "folder" / "file").write_text("x")
            (directory / "dangling").symlink_to("nowhere")
            if error is not None:
                raise error
    except (SearchError, KeyboardInterrupt) as raised:
        assert raised is error
    assert list(tmp_path.iterdir()) == []


def test_the_working_directory_goes_although_killed_children_still_wrote_there(tmp_path: Path) -> None:
    code = """
        import subprocess, sys
        write = "import os, uuid\\nwhile True: os.makedirs(f'd/{uuid.uuid4()}/e'); open(str(uuid.uuid4()), 'w').close()"
        subprocess.Popen([sys.executable, "-c", write]).wait()
    """
    with pytest.raises(SearchError), working_directory(tmp_path) as directory:
        run_program(python(code), timeout=1, directory=directory)
    assert list(tmp_path.iterdir()) == []


def test_a_working_directory_that_fills_while_it_is_removed_is_removed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove, calls = shutil.rmtree, []

    def rmtree(path: Path, ignore_errors: bool) -> None:
        remove(path, ignore_errors=ignore_errors)
        calls.append(path)
        if len(calls) < 3:
            path.mkdir()
            (path / "late").touch()

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    with working_directory(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_no_room_for_a_working_directory_is_an_own_error(tmp_path: Path) -> None:
    with pytest.raises(SearchError, match="cannot create a temporary directory"), working_directory(tmp_path / "none"):
        pass


def test_programs_are_found_on_the_path_or_by_their_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for folder in ("bin", "other"):
        (tmp_path / folder).mkdir()
    program = tmp_path / "bin" / "hhblits"
    program.write_text("#!/bin/sh\n")
    assert find_program("hhblits") is None  # not executable
    with pytest.raises(
        InputError, match="the program hhblits was not found; install hhsuite and make sure that hhblits is on"
    ):
        require_program("hhblits")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    assert find_program("hhblits") == require_program("hhblits") == program
    elsewhere = program.rename(tmp_path / "other" / "hhblits")
    assert find_program("hhblits") is None
    assert find_program(str(elsewhere)) == elsewhere


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        ("HHblits 3.3.0:\nHMM-HMM-based search 2019", "3.3.0"),
        ("# jackhmmer :: search\n# HMMER 3.3.2 (Nov 2020); http://hmmer.org/", "3.3.2"),
        ("\nKalign (3.3.5)\n", "3.3.5"),
        ("14-7e284+ds-1\n", "14-7e284+ds-1"),
    ],
)
def test_versions_are_read_from_what_programs_print(tmp_path: Path, printed: str, version: str) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho run >> {tmp_path}/runs\ncat <<'END'\n{printed}\nEND\n")
    program.chmod(0o755)
    assert program_version(program) == version
    assert program_version(program) == version
    assert (tmp_path / "runs").read_text() == "run\n"


def test_a_program_without_a_version_is_an_error(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho what is this\n")
    program.chmod(0o755)
    with pytest.raises(SearchError, match="did not print a version: what is this"):
        program_version(program)
