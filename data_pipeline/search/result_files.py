"""Store search results next to the features of a target, so that no search runs twice.

`RECORD_FILE` is the name of the file that records the search of each result file. `MAX_RESULT_BYTES` is the max size of
a result that is read.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from data_pipeline.io.errors import InputError, SearchError, TooLargeError
from data_pipeline.io.files import atomic_write
from data_pipeline.io.json_files import MAX_JSON_BYTES, parse_json
from data_pipeline.parse.text_files import read_text_bytes

RECORD_FILE = "searches.json"
MAX_RESULT_BYTES = 4 * 2**30
Parsed = TypeVar("Parsed")


@dataclass(frozen=True, kw_only=True)
class ResultFiles:
    """A target's directory of search results; `searches.json` records the search of each file.

    Two searches are the same if the tool's identity and the query (a sequence or an alignment) are equal.
    """

    directory: Path

    def find(self, file: str, identity: str, query: bytes) -> bytes | None:
        """Return the content of the file named `file` if it is the unchanged result of this search, else None.

        Raise `InputError` if `searches.json` is damaged or the file is too large.
        """
        path = self.directory / file
        entry = self._record().get(file)
        if entry is None or not path.is_file():
            return None
        content = read_text_bytes(path, MAX_RESULT_BYTES)
        return content if entry == _entry(identity, query, content) else None

    def find_or_search(
        self, file: str, identity: str, query: bytes, search: Callable[[], bytes], parse: Callable[[bytes], Parsed]
    ) -> tuple[bytes, Parsed]:
        """Return the content of `file` and the parsed content; run the search if necessary.

        If `file` is not the result of this search, or cannot be parsed, run `search` and store its result. Raise
        `SearchError`, and store nothing, for a result that cannot be parsed. Too large results are stored, and the
        `TooLargeError` of `parse` is raised.
        """
        content = self.find(file, identity, query)
        if content is not None:
            try:
                return content, parse(content)
            except TooLargeError:
                raise
            except InputError:  # earlier versions stored invalid results of servers
                pass
        content = search()
        return content, self.save(file, identity, query, content, parse)

    def save(self, file: str, identity: str, query: bytes, content: bytes, parse: Callable[[bytes], Parsed]) -> Parsed:
        """Write the result of a search to `file`, record it in `searches.json`, and return the parsed result.

        Raise `SearchError`, and write nothing, for a result that cannot be parsed. If `parse` raises `TooLargeError`,
        the result is written before the error is raised.
        """
        try:
            parsed = parse(content)
        except TooLargeError:
            self._write(file, identity, query, content)  # to reuse it if the command is repeated with fewer rows
            raise
        except InputError as error:
            raise SearchError(f"the result of a search cannot be read and is not stored: {error}") from error
        self._write(file, identity, query, content)
        return parsed

    def _write(self, file: str, identity: str, query: bytes, content: bytes) -> None:
        """Write a result file and its entry in the record file."""
        with atomic_write(self.directory / file) as temporary:
            temporary.write_bytes(content)
        record = {**self._record(), file: _entry(identity, query, content)}
        with atomic_write(self.directory / RECORD_FILE) as temporary:
            temporary.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")

    def _record(self) -> dict[str, object]:
        """Return the content of the record file; without the file, an empty dictionary."""
        path = self.directory / RECORD_FILE
        if not path.is_file():
            return {}
        try:
            record = parse_json(read_text_bytes(path, MAX_JSON_BYTES))
        except InputError:
            raise
        except ValueError as error:
            raise InputError.at(path, "not a record of searches; delete it to search again") from error
        if not isinstance(record, dict):
            raise InputError.at(path, "not a record of searches; delete it to search again")
        return record


def _entry(identity: str, query: bytes, content: bytes) -> dict[str, str]:
    return {"search": identity, "query_sha256": _sha256(query), "sha256": _sha256(content)}


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
