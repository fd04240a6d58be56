"""Journal of a run's results, one line of JSON each, from which a killed run resumes.

`MAX_BYTES` is the maximum size of a journal that is read.
"""

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Self

from data_pipeline.io.errors import InputError
from data_pipeline.io.files import atomic_write, read_file, system_errors_naming
from data_pipeline.io.json_files import parse_json
from helixfold.results.json_object import JsonObject
from helixfold.results.record import RunRecord, require_same_settings

# Maximum size of a journal that is read.
MAX_BYTES = 2**30


class Journal:
    """Results of a run by key, in a file whose first line has the settings of the run; use it as a context manager.

    A file of an earlier run is read into `results` and written again. Fields of a result hold numbers, except `texts`
    (text) and `tables` (objects of numbers); any field may be null. Other lines, and an incomplete line of a killed
    run, are dropped. Settings that only one of the two runs has are kept, such as the multimer model if the other run
    scored no complexes. Raise `InputError` if a setting differs, unless `overwrite` is true, and for a file that is not
    a journal.
    """

    def __init__(
        self,
        path: Path,
        settings: Mapping[str, Any],
        *,
        texts: Collection[str] = (),
        tables: Collection[str] = (),
        overwrite: bool = False,
    ) -> None:
        self._path, self._texts, self._tables = path, texts, tables
        self.results: dict[str, dict[str, Any]] = {}
        earlier = self._read(settings) if path.exists() and not overwrite else {}
        lines = [{"settings": {**earlier, **settings}}, *(self._line(key, each) for key, each in self.results.items())]
        with atomic_write(path) as temporary:
            temporary.write_text("".join(f"{json.dumps(line, allow_nan=False)}\n" for line in lines))

    def __enter__(self) -> Self:
        self._file = self._path.open("a")
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, key: str, result: Mapping[str, Any]) -> None:
        """Append a result to the file and flush it to the disk; it replaces an earlier one with the same key."""
        self.results[key] = dict(result)
        with system_errors_naming(self._path):
            self._file.write(f"{json.dumps(self._line(key, result), allow_nan=False)}\n")
            self._file.flush()
            os.fsync(self._file.fileno())

    def _line(self, key: str, result: Mapping[str, Any]) -> dict[str, Any]:
        return {"key": key, "result": dict(result)}

    def _read(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Read the results, and return the settings of the earlier run."""
        first, *lines = read_file(self._path, MAX_BYTES).split(b"\n")
        try:
            earlier = dict(parse_json(first)["settings"])
        except (ValueError, KeyError, TypeError) as error:
            problem = "its first line is damaged, so the settings of its results are unknown; pass --overwrite"
            raise InputError.at(self._path, problem) from error
        now = json.loads(json.dumps(settings))
        before, after = (_record({name: each[name] for name in earlier.keys() & now}) for each in (earlier, now))
        require_same_settings(self._path, before.differences(after))
        for line in lines:
            try:
                entry = JsonObject(self._path, parse_json(line))
                result = entry.child("result")
                for name in result.content:
                    self._check(result, name)
                self.results[entry.get("key", str)] = result.content
            except ValueError:
                continue  # The line is incomplete or damaged, and its result is computed again.
        return earlier

    def _check(self, result: JsonObject, name: str) -> None:
        """Raise `InputError` for a field of the wrong type."""
        if name in self._tables:
            table = result.child(name)
            for each in table.content:
                table.optional_number(each)
        elif name in self._texts:
            result.get(name, str, "")
        else:
            result.optional_number(name)


def _record(settings: Mapping[str, Any]) -> RunRecord:
    """Return the settings as a record; digests of features and weights are recognised by their names."""
    weights = {name: digest for name, digest in settings.items() if name.endswith("weights")}
    inputs = {name: digest for name, digest in settings.items() if name == "features"}
    return RunRecord(
        inputs=inputs,
        options={name: value for name, value in settings.items() if name not in weights | inputs},
        weights={str(settings.get(name.replace("weights", "model"))): digest for name, digest in weights.items()},
    )
