"""Search for homologs and templates on an MMseqs2 server with ColabFold's interface, if the user chooses one.

Sequences are sent to the address that the user names, and to no other.
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

MAX_STRUCTURE_BYTES = 2**31  # of the files of a sequence's hits; that of a large virus is 200 MB
_MAX_HITS = 20  # of a sequence, the best first, as in ColabFold
# An entry of the PDB, in its short or its long form, and a chain.
_NAME = re.compile(r"((?:pdb_)?[A-Za-z0-9]{4,12})_[A-Za-z0-9]{1,8}")
_CHUNK = 2**20


@dataclass(frozen=True)
class ServerSearch:
    """Search for the homologs of single sequences on an MMseqs2 server, with several sequences in one ticket.

    With `with_templates`, the template hits that come with the alignments are kept for `template_hits`.
    """

    file_format: ClassVar[FileFormat] = "a3m"
    targets_per_pass: ClassVar[int] = 16  # of which `ServerOptions.batch` are in one ticket

    server: AlignmentServer
    with_templates: bool = False
    _hits: dict[str, bytes] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def mode(self) -> str:
        """The server's name of the search."""
        return self.server.options.mode

    def identity(self) -> str:
        """Return address and mode in one line; a server does not tell the versions of its databases."""
        return f"mmseqs2 server {self.server.shown_address} mode {self.mode}"

    def template_hits(self, sequence: str) -> bytes:
        """Return the table of a sequence's best template hits (m8), from its search or from another one."""
        if sequence not in self._hits:
            self.search(sequence)
        return self._hits[sequence]

    def search(self, sequence: str) -> bytes:
        """Return the a3m of all homologs: the target under the name "query", UniRef rows, environmental rows."""
        (result,) = self.search_many([sequence])
        return result

    def search_many(self, sequences: Sequence[str]) -> Iterator[bytes]:
        """Yield the result of `search` for each sequence (upper-case letters); equal sequences are sent once.

        Raise `SearchError` as `AlignmentServer.search` does.
        """
        check_sequences(sequences)
        return self._results(sequences)

    def _results(self, sequences: Sequence[str]) -> Iterator[bytes]:
        options = self.server.options
        files = (UNIREF_FILE, ENVIRONMENTAL_FILE) if options.mode.startswith("env") else (UNIREF_FILE,)
        kind = TicketKind(endpoint="ticket/msa", mode=options.mode, files=files, with_templates=self.with_templates)
        unsent = list(dict.fromkeys(sequences))
        found: dict[str, tuple[ServerAlignments, int]] = {}
        with ExitStack() as open_files:
            for sequence in sequences:
                if sequence not in found:
                    batch = unsent[: options.batch]
                    del unsent[: options.batch]
                    alignments = open_files.enter_context(self.server.search(kind, batch))
                    found |= {each: (alignments, number) for number, each in enumerate(batch, start=FIRST_NUMBER)}
                    if self.with_templates:
                        hits = hits_by_number(alignments.template_table())
                        numbered = enumerate(batch, start=FIRST_NUMBER)
                        self._hits.update((each, hits.get(number, b"")) for number, each in numbered)
                alignments, number = found[sequence]
                yield alignments.a3m(number)


@dataclass(frozen=True, kw_only=True)
class ServerTemplates:
    """Template hits that an MMseqs2 server sends with its alignments, and the structure files that it has of them.

    Differs from ColabFold, which aligns the hits once more by hhsearch: these alignments are the server's own.
    """

    input_format: ClassVar[FileFormat] = "a3m"
    file_format: ClassVar[FileFormat] = "m8"

    alignments: ServerSearch
    structures: Path  # where the files are kept, by entry

    def identity(self) -> str:
        """Return address and mode in one line; a server does not tell the versions of its databases."""
        return f"{self.alignments.identity()} templates"

    def search(self, alignment: bytes) -> bytes:
        """Return the hits of the target of an a3m, its first row; the other rows are not read."""
        return self.alignments.template_hits(alignment.split(b"\n", 2)[1].decode())

    def fetch(self, names: Sequence[str]) -> None:
        """Save the structure files of hits with these names that are not in `structures` yet.

        Raise `SearchError` as `AlignmentServer.fetch` does.
        """
        missing = missing_structures(names, self.structures)
        if missing:
            path = f"template/{','.join(missing)}"
            self.alignments.server.fetch(path, lambda archive: save_structures(archive, missing, self.structures))


@dataclass(frozen=True)
class ServerPairing:
    """Search on an MMseqs2 server for rows of all sequences of a complex that are paired by species.

    Differs from ColabFold: where environmental rows begin, the sequences themselves are not repeated.
    """

    server: AlignmentServer

    @property
    def mode(self) -> str:
        """The server's name of the search."""
        options = self.server.options
        return f"pair{options.pair_strategy}{'-env' if options.pair_environmental else ''}"

    def identity(self) -> str:
        """Return address and mode in one line; a server does not tell the versions of its databases."""
        return f"mmseqs2 server {self.server.shown_address} mode {self.mode}"

    def search(self, sequences: Sequence[str]) -> Iterator[bytes]:
        """Yield the a3m of each of these different sequences, first the sequence itself under the name "query".

        All have equally many rows; rows of one number are of one species, and are gaps alone for a sequence that has
        none. Raise `SearchError` as `AlignmentServer.search` does, and if the server sends other numbers of rows.
        """
        if len(set(sequences)) < max(2, len(sequences)):
            raise ValueError("rows are paired between two or more different sequences")
        blocks = 2 if self.server.options.pair_environmental else 1
        kind = TicketKind(endpoint="ticket/pair", mode=self.mode, files=(PAIRED_FILE,), blocks=blocks)
        with self.server.search(kind, sequences) as found:
            yield from found.paired_a3ms()


def hits_by_number(table: bytes) -> dict[int, bytes]:
    """Return the lines of a server's table of hits (m8) by the number of their sequence, at most 20 of each.

    Raise `SearchError` for a line that does not begin with a number.
    """
    found: dict[int, list[bytes]] = {}
    for line in table.replace(b"\0", b"").splitlines():
        if not line.strip():
            continue
        number = line.partition(b"\t")[0]
        if not (number.isdigit() and len(number) < 10):
            raise SearchError("the server's answer has a table of template hits without numbers of sequences")
        hits = found.setdefault(int(number), [])
        if len(hits) < _MAX_HITS:
            hits.append(line + b"\n")
    return {number: b"".join(hits) for number, hits in found.items()}


def missing_structures(names: Sequence[str], directory: Path) -> list[str]:
    """Return one of the hits' names, such as 1abc_A, for each entry whose mmCIF file the directory lacks.

    What is no name of an entry and a chain is left out, because it becomes part of an address and of a file's name.
    """
    by_file: dict[str, str] = {}
    for name in names:
        if (file := _file(name)) is not None:
            by_file.setdefault(file, name)
    return [name for file, name in by_file.items() if not (directory / file).is_file()]


def save_structures(archive: IO[bytes], names: Sequence[str], directory: Path) -> None:
    """Save the mmCIF files of hits with these names from a server's archive (tar.gz), as far as it has them.

    Raise `DamagedArchiveError` for an archive that another download may replace, `SearchError` for any other problem,
    and `OSError` if there is no room.
    """
    wanted = {file for name in names if (file := _file(name)) is not None}
    with tempfile.TemporaryFile() as tar:
        unpack(archive, tar, most=MAX_STRUCTURE_BYTES)
        for name, span in locate_files(tar, wanted).items():
            with atomic_write(directory / name) as temporary, temporary.open("wb") as saved:
                tar.seek(span.start)
                for start in range(span.start, span.stop, _CHUNK):
                    saved.write(tar.read(min(_CHUNK, span.stop - start)))


def _file(name: str) -> str | None:
    match = _NAME.fullmatch(name)
    return None if match is None else f"{match[1].lower()}.cif"
