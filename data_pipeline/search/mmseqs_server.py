"""Search for homologs and templates on an MMseqs2 server with ColabFold's interface.

Sequences are only sent to the server that the user chooses. `MAX_STRUCTURE_BYTES` limits the unpacked structure files
of the hits of a sequence.
"""

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, ClassVar

from data_pipeline.io.errors import SearchError
from data_pipeline.io.files import atomic_write
from data_pipeline.search.alignment_server import FIRST_NUMBER, AlignmentServer, TicketKind, check_sequences
from data_pipeline.search.server_archive import (
    ENVIRONMENTAL_FILE,
    PAIRED_FILE,
    UNIREF_FILE,
    ServerAlignments,
    locate_files,
    unpack,
)
from data_pipeline.search.tool import FileFormat

MAX_STRUCTURE_BYTES = 2**31  # of the structure files of all hits of a sequence; the file of a large virus has 200 MB
_MAX_HITS = 20  # best hits per sequence, as in ColabFold
# A PDB id in its short or long form, and a chain.
_HIT_NAME = re.compile(r"((?:pdb_)?[A-Za-z0-9]{4,12})_[A-Za-z0-9]{1,8}")
_CHUNK_BYTES = 2**20


@dataclass(frozen=True)
class ServerSearch:
    """Search for homologs of single sequences on an MMseqs2 server, with several sequences per ticket.

    With `with_templates`, the template hits that the server returns with the alignments are stored for `template_hits`.
    """

    file_format: ClassVar[FileFormat] = "a3m"
    targets_per_pass: ClassVar[int] = 16  # with `ServerOptions.batch` per ticket

    server: AlignmentServer
    with_templates: bool = False
    _hits: dict[str, bytes] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def mode(self) -> str:
        """The server's name of the search, such as "env"."""
        return self.server.options.mode

    def identity(self) -> str:
        """Return address and mode in one line; a server does not report the versions of its databases."""
        return f"mmseqs2 server {self.server.shown_address} mode {self.mode}"

    def template_hits(self, sequence: str) -> bytes:
        """Return the table of the best 20 template hits of a sequence (m8), searching if it was not searched before.

        Only a search `with_templates` stores hits.
        """
        if sequence not in self._hits:
            self.search(sequence)
        return self._hits[sequence]

    def search(self, sequence: str) -> bytes:
        """Return the a3m of all homologs: the target, named "query", then UniRef rows, then environmental rows."""
        (result,) = self.search_many([sequence])
        return result

    def search_many(self, sequences: Sequence[str]) -> Iterator[bytes]:
        """Yield the result of `search` for each sequence (upper-case letters); equal sequences are sent once.

        Raise `SearchError` as in `AlignmentServer.search`.
        """
        check_sequences(sequences)
        return self._results(sequences)

    def _results(self, sequences: Sequence[str]) -> Iterator[bytes]:
        """Yield the A3M alignment of each sequence and keep its template hits; sequences are sent in batches."""
        options = self.server.options
        files = (UNIREF_FILE, ENVIRONMENTAL_FILE) if options.mode.startswith("env") else (UNIREF_FILE,)
        kind = TicketKind(endpoint="ticket/msa", mode=options.mode, files=files, with_templates=self.with_templates)
        unsent = list(dict.fromkeys(sequences))
        results: dict[str, tuple[ServerAlignments, int]] = {}
        with ExitStack() as open_files:
            for sequence in sequences:
                if sequence not in results:
                    batch = unsent[: options.batch]
                    del unsent[: options.batch]
                    alignments = open_files.enter_context(self.server.search(kind, batch))
                    keys = range(FIRST_NUMBER, FIRST_NUMBER + len(batch))
                    results |= {each: (alignments, key) for key, each in zip(keys, batch, strict=True)}
                    if self.with_templates:
                        hits = hits_by_number(alignments.template_table())
                        self._hits.update((each, hits.get(key, b"")) for key, each in zip(keys, batch, strict=True))
                alignments, key = results[sequence]
                yield alignments.a3m(key)


@dataclass(frozen=True, kw_only=True)
class ServerTemplates:
    """Template hits that an MMseqs2 server returns with its alignments, and their structure files.

    `structures` is the directory of the downloaded files, named by entry. Differs from ColabFold: the alignments of the
    hits are the server's, whereas ColabFold aligns again with hhsearch.
    """

    input_format: ClassVar[FileFormat] = "a3m"
    file_format: ClassVar[FileFormat] = "m8"

    alignments: ServerSearch
    structures: Path  # directory of the downloaded files, named by entry

    def identity(self) -> str:
        """Return address and mode in one line; a server does not report the versions of its databases."""
        return f"{self.alignments.identity()} templates"

    def search(self, alignment: bytes) -> bytes:
        """Return the hits of the target, the first row of an a3m; the other rows are not read."""
        return self.alignments.template_hits(alignment.split(b"\n", 2)[1].decode())

    def fetch(self, names: Sequence[str]) -> None:
        """Download the structure files of hits with these names that are not in `structures` yet.

        Raise `SearchError` as in `AlignmentServer.fetch`.
        """
        missing = missing_structures(names, self.structures)
        if missing:
            path = f"template/{','.join(missing)}"
            self.alignments.server.fetch(path, lambda archive: save_structures(archive, missing, self.structures))


@dataclass(frozen=True)
class ServerPairing:
    """Search on an MMseqs2 server for rows of all sequences of a complex, paired by species.

    Differs from ColabFold: the sequences themselves are not repeated before the environmental rows.
    """

    server: AlignmentServer

    @property
    def mode(self) -> str:
        """The server's name of the search, such as "pairgreedy" or "paircomplete-env"."""
        options = self.server.options
        return f"pair{options.pair_strategy}{'-env' if options.pair_environmental else ''}"

    def identity(self) -> str:
        """Return address and mode in one line; a server does not report the versions of its databases."""
        return f"mmseqs2 server {self.server.shown_address} mode {self.mode}"

    def search(self, sequences: Sequence[str]) -> Iterator[bytes]:
        """Yield one a3m per sequence of a complex; the first row is the sequence itself, named "query".

        The sequences must differ. All a3ms have the same number of rows. Rows with the same index come from one
        species, and consist of gaps for sequences without a hit. Raise `SearchError` as in `AlignmentServer.search`,
        and if the server sends different numbers of rows.
        """
        if len(set(sequences)) < max(2, len(sequences)):
            raise ValueError("rows are paired between two or more different sequences")
        blocks = 2 if self.server.options.pair_environmental else 1
        kind = TicketKind(endpoint="ticket/pair", mode=self.mode, files=(PAIRED_FILE,), blocks=blocks)
        with self.server.search(kind, sequences) as alignments:
            yield from alignments.paired_a3ms()


def hits_by_number(table: bytes) -> dict[int, bytes]:
    """Return the lines of a server's table of hits (m8) by sequence number, at most 20 per sequence.

    Raise `SearchError` for a line that does not begin with a number.
    """
    hits_of: dict[int, list[bytes]] = {}
    for line in table.replace(b"\0", b"").splitlines():
        if not line.strip():
            continue
        key = line.partition(b"\t")[0]
        if not (key.isdigit() and len(key) < 10):
            raise SearchError("the server's table of template hits lacks sequence numbers")
        hits = hits_of.setdefault(int(key), [])
        if len(hits) < _MAX_HITS:
            hits.append(line + b"\n")
    return {key: b"".join(hits) for key, hits in hits_of.items()}


def missing_structures(names: Sequence[str], directory: Path) -> list[str]:
    """Return one hit name, such as 1abc_A, for each entry whose mmCIF file is not in the directory.

    Names other than an entry and a chain are left out, because names become part of URLs and file names.
    """
    by_file: dict[str, str] = {}
    for name in names:
        if (file := _file(name)) is not None:
            by_file.setdefault(file, name)
    return [name for file, name in by_file.items() if not (directory / file).is_file()]


def save_structures(archive: IO[bytes], names: Sequence[str], directory: Path) -> None:
    """Save the mmCIF files of hits with these names from a server's archive (tar.gz); missing files are ignored.

    Raise `DamagedArchiveError` if another download may succeed, `SearchError` for any other problem, and `OSError` if
    the disk is full.
    """
    file_names = {file for name in names if (file := _file(name)) is not None}
    with tempfile.TemporaryFile() as tar:
        unpack(archive, tar, max_bytes=MAX_STRUCTURE_BYTES)
        for name, span in locate_files(tar, file_names).items():
            with atomic_write(directory / name) as temporary, temporary.open("wb") as output:
                tar.seek(span.start)
                for start in range(span.start, span.stop, _CHUNK_BYTES):
                    output.write(tar.read(min(_CHUNK_BYTES, span.stop - start)))


def _file(name: str) -> str | None:
    """Return the name of the mmCIF file for a hit such as "1abc_A", or None if it is not named like this."""
    match = _HIT_NAME.fullmatch(name)
    return None if match is None else f"{match[1].lower()}.cif"
