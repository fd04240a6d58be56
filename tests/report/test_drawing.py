"""Plots that other processes draw are those that this one would draw, whatever happens to the others."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helixfold.report.drawing import drawing_processes
from helixfold.report.plot_files import PlotFiles

# Only a process that has not imported PyTorch or matplotlib has its plots drawn by others.
_PROGRAM = """
import os, signal, sys, time
import numpy as np
from helixfold.report import drawing
from helixfold.report.plots import pae_plot, plddt_plot

plddts, pae = {"m": np.linspace(5, 95, 30)}, {"m": np.arange(900, dtype=np.float32).reshape(30, 30) / 30}
sys.stdout.write("begun ")  # is printed once, although processes are forked

def children(of):
    return open(f"/proc/{of}/task/{of}/children").read().split()

with drawing.drawing_processes() as drawers:
    first, = children(os.getpid())
    os.kill(int(first), signal.SIGINT)  # as from a terminal
    # More than a connection holds.
    wide = drawers.draw(pae_plot, {"m": np.zeros((900, 900), np.float32)}, 31.75)
    asked = [(plddt_plot, plddts), (pae_plot, pae, 31.75), (plddt_plot, plddts, ["x"])]
    pictures = [drawers.draw(*each) for each in asked]
    wrong = drawers.draw(plddt_plot, {})
    others = [picture() for picture in reversed(pictures)]
    assert "matplotlib" not in sys.modules
    second, = children(int(first))
    os.kill(int(first), signal.SIGKILL)
    lost = [drawers.draw(plddt_plot, plddts) for _ in range(2)]
    own = [plddt_plot(plddts, ["x"]), pae_plot(pae, 31.75), plddt_plot(plddts)]
    assert others == own
    assert [picture() for picture in lost] == [own[2]] * 2
    assert len(wide()) > 1000
    try:
        wrong()
    except (ValueError, ZeroDivisionError):
        print("refused")
for _ in range(600):
    if not os.path.exists(f"/proc/{second}") and not os.path.exists(f"/proc/{first}"):
        break
    time.sleep(0.1)
else:
    sys.exit("still there")
print("ended")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems draw in the process itself")
def test_others_draw_the_same_pictures_and_this_process_draws_what_they_cannot() -> None:
    program = f"import data_pipeline.processors as p; p.available_processors = lambda: 2\n{_PROGRAM}"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.stdout.split(), ended.returncode) == (["begun", "refused", "ended"], 0), ended.stderr


def test_no_process_is_forked_where_pytorch_runs_threads() -> None:
    assert "torch" in sys.modules or "matplotlib.figure" in sys.modules
    with drawing_processes() as drawers:
        assert drawers is None


class Later:
    """Drawers whose pictures come when they are asked for."""

    def __init__(self) -> None:
        self.drawn: list[object] = []

    def draw(self, plot: Callable[..., bytes], *arguments: Any) -> Callable[[], bytes]:
        self.drawn.append(arguments)
        return lambda: plot(*arguments)


def test_files_are_written_at_once_or_when_they_are_needed(tmp_path: Path) -> None:
    def plot(text: str) -> bytes:
        return text.encode()

    PlotFiles().add(tmp_path / "at_once.png", plot, "a")
    assert (tmp_path / "at_once.png").read_bytes() == b"a"
    later = Later()
    files = PlotFiles(later)  # type: ignore[arg-type]
    files.add(tmp_path / "later.png", plot, "b")
    assert later.drawn == [("b",)]
    assert not (tmp_path / "later.png").exists()
    files.write()
    files.write()
    assert (tmp_path / "later.png").read_bytes() == b"b"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["at_once.png", "later.png"]
