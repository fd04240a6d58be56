"""Busy neighbours compute while they are wanted, and no longer."""

import multiprocessing
import sys
import time
from pathlib import Path

import pytest

from helixfold.parallel.neighbours import busy_neighbours


def processor_time(process: int) -> int:
    """Clock ticks, of which there are a hundred in a second."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@pytest.mark.skipif(sys.platform != "linux", reason="reads processor time where Linux has it")
def test_neighbours_compute_until_they_are_ended() -> None:
    others = {*multiprocessing.active_children()}
    with busy_neighbours(1):
        (neighbour,) = {*multiprocessing.active_children()} - others
        before, deadline = processor_time(neighbour.pid or 0), time.monotonic() + 30
        while processor_time(neighbour.pid or 0) < before + 10:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert {*multiprocessing.active_children()} <= others
    with busy_neighbours(0):
        assert {*multiprocessing.active_children()} <= others
