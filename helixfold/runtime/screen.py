"""Screen output of a run: a log file with times, warnings, and the estimated remaining time."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO, cast

import numpy as np

from data_pipeline.io.errors import InputError, SearchError, error_reason
from data_pipeline.io.files import os_errors_as_input_errors


@contextmanager
def logged_screen(path: Path | None) -> Iterator[None]:
    """Append every line that is printed inside to a log file, with the time; do nothing if `path` is None.

    Lines are still printed. Progress bars are not logged, but an `InputError` or `SearchError` that ends the context
    is. Folders of the file are created. Raise `InputError` if the file cannot be written.
    """
    if path is None:
        yield
        return
    with os_errors_as_input_errors(path, "cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        log = _Log(path)
    with closing(log):
        screen, errors = (cast(TextIO, _Copied(stream, log)) for stream in (sys.stdout, sys.stderr))
        with redirect_stdout(screen), redirect_stderr(errors):
            try:
                yield
            except (InputError, SearchError) as error:
                log.write(f"helixfold: error: {error}")  # the error itself is printed later
                raise


class _Log:
    """Log file whose lines have times. A failed write does not end the run; the first one is printed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._screen = sys.stderr
        self._is_incomplete = False

    def write(self, line: str) -> None:
        """Write a line with the time."""
        text = f"{datetime.now().astimezone().isoformat(timespec='seconds')} {line}\n"
        try:
            self._file.write(text.encode(errors="backslashreplace"))
        except OSError as error:
            if not self._is_incomplete:
                self._is_incomplete = True
                print(f"helixfold: {self._path}: lines are missing: {error_reason(error)}", file=self._screen)

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):
            self._file.close()


class _Copied:
    """Stream whose complete lines are copied to a log, except progress bars."""

    def __init__(self, stream: TextIO, log: _Log) -> None:
        self._stream, self._log, self._line = stream, log, ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write to the stream, and copy each line that is now complete to the log."""
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            *before, printed = line.split("\r")
            # A bar begins with a carriage return. Before a line is printed above a bar, the bar is erased with spaces.
            if printed and (not before or before[-1].isspace()):
                self._log.write(printed)
        return self._stream.write(text)


def hides_bars(progress: bool | None) -> bool | None:
    """Return tqdm's argument `disable`; bars are shown if `progress` is True and hidden if it is False.

    With None, they are shown on a terminal and in notebooks.
    """
    if progress is None:
        return False if "ipykernel" in sys.modules else None
    return not progress


def print_warning(text: str, *, is_json: bool) -> None:
    """Print a warning on stderr, also with --quiet; with `is_json`, print it a second time as a JSON object."""
    print(f"helixfold: warning: {text}", file=sys.stderr)  # also with --quiet
    if is_json:
        print(json.dumps({"warning": text}), file=sys.stderr, flush=True)


def remaining_seconds(
    finished: Sequence[tuple[int, float]], targets: Iterable[tuple[int, int]], at_once: int = 1
) -> float | None:
    """Estimate the remaining seconds for targets, from the times of finished predictions.

    `targets` are (residues, predictions), of which `at_once` are folded at a time. `finished` are (residues, seconds);
    return None if it is empty. The times are fitted by a N^2 + b N^3 for N residues, for the pair stream and for
    triangles, with a and b at least 0. Errors are relative to the time, because a batch begins with its short chains.
    """
    if not finished:
        return None
    # SciPy takes long to import, and only a batch of several targets needs it.
    from scipy.optimize import nnls  # noqa: PLC0415

    lengths, seconds = zip(*finished, strict=True)
    terms = _terms(lengths) / np.array(seconds)[:, None]
    # Scaling makes both columns equally large for the solver. With a single target, the first column is used.
    scale = terms.max(axis=0)
    factors = nnls(terms / scale, np.ones(len(terms)))[0] / scale
    return sum(predictions * float(_terms([residues])[0] @ factors) for residues, predictions in targets) / at_once


def _terms(lengths: Sequence[int]) -> np.ndarray:
    """Return N^2 and N^3 for each number of residues N."""
    return np.array([(residues**2, residues**3) for residues in lengths], dtype=np.float64)


def format_duration(seconds: float) -> str:
    """Format a duration with a suitable unit, such as 40 s, 12 min, 3.5 h or 2.1 d."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} d"


def format_estimate(seconds: float) -> str:
    """Format an estimated duration: "about 12 min", or "under 10 s", because starting takes seconds."""
    return "under 10 s" if seconds < 10 else f"about {format_duration(seconds)}"
