"""Pack the finished targets of a run, many at a time, for `--output-format packed`."""

import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tqdm import tqdm

from data_pipeline.io.errors import InputError, error_reason, printable
from data_pipeline.io.json_files import read_json
from helixfold.report.files import read_order
from helixfold.report.index import line_entry
from helixfold.report.pulldown import pulldown_entry
from helixfold.results.file_table import SETTINGS
from helixfold.results.json_object import AGAIN
from helixfold.results.packed import TARGETS, PackedResults, pack_targets
from helixfold.results.prediction import read_finished
from helixfold.results.relaxed import read_metrics

# What of settings.json tells results from others; its provenance is read from the file.
_OF_RECORD = ("inputs", "options", "predictions", "clusters")


class Packer:
    """The finished targets that one process has to pack; those that killed runs left come first."""

    def __init__(self, output: Path, waiting: Iterable[str] = ()) -> None:
        self._output, self._waiting = output, list(waiting)

    def add(self, name: str) -> None:
        """Pack all targets that wait, this one too, once they fill an archive."""
        self._waiting.append(name)
        if len(self._waiting) >= TARGETS:
            self.pack()

    def pack(self) -> None:
        """Pack all targets that wait; what cannot be packed stays in its directory, and stops nothing."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        try:
            problems = pack_targets(self._output, waiting, entry_of)
        except (OSError, ValueError) as error:
            line = f"helixfold: {len(waiting)} targets stay in their directories: not packed: {error_reason(error)}"
            tqdm.write(printable(line, 1000), file=sys.stderr)
            return
        for name, problem in problems.items():
            tqdm.write(printable(f"{name}: not packed: {problem}", 1000), file=sys.stderr)


def restore(directory: Path) -> None:
    """Unpack a target that needs more work, if it is packed; a damaged one is predicted from the start."""
    with PackedResults(directory.parent) as packed, suppress(InputError):  # `resume_status` has told of it
        if directory.name in packed:
            packed.restore(directory.name)


def entry_of(directory: Path) -> dict[str, Any]:
    """Return the line of a finished target in the index: what a run that resumes, and the pages of a batch, ask of it.

    `settings` is what its settings.json tells results by, `finished` the mean pLDDT of each whole prediction, `order`
    the ranking, `relaxed` the predictions whose relaxation was tried, `line` its line of the batch's page, and
    `pulldown` of a complex the scores of its best prediction. Raise `InputError` for damaged files.
    """
    settings = read_json(SETTINGS.path(directory), AGAIN)
    if not isinstance(settings, dict) or not isinstance(settings.get("predictions"), dict):
        raise InputError.at(SETTINGS.path(directory), f"names no predictions; {AGAIN}")
    finished = {name: read_finished(directory, name) for name in settings["predictions"]}
    return {
        "settings": {key: settings[key] for key in _OF_RECORD if key in settings},
        "finished": {name: float(each.plddt.mean()) for name, each in finished.items() if each is not None},
        "order": list(read_order(directory)),
        "relaxed": list(read_metrics(directory)),
        "line": line_entry(directory),
        "pulldown": pulldown_entry(directory),
    }
