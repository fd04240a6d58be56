"""Runs that are ended at any change of a file or call, by any signal, alone or with all their processes, go on.

The run that goes on leaves the files of a run that nothing ended, and nothing else.
"""

import ctypes
import itertools
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from helixfold.cli.main import main
from tests.data_pipeline.training_sets.training_files import write_training_files
from tests.support.interruptions import Ended, Event, Kill, end, temporary_files
from tests.support.run_values import values

pytestmark = [pytest.mark.long, pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")]

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
# What a run that was ended may exit with; 0 where it was done before.
CODES = {signal.SIGKILL: -signal.SIGKILL, signal.SIGTERM: 143, signal.SIGINT: 130}
KINDS = list(itertools.product(SIGNALS, (False, True)))
DAY = 86_400.0
FOLD = "helixfold.folding.planned:fold"
# The command with several processes changes no files itself.
START = "multiprocessing.process:BaseProcess.start"
CHAINS = {"one": "MKTAYIAKQRQI", "two": "GSHMLEDPVRAWL"}
RELATIVE = "MKTAYLAKQRQL"


@pytest.fixture
def fasta(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "two.fasta"
    path.write_text("".join(f">{name}\n{chain}\n" for name, chain in CHAINS.items()))
    (tmp_path / "database.fasta").write_text(f">relative\n{RELATIVE}\n>stranger\n{'GSHPTW' * 6}\n")
    return path


def at_another_time(offset: float, arguments: Sequence[str]) -> int:
    """The command where the clock has been set by so many seconds."""
    clock = time.time
    time.time = lambda: clock() + offset
    return main(arguments)


def set_times(output: Path, offset: float) -> None:
    """Let files have been written by a clock that has been set since."""
    for path in output.rglob("*"):  # none if the directory is not there yet
        status = path.stat()
        os.utime(path, (status.st_atime + offset, status.st_mtime + offset))


class Campaign:
    """Runs of one command into fresh directories, each ended twice before it may end itself.

    `calls` are functions at whose calls runs are ended, besides changes of files.
    """

    def __init__(
        self, directory: Path, arguments: Sequence[str], option: str = "--output", calls: Sequence[str] = ()
    ) -> None:
        self.directory, self.arguments, self.option = directory, list(arguments), option
        self.random = np.random.default_rng(0)
        self.killed: dict[str, int] = {}
        whole = self.run(directory / "whole" / "out")
        assert whole.code == 0, whole.printed
        self.changes, self.expected = whole.events, values(directory / "whole" / "out")
        assert len(self.expected) > 2
        never = {call: Kill(signal.SIGKILL, Event(index=0, call=call)) for call in calls}
        self.calls = {call: self.run(directory / call / "out", kill).events for call, kill in never.items()}
        assert self.changes or any(self.calls.values())

    def run(self, output: Path, kill: Kill | None = None, offset: float = 0.0) -> Ended:
        return end(partial(at_another_time, offset), [*self.arguments, self.option, str(output)], output, kill)

    def event(self) -> Event:
        """A random change of a file or, as often, a random call."""
        counts = {None: self.changes, **self.calls}
        names = [name for name, count in counts.items() if count]
        name = names[self.random.integers(len(names))]
        index = int(self.random.integers(1, counts[name] + 1))
        return Event(index=index, call=name, is_after=name is not None and bool(self.random.integers(2)))

    def kill(self, output: Path, kill: Kill, offset: float = 0.0) -> None:
        """End a run and look at what it leaves, except what a killed run before it had left."""
        earlier = {*temporary_files(output)}
        ended = self.run(output, kill, offset)
        # A process that had done all that it had to has no handler any more.
        codes = {0, CODES[signal.Signals(kill.signal)]} | ({-kill.signal} if values(output) == self.expected else set())
        assert ended.code in codes, (kill, ended)
        assert "Traceback" not in ended.printed, (kill, ended)
        if ended.code != 0:
            name = f"{signal.Signals(kill.signal).name} of {'all' if kill.is_of_group else 'one'}"
            self.killed[name] = self.killed.get(name, 0) + 1
        if ended.code != -signal.SIGKILL:
            assert {*temporary_files(output)} <= earlier, (kill, ended)
        values(output)  # reads each file to its end

    def finish(self, output: Path, offset: float = 0.0) -> None:
        """Resume it and let it end."""
        ended = self.run(output, offset=offset)
        assert ended.code == 0, ended
        assert values(output) == self.expected
        assert not temporary_files(output)

    def __call__(self, kills: int) -> None:
        """End runs once before each change of a file or evenly over all, and then at a random event."""
        at_changes, at_events = itertools.cycle(KINDS), itertools.cycle(reversed(KINDS))
        for number in itertools.count():
            if sum(self.killed.values()) >= kills:
                break
            output = self.directory / str(number) / "out"
            offset, change = (0.0, 3 * DAY, -3 * DAY)[number % 3], 0
            if self.changes:
                change = 1 + number * max(1, 2 * self.changes // kills) % self.changes
                kind, is_of_group = next(at_changes)
                self.kill(output, Kill(kind, Event(index=change), is_of_group))
                set_times(output, offset)
            kind, is_of_group = next(at_events)
            self.kill(output, Kill(kind, self.event(), is_of_group), -offset)
            self.finish(output, offset)
            print(f"{number}: before change {change}, ended so far: {self.killed}")
        print(f"{self.changes} changes of files, calls {self.calls}; {number} directories; ended: {self.killed}")


def test_two_hundred_kills_of_predictions_that_are_relaxed(fasta: Path, tmp_path: Path) -> None:
    pytest.importorskip("openmm")
    options = ("--num-recycles", "0", "--models-to-relax", "all", "--zip", "--num-seeds", "2", "--device", "cpu")
    database = ("--database", str(tmp_path / "database.fasta"))
    Campaign(tmp_path / "predict", ["predict", str(fasta), *database, *options, "--models", "tiny"], calls=[FOLD])(200)


def test_thirty_kills_of_predictions_in_two_processes(fasta: Path, tmp_path: Path) -> None:
    options = ("--num-recycles", "0", "--devices", "2", "--device", "cpu", "--models", "tiny")
    Campaign(tmp_path / "predict", ["predict", str(fasta), *options], calls=[START])(30)


def test_a_hundred_kills_of_features(fasta: Path, tmp_path: Path) -> None:
    command = ["features", str(fasta), "--database", str(tmp_path / "database.fasta")]
    Campaign(tmp_path / "features", command)(100)


def test_a_hundred_kills_of_a_feature_store(tmp_path: Path) -> None:
    structures, alignments = write_training_files(tmp_path, 6)
    command = ["features", "--structures", str(structures), "--alignments", str(alignments), "--workers", "2"]
    Campaign(tmp_path / "store", command)(100)


_PRIVATE, _REMOUNT_READ_ONLY, _NEW_NAMESPACE = 1 << 18 | 16384, 4096 | 32 | 1, 0x00020000


def in_own_mounts(arguments: Sequence[str]) -> int:
    """The command in a namespace where a mount is seen by nobody else."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_NAMESPACE) or libc.mount(b"none", b"/", None, _PRIVATE, None):
        sys.exit("only root may mount")
    return main(arguments)


def make_read_only(output: Path) -> None:
    """Let nothing be opened for writing or renamed below a directory from now on."""
    libc, path = ctypes.CDLL(None, use_errno=True), os.fsencode(output)
    assert not libc.mount(path, path, None, 4096, None), os.strerror(ctypes.get_errno())
    assert not libc.mount(None, path, None, _REMOUNT_READ_ONLY, None), os.strerror(ctypes.get_errno())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_file_system_that_becomes_read_only_midway_is_one_sentence_and_loses_nothing(
    fasta: Path, tmp_path: Path
) -> None:
    options = ("--num-recycles", "0", "--zip", "--device", "cpu", "--models", "tiny")
    campaign = Campaign(tmp_path / "predict", ["predict", str(fasta), *options])
    said = set()
    for number, change in enumerate(range(2, campaign.changes, max(1, campaign.changes // 25))):
        output = campaign.directory / str(number) / "out"
        output.mkdir(parents=True)
        command = [*campaign.arguments, "--output", str(output)]
        kill = Kill(signal.SIGKILL, Event(index=change))
        ended = end(in_own_mounts, command, output, kill, partial(make_read_only, output))
        assert ended.code in (0, 1, 2), ended
        assert "Traceback" not in ended.printed, ended
        if ended.code != 0:
            assert "Read-only file system" in ended.printed, ended
            said |= {line for line in ended.printed.splitlines() if "Read-only" in line}
        values(output)
        campaign.finish(output)
    print(*sorted({re.sub(rf"{re.escape(str(tmp_path))}/predict/\d+", "OUT", line) for line in said}), sep="\n")
