"""Draw plots in processes of their own, which import matplotlib while this one imports PyTorch and computes.

Both take long to import. The other processes only make pictures; all files are written by this one.
"""

import gc
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection, Pipe
from queue import SimpleQueue
from typing import Any, NoReturn

from data_pipeline.processors import available_processors

# A function that returns a picture as PNG.
Plot = Callable[..., bytes]
# While a target's plots are drawn, little else is to be done.
_PROCESSES = 2
# With these imported, little would be gained, and other threads may hold locks that a forked process never sees freed.
_IMPORTED = ("matplotlib.figure", "torch")


class Drawer:
    """A process at the other end of a connection, which draws plots in the order in which it is asked."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._asked, self._received = 0, 0
        self._pictures: dict[int, bytes | None] = {}
        self._has_ended = False

    def draw(self, plot: Plot, *arguments: Any) -> Callable[[], bytes]:
        """Ask for a plot, and return a function that waits for it and returns the picture.

        If the process cannot draw it, or has ended, that function draws it in this process.
        """
        number, self._asked = self._asked, self._asked + 1
        with self._noticing_its_end():
            self._connection.send((plot, arguments))
        return partial(self._picture, number, partial(plot, *arguments))

    def close(self) -> None:
        """Close the connection, which ends the process."""
        self._has_ended = True
        self._connection.close()

    def _picture(self, number: int, draw_here: Callable[[], bytes]) -> bytes:
        while self._received <= number and not self._has_ended:
            with self._noticing_its_end():
                self._pictures[self._received] = self._connection.recv()
                self._received += 1
        picture = self._pictures.pop(number, None)
        return draw_here() if picture is None else picture

    @contextmanager
    def _noticing_its_end(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError):  # for want of memory, perhaps
            self._has_ended = True


class Drawers:
    """Processes that draw plots by turns."""

    def __init__(self, connections: Sequence[Connection]) -> None:
        self._all = [Drawer(each) for each in connections]
        self._turns = itertools.cycle(self._all)

    def draw(self, plot: Plot, *arguments: Any) -> Callable[[], bytes]:
        """Ask the next process for a plot; see `Drawer.draw`."""
        return next(self._turns).draw(plot, *arguments)

    def close(self) -> None:
        """Close the connections."""
        for each in self._all:
            each.close()


@contextmanager
def drawing_processes(*, is_wanted: bool = True) -> Iterator[Drawers | None]:
    """Start processes that draw plots, and end them in the end; give None if they are not wanted or would not help.

    They help a process with one thread that has imported neither PyTorch nor matplotlib, if there is a second
    processor. Only on Linux is a forked process sure to work with what it inherits.
    """
    is_fresh = threading.active_count() == 1 and not any(name in sys.modules for name in _IMPORTED)
    if not (is_wanted and is_fresh and sys.platform == "linux" and available_processors() > 1):
        yield None
        return
    pipes = [Pipe() for _ in range(_PROCESSES)]
    # Ctrl-C reaches all processes of a terminal: the new ones must not handle it as this one does.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
    first = os.fork()
    if first == 0:
        _run(pipes)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    for _, theirs in pipes:
        theirs.close()
    drawers = Drawers([ours for ours, _ in pipes])
    try:
        yield drawers
    finally:
        drawers.close()
        os.kill(first, signal.SIGKILL)  # it may still import, and takes no notice of the end of the connection
        with suppress(ChildProcessError):
            os.waitpid(first, 0)


def _run(pipes: Sequence[tuple[Connection, Connection]]) -> NoReturn:
    """Be a process that draws, until its parent closes the connection or ends."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGTERM])
        for ours, _ in pipes:
            ours.close()
        # What reads the command's output must not wait for this process.
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        _prepare()
        # The others have imported what this one has.
        own, *others = [theirs for _, theirs in pipes]
        while others and os.fork() == 0:
            own.close()
            own, *others = others
        for each in others:
            each.close()
        _draw_all(own)
    finally:
        os._exit(1)


def _prepare() -> None:
    """Import what draws, which takes long, and load fonts with a first plot."""
    gc.disable()
    import numpy as np  # noqa: PLC0415

    from helixfold.report.plots import plddt_plot  # noqa: PLC0415

    plddt_plot({"": np.zeros(2)})
    gc.freeze()
    gc.enable()


def _draw_all(connection: Connection) -> None:
    requests: SimpleQueue[tuple[Plot, tuple[Any, ...]]] = SimpleQueue()
    # Requests are taken while others are drawn, so that the parent never waits until it can send one.
    threading.Thread(target=_take_requests, args=(connection, requests), daemon=True).start()
    while True:
        plot, arguments = requests.get()
        try:
            picture = plot(*arguments)
        except Exception:  # the parent draws it, and says what is wrong
            picture = None
        connection.send(picture)


def _take_requests(connection: Connection, requests: "SimpleQueue[tuple[Plot, tuple[Any, ...]]]") -> None:
    try:
        while True:
            requests.put(connection.recv())
    except (EOFError, OSError):
        os._exit(0)  # the parent has ended
