"""One run at a time writes into a directory, several share it, and the last of these removes their claims."""

import fcntl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from data_pipeline.io.claims import DIRECTORY, Claims
from data_pipeline.io.errors import InputError
from helixfold.results import lock
from helixfold.results.lock import LOCK_FILE, locked_directory

# A run that shares a directory, claims a target, and waits for the end of its input.
RUN = """
import sys
from contextlib import closing
from pathlib import Path
from data_pipeline.io.claims import Claims
from helixfold.results.lock import locked_directory
output = Path(sys.argv[1])
with locked_directory(output, is_shared=True), closing(Claims.in_directory(output)) as claims:
    claims.take(sys.argv[2])
    print("begun", flush=True)
    sys.stdin.read()
"""


@contextmanager
def other_run(output: Path, target: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", RUN, str(output), target]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"begun\n"
        yield run


@contextmanager
def sharing(output: Path) -> Iterator[Claims]:
    with locked_directory(output, is_shared=True), closing(Claims.in_directory(output)) as claims:
        yield claims


def test_one_run_at_a_time_and_the_error_says_which(tmp_path: Path) -> None:
    output = tmp_path / "new" / "out"
    with locked_directory(output):
        with pytest.raises(InputError, match=r"another run is writing there \(process \d+ on .+\)"):
            locked_directory(output).__enter__()
        with pytest.raises(InputError, match="another run is writing there"), sharing(output):
            pass
    with locked_directory(output):
        pass
    assert [path.name for path in output.iterdir()] == [LOCK_FILE]


def test_a_directory_that_cannot_be_made_or_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to("nothing")
    (tmp_path / "file").touch()
    for name, reason in (("link", "it is a link to nothing"), ("file", "File exists"), ("file/out", "Not a directory")):
        with pytest.raises(InputError, match=rf"cannot be used as output directory \({reason}\); choose another"):
            locked_directory(tmp_path / name).__enter__()
    monkeypatch.setattr("os.access", lambda path, _: path != tmp_path)
    with pytest.raises(InputError, match="cannot be written; choose another --output directory"):
        locked_directory(tmp_path).__enter__()
    assert not (tmp_path / LOCK_FILE).exists()


def test_the_last_run_that_shares_a_directory_removes_the_claims(tmp_path: Path) -> None:
    with other_run(tmp_path, "theirs") as other:
        with sharing(tmp_path) as claims:
            assert (claims.take("mine"), claims.take("theirs")) == ("taken", "held")
            claims.end("mine", "finished")
        assert len(list((tmp_path / DIRECTORY).glob("*.1"))) == 2  # the other one lives
        other.communicate()
        assert other.returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == [LOCK_FILE]
    with other_run(tmp_path, "theirs") as other, sharing(tmp_path) as claims:
        other.communicate()
        assert (tmp_path / DIRECTORY).is_dir()
        assert claims.take("theirs") == "taken"
    assert not (tmp_path / DIRECTORY).exists()


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_killed_run_leaves_claims_that_the_next_one_removes(is_shared: bool, tmp_path: Path) -> None:
    with other_run(tmp_path, "theirs") as other:
        other.kill()
        other.wait()
    assert (tmp_path / DIRECTORY).is_dir()
    (tmp_path / ".t00.result.zip.0123abcd.partial").touch()
    with locked_directory(tmp_path, is_shared=is_shared):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [LOCK_FILE]


def test_claims_stay_where_locks_do_not_reach_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On some network file systems a lock holds on one machine alone; the other's clock says that it lives."""
    with monkeypatch.context() as patch:
        patch.setattr("data_pipeline.io.claims._this_process", lambda: "elsewhere 0 1 1 1")
        elsewhere = Claims.in_directory(tmp_path)
    with closing(elsewhere):
        assert elsewhere.take("theirs") == "taken"
        with sharing(tmp_path) as claims:
            assert claims.take("theirs") == "held"
        assert elsewhere.work_on("theirs") == "held"


def test_a_run_that_begins_while_claims_are_removed_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = threading.Event()
    with (tmp_path / LOCK_FILE).open("w") as last:
        fcntl.flock(last, fcntl.LOCK_EX)

        def sleep(_: float) -> None:
            fcntl.flock(last, fcntl.LOCK_UN)
            waits.set()

        monkeypatch.setattr(lock.time, "sleep", sleep)
        with sharing(tmp_path):
            assert waits.is_set()


def test_without_locks_nothing_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with sharing(tmp_path) as claims:
        claims.take("mine")
    assert (tmp_path / DIRECTORY).is_dir()
    assert not capsys.readouterr().err
    with locked_directory(tmp_path):
        pass
    assert "cannot be locked (Function not implemented); do not start a second run there" in capsys.readouterr().err


def test_claims_that_are_a_link_or_in_a_moved_directory_are_left_alone(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    output = tmp_path / "out"
    with locked_directory(output):
        (output / DIRECTORY).symlink_to(elsewhere)
    assert not any(elsewhere.iterdir())
    with locked_directory(output):
        output.rename(tmp_path / "moved")
        (output / DIRECTORY).mkdir(parents=True)
        (output / DIRECTORY / "x.1").touch()
    assert (output / DIRECTORY / "x.1").exists()
