"""Keep results of searches by their content hash, so that runs and targets with equal sequences share them."""

import gzip
import hashlib
import zlib
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.files import atomic_write

# Alignments are as small as a fifth even so, and a search of a thousand targets does not wait for the processor.
_LEVEL = 1


@dataclass(frozen=True)
class SharedResults:
    """A folder of results, each in a file named after the hash of its search and its query.

    Any number of processes may read and write it at once. What is damaged is searched again; to save space, delete
    any file.
    """

    directory: Path

    def find(self, identity: str, query: str) -> bytes | None:
        """Return the result of an earlier search with this identity and query; None if there is none."""
        try:
            packed = self._path(identity, query).read_bytes()
            return gzip.decompress(packed) if packed else None
        except (OSError, EOFError, zlib.error):
            return None

    def save(self, identity: str, query: str, content: bytes) -> None:
        """Keep a result; raise `OSError` if it cannot be written."""
        path = self._path(identity, query)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path, sync=False) as temporary:
            temporary.write_bytes(gzip.compress(content, _LEVEL, mtime=0))

    def _path(self, identity: str, query: str) -> Path:
        name = hashlib.sha256(f"{identity}\n{query}".encode()).hexdigest()
        return self.directory / name[:2] / f"{name[2:]}.gz"
