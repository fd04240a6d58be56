"""Interrupt runs at a numbered event instead of after some time, and check the files that every interruption leaves.

An event is a change of a file below a directory, or a call of a named function. `states` returns the files that
a kill leaves before each event of one run; `interrupted` raises an exception at an event, as Ctrl-C does; `end` runs a
command in a separate process and sends a signal to it.
"""

import contextlib
import functools
import importlib
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.training.ranks import SERVER

# Audit events of Python that change what a directory holds; `open` counts if it may write. The system call fsync has
# no audit event, and its function is replaced.
_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.utime"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_ENDED_WITHIN = 30.0  # seconds after the parent for the processes that it started
Change = tuple[str, tuple[str, ...]]  # the kind of a change of files, and the paths


class _Listeners:
    """Functions to call before each change of a file, because an audit hook can be added but not removed."""

    def __init__(self) -> None:
        self._called: list[Callable[[Change], None]] = []
        self._is_added = False
        self._own = threading.local()  # changes that listeners make are not events

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._called or getattr(self._own, "is_listening", False):
            return
        if event == "open":
            if not arguments[2] & _WRITES:
                return
        elif event not in _CHANGES:
            return
        self._own.is_listening = True
        try:
            if event == "open":
                arguments = arguments[:1]  # not the mode
            descriptors = [part for part in arguments[1:] if isinstance(part, int) and part > 2]
            paths = [os.fsdecode(part) for part in arguments if isinstance(part, str | bytes)]
            if event in ("os.remove", "os.rmdir") and descriptors:  # a name in an open folder, as of shutil.rmtree
                with contextlib.suppress(OSError):
                    paths = [os.path.join(os.readlink(f"/proc/self/fd/{descriptors[0]}"), each) for each in paths]
            change = event, tuple(map(os.path.abspath, paths))
            for each in list(self._called):
                each(change)
        finally:
            self._own.is_listening = False

    @contextmanager
    def calling(self, listener: Callable[[Change], None]) -> Iterator[None]:
        if not self._is_added:
            sys.addaudithook(self)
            self._is_added = True
        flush = os.fsync

        def fsync(file: Any) -> None:
            descriptor = file if isinstance(file, int) else file.fileno()
            listener(("os.fsync", (os.readlink(f"/proc/self/fd/{descriptor}"),)))
            flush(file)

        os.fsync = fsync
        self._called.append(listener)
        try:
            yield
        finally:
            self._called.remove(listener)
            os.fsync = flush


_listeners = _Listeners()


def _is_below(directory: Path, change: Change) -> bool:
    start = os.path.join(os.path.abspath(directory), "")
    return any(os.path.join(path, "").startswith(start) for path in change[1])


@contextmanager
def calls_of(function: str, action: Callable[[bool], None]) -> Iterator[None]:
    """Call `action` with False before, and with True after, each call of a function named as "module:name.name"."""
    module, _, names = function.partition(":")
    *owners, name = names.split(".")
    owner = functools.reduce(getattr, owners, importlib.import_module(module))
    called = getattr(owner, name)

    @functools.wraps(called)
    def calling(*arguments: Any, **options: Any) -> Any:
        action(False)
        result = called(*arguments, **options)
        action(True)
        return result

    setattr(owner, name, calling)
    try:
        yield
    finally:
        setattr(owner, name, called)


@dataclass(frozen=True, kw_only=True)
class Event:
    """A numbered event: the change of a file below a directory, or the call of a function; 0 is no event.

    `is_after` is for calls only, because the state after a change equals the state before the next one.
    """

    index: int
    call: str | None = None
    is_after: bool = False

    @contextmanager
    def watched(self, directory: Path, action: Callable[[], None]) -> Iterator[Callable[[], int]]:
        """Call `action` at the event; the context is a function that returns the number of events so far."""
        count = 0

        def happened() -> None:
            nonlocal count
            count += 1
            if count == self.index:
                action()

        if self.call is not None:
            with calls_of(self.call, lambda is_after: happened() if is_after == self.is_after else None):
                yield lambda: count
        else:
            with _listeners.calling(lambda change: happened() if _is_below(directory, change) else None):
                yield lambda: count


@dataclass(frozen=True, kw_only=True)
class State:
    """Content of a directory before a change: bytes of files, targets of links as text, None for folders."""

    label: str
    content: dict[str, bytes | str | None]
    times: dict[str, tuple[int, int]]

    @classmethod
    def of(cls, directory: Path, label: str) -> "State":
        content, times = dict[str, bytes | str | None](), {}
        for folder, folders, files in os.walk(directory):
            for name in (*folders, *files):
                path = os.path.join(folder, name)
                key = os.path.relpath(path, directory)
                with contextlib.suppress(FileNotFoundError):  # another thread has removed it
                    if os.path.islink(path):
                        content[key] = os.readlink(path)
                        continue
                    content[key] = None if name in folders else Path(path).read_bytes()
                    status = os.stat(path)
                    times[key] = status.st_atime_ns, status.st_mtime_ns
        return cls(label=label, content=content, times=times)

    def without_temporary(self) -> dict[str, bytes | str | None]:
        """Return the content without files that a writer has not finished."""
        return {key: content for key, content in self.content.items() if not _is_temporary(key)}

    def restore(self, directory: Path) -> None:
        """Replace the content of a directory by this state."""
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        for key, content in sorted(self.content.items()):
            path = directory / key
            if content is None:
                path.mkdir()
            elif isinstance(content, str):
                path.symlink_to(content)
            else:
                path.write_bytes(content)
        for key, times in sorted(self.times.items(), reverse=True):
            os.utime(directory / key, ns=times)


def states(directory: Path, run: Callable[[], object], calls: Sequence[str] = ()) -> list[State]:
    """Run once, and return each different state of a directory that a SIGKILL may leave, in order.

    A state is taken before every change of a file below the directory, before and after each call of the functions
    `calls`, and at the end. If a file was written in place between two of them, a state has half of the new bytes.
    """
    snapshots: list[tuple[Change, State]] = []

    def take(change: Change) -> None:
        names = " ".join(os.path.relpath(path, directory) for path in change[1])
        snapshots.append((change, State.of(directory, f"{len(snapshots)}: before {change[0]} {names}")))

    with contextlib.ExitStack() as stack:
        stack.enter_context(_listeners.calling(lambda change: take(change) if _is_below(directory, change) else None))
        for name in calls:
            note = partial(_note_call, take, name)
            stack.enter_context(calls_of(name, note))
        run()
    snapshots.append((("end", ()), State.of(directory, "at the end")))
    different: list[State] = []
    for (change, before), (_, after) in zip([(("begin", ()), snapshots[0][1]), *snapshots], snapshots, strict=False):
        for each in (*_torn(before, after, change[0], {os.path.relpath(path, directory) for path in change[1]}), after):
            if different and different[-1].without_temporary() == each.without_temporary():
                # The steps of an atomic write are one state, with the most complete temporary file.
                if len(each.content) >= len(different[-1].content):
                    different[-1] = each
            else:
                different.append(each)
    return different


def _note_call(take: Callable[[Change], None], name: str, is_after: bool) -> None:
    take((f"{'after' if is_after else 'before'} {name}", ()))


def _torn(before: State, after: State, kind: str, paths: set[str]) -> Iterator[State]:
    """Yield states with half of what was written into a file after a change of these paths."""
    renamed = paths if kind in ("os.rename", "os.link") else set()
    opened = paths if kind == "open" else set()
    for key, content in after.content.items():
        earlier = before.content.get(key, b"")
        # Unfinished files are never read, and SQLite can roll back the pages that it writes.
        is_whole = any(f"{key}/".startswith(f"{path}/") for path in renamed) or _is_temporary(key) or ".sqlite" in key
        if is_whole or not isinstance(content, bytes) or not isinstance(earlier, bytes):
            continue
        is_appended = content.startswith(earlier)
        if len(content) > 1 and content != earlier and (is_appended or key in opened):
            half = content[: (len(content) + (len(earlier) if is_appended else 0)) // 2]
            yield replace(after, label=f"{after.label}, with half of {key}", content={**after.content, key: half})


def spread(count: int, limit: int | None) -> list[int]:
    """Return at most `limit` of `count` indices, evenly spaced, with the first and the last one."""
    if limit is None or count <= limit:
        return list(range(count))
    return [round(step * (count - 1) / (limit - 1)) for step in range(limit)]


@contextmanager
def interrupted(directory: Path, event: Event, error: type[BaseException] = KeyboardInterrupt) -> Iterator[None]:
    """Raise an exception in the main thread at an event, as a signal's handler does."""

    def strike() -> None:
        if threading.current_thread() is threading.main_thread():
            raise error
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background may ignore it
    try:
        with event.watched(directory, strike):
            yield
    finally:
        signal.signal(signal.SIGINT, handler)


def count_changes(directory: Path, run: Callable[[], object]) -> int:
    """Return how many changes of files below a directory a run makes."""
    with Event(index=0).watched(directory, lambda: None) as count:
        run()
    return count()


def check_kills(
    directory: Path,
    run: Callable[[], int],
    look: Callable[[Path], object],
    *,
    calls: Sequence[str] = (),
    work: str | None = None,
    resume: Callable[[], int] | None = None,
    limit: int | None = None,
) -> int:
    """Check that a run which is killed anywhere and started again leaves the same files as an uninterrupted run.

    All runs start from the current content of the directory. `look` returns the values to compare, and `calls` are
    events in addition to changes of files. `work` names a function that is never called more often after a later kill.
    At most `limit` states are tried, spread evenly. Return the number of states.
    """
    kill_states = states(directory, lambda: _ends(run, "whole"), calls)
    expected, max_calls = look(directory), None
    for state in (kill_states[index] for index in spread(len(kill_states), limit)):
        state.restore(directory)
        calls_made = _count(work, partial(_ends, run if resume is None else resume, state.label))
        assert_same(look(directory), expected, state.label)
        assert not temporary_files(directory), (state.label, temporary_files(directory))
        assert max_calls is None or calls_made <= max_calls, f"{state.label}: completed work is repeated"
        max_calls = calls_made
    assert work is None or max_calls == 0
    return len(kill_states)


def check_interruptions(
    directory: Path,
    run: Callable[[], int],
    look: Callable[[Path], object],
    *,
    code: int = 130,
    limit: int | None = None,
) -> int:
    """Check the same as `check_kills` for Ctrl-C at each change of a file; the run must remove its temporary files.

    Return the number of changes.
    """
    begin = State.of(directory, "at the beginning")
    count = count_changes(directory, lambda: _ends(run, "whole"))
    expected, last = look(directory), State.of(directory, "whole")
    for index in (1 + each for each in spread(count, limit)):
        begin.restore(directory)
        with interrupted(directory, Event(index=index)):
            ended = run()
        assert ended == code, f"Ctrl-C before change {index} of {count}: exit code {ended}"
        assert not temporary_files(directory), (index, temporary_files(directory))
        _ends(run, f"Ctrl-C before change {index}")
        assert_same(look(directory), expected, f"Ctrl-C before change {index} of {count}")
        assert not temporary_files(directory), (index, temporary_files(directory))
    last.restore(directory)
    return count


def _ends(run: Callable[[], int], label: str) -> None:
    code = run()
    assert code == 0, f"{label}: exit code {code}"


def _count(function: str | None, run: Callable[[], object]) -> int:
    if function is None:
        run()
        return 0
    with Event(index=0, call=function).watched(Path(), lambda: None) as count:
        run()
    return count()


def assert_same(actual: object, expected: object, label: str) -> None:
    """Compare, and report only the names that differ, because the whole would be pages."""
    if isinstance(actual, dict) and isinstance(expected, dict):
        missing, extra = sorted(expected.keys() - actual.keys()), sorted(actual.keys() - expected.keys())
        other = [name for name in expected if name in actual and actual[name] != expected[name]]
        example = {name: (actual[name], expected[name]) for name in other[:1]}
        difference = f"{label}: missing {missing}, extra {extra}, other {other}: {example}"
        assert not missing + extra + other, difference[:3000]
    assert actual == expected, label


def temporary_files(directory: Path) -> list[Path]:
    """Return the files and folders that writers remove or rename once they are whole."""
    return [path for path in directory.rglob("*") if _is_temporary(path.name)]


def _is_temporary(path: str) -> bool:
    return any(part.endswith((".partial", ".tmp")) for part in path.split("/"))


@dataclass(frozen=True)
class Kill:
    """A signal to send at an event, to the process or to its whole session."""

    signal: int
    event: Event
    is_of_group: bool = False

    def strike(self) -> None:
        """Send the signal; called in the process that receives it."""
        (os.killpg if self.is_of_group else os.kill)(os.getpid(), self.signal)

    @contextmanager
    def applied(self, directory: Path) -> Iterator[Callable[[], int]]:
        """Send the signal at the event inside."""
        with self.event.watched(directory, self.strike) as count:
            yield count


def at_event(kill: Kill, rank: int, directory: Path, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in one of several processes of a run, and send the signal to the process of one rank."""
    if int(os.environ.get("RANK", "0")) != rank:
        return function(*arguments)
    with kill.applied(directory):
        return function(*arguments)


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code, what it printed, and how many events there were before."""

    code: int
    printed: str
    events: int


def end(
    command: Callable[[Sequence[str]], int],
    arguments: Sequence[str],
    output: Path,
    kill: Kill | None = None,
    action: Callable[[], None] | None = None,
) -> Ended:
    """Run a command in a session of its own and wait until it and all processes that it started have ended.

    Events are changes of files below `output`; `action` replaces the signal. The temporary directory must be empty at
    the end, unless no handler could run.
    """
    scratch, printed, counted = (output.parent / name for name in ("scratch", "printed.txt", "events.txt"))
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    printed.write_text("")
    counted.write_text("0")
    process = SERVER.Process(target=_run, args=(partial(command, list(arguments)), output, kill, action))
    process.start()
    assert process.pid is not None
    process.join(300)
    assert process.exitcode is not None, printed.read_text()
    until = time.monotonic() + _ENDED_WITHIN
    while alive := living_processes(process.pid):
        assert time.monotonic() < until, [Path(f"/proc/{each}/cmdline").read_bytes() for each in alive]
        time.sleep(0.02)
    if process.exitcode != -signal.SIGKILL:
        # PyTorch creates the directory of its compiler's cache at any time.
        left = [path for path in scratch.rglob("*") if not path.name.startswith("torchinductor_")]
        assert not left, (kill, left)
    return Ended(process.exitcode, printed.read_text(), int(counted.read_text() or 0))


def _run(command: Callable[[], int], output: Path, kill: Kill | None, action: Callable[[], None] | None) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background may ignore it
    os.environ["TMPDIR"], tempfile.tempdir = str(output.parent / "scratch"), None
    redirect(output.parent / "printed.txt")
    kill = Kill(signal.SIGKILL, Event(index=0)) if kill is None else kill
    with kill.event.watched(output, kill.strike if action is None else action) as count:
        try:
            sys.exit(command())
        finally:
            (output.parent / "events.txt").write_text(str(count()))


def redirect(printed: Path) -> None:
    """Redirect the output of this process to a file."""
    with printed.open("a") as file:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(file.fileno(), stream.fileno())


def living_processes(leader: int) -> list[int]:
    """Return the living processes of the session that a process leads."""
    processes = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            processes.append(int(status.parent.name))
    return processes
