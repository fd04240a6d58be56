"""The workers that a server starts on its own machine: one process for each device, started again when it dies."""

import json
import logging
import multiprocessing
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from data_pipeline.child_processes import interruptions_postponed
from helixfold.serve.worker.run import WorkerCall, run_beside_server

_LOGGER = logging.getLogger("helixfold.serve")
_SPAWN = multiprocessing.get_context("spawn")
_SECONDS_BETWEEN_LOOKS: Final = 0.5
_LONGEST_PAUSE: Final = 60.0
_QUICK_DEATH: Final = 30.0  # seconds; who dies sooner is started again after a longer pause each time
_STOP_SECONDS: Final = 15.0


@dataclass
class _Place:
    """A worker's place: its process, when that was started, and after which pause another one is."""

    call: WorkerCall
    process: Any = None
    started: float = 0.0
    pause: float = 1.0


class LocalWorkers:
    """Workers of this machine, looked after by a thread."""

    def __init__(self, calls: Sequence[WorkerCall]) -> None:
        self._places = [_Place(call) for call in calls]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look_after, name="workers", daemon=True)

    def start(self) -> None:
        """Start all of them."""
        self._thread.start()

    def stop(self) -> None:
        """Let all of them give back what they do and end; those that take too long are killed."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        running = [place.process for place in self._places if place.process is not None]
        for process in running:
            process.terminate()
        until = time.monotonic() + _STOP_SECONDS
        for process in running:
            process.join(max(0.1, until - time.monotonic()))
            process.kill()
            process.join()

    def _look_after(self) -> None:
        while not self._stop.is_set():
            for place in self._places:
                self._look(place)
            self._stop.wait(_SECONDS_BETWEEN_LOOKS)

    def _look(self, place: _Place) -> None:
        now = time.monotonic()
        if place.process is not None:
            if place.process.is_alive():
                return
            line = {"event": "worker ended", "worker": place.call.name, "code": place.process.exitcode}
            _LOGGER.warning(json.dumps(line))
            is_quick = now - place.started < _QUICK_DEATH
            place.pause = min(2 * place.pause, _LONGEST_PAUSE) if is_quick else 1.0
            place.process, place.started = None, now
        if now - place.started >= place.pause or place.started == 0.0:
            process = _SPAWN.Process(target=run_beside_server, args=(place.call,), daemon=False)
            with interruptions_postponed():
                process.start()
            place.process, place.started = process, now
