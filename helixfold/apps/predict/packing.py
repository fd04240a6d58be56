"""Pack the finished targets of a run into archives, for `--output-format packed`."""

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

# Keys of settings.json that identify results; provenance is read from the file itself.
_SETTINGS_KEYS = ("inputs", "options", "predictions", "clusters")


class Packer:
    """Packs the finished targets of one process in the directory `output`.

    `waiting` are the names of finished targets that killed runs left unpacked.
    """

    def __init__(self, output: Path, waiting: Iterable[str]) -> None:
        self._output, self._waiting = output, list(waiting)

    def add(self, name: str) -> None:
        """Add a finished target, and pack all waiting ones once they fill an archive."""
        self._waiting.append(name)
        if len(self._waiting) >= TARGETS:
            self.pack()

    def pack(self) -> None:
        """Pack all waiting targets; a target that cannot be packed stays in its directory, and a warning is printed."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        try:
            problems = pack_targets(self._output, waiting, entry_of)
        except (OSError, ValueError) as error:
            line = f"helixfold: {len(waiting)} targets were not packed and stay in directories: {error_reason(error)}"
            tqdm.write(printable(line, 1000), file=sys.stderr)
            return
        for name, problem in problems.items():
            tqdm.write(printable(f"{name}: not packed: {problem}", 1000), file=sys.stderr)


def restore(directory: Path) -> None:
    """Unpack a target that needs more work into its directory if it is packed.

    A damaged one is left packed, so that it is predicted from the start.
    """
    with PackedResults(directory.parent) as packed, suppress(InputError):  # `resume_status` has reported it
        if directory.name in packed:
            packed.restore(directory.name)


def entry_of(directory: Path) -> dict[str, Any]:
    """Return the entry of a finished target in the index of packed results, for resuming and for the batch's pages.

    `settings` are the keys of settings.json that identify results, `finished` the mean pLDDT by complete prediction,
    `order` the ranking, `relaxed` the predictions whose relaxation was tried, `line` the line of the batch's page, and
    `pulldown` the scores of the best prediction of a complex. Raise `InputError` for damaged files.
    """
    settings = read_json(SETTINGS.path(directory), AGAIN)
    if not isinstance(settings, dict) or not isinstance(settings.get("predictions"), dict):
        raise InputError.at(SETTINGS.path(directory), f"it has no predictions; {AGAIN}")
    finished = {name: read_finished(directory, name) for name in settings["predictions"]}
    return {
        "settings": {key: settings[key] for key in _SETTINGS_KEYS if key in settings},
        "finished": {name: float(each.plddt.mean()) for name, each in finished.items() if each is not None},
        "order": list(read_order(directory)),
        "relaxed": list(read_metrics(directory)),
        "line": line_entry(directory),
        "pulldown": pulldown_entry(directory),
    }
