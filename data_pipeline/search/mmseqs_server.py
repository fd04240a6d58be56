"""Search for homologs on an MMseqs2 server with ColabFold's interface, if the user chooses to send sequences there."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import ClassVar

from data_pipeline.search.alignment_server import FIRST_NUMBER, AlignmentServer, TicketKind, check_sequences
from data_pipeline.search.server_archive import ENVIRONMENTAL_FILE, PAIRED_FILE, UNIREF_FILE, ServerAlignments
from data_pipeline.search.tool import FileFormat


@dataclass(frozen=True)
class ServerSearch:
    """Search for the homologs of single sequences on an MMseqs2 server, with several sequences in one ticket."""

    file_format: ClassVar[FileFormat] = "a3m"
    targets_per_pass: ClassVar[int] = 16  # of which `ServerOptions.batch` are in one ticket

    server: AlignmentServer

    @property
    def mode(self) -> str:
        """The server's name of the search."""
        return self.server.options.mode

    def identity(self) -> str:
        """Return address and mode in one line; a server does not tell the versions of its databases."""
        return f"mmseqs2 server {self.server.shown_address} mode {self.mode}"

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
        kind = TicketKind(endpoint="ticket/msa", mode=options.mode, files=files)
        unsent = list(dict.fromkeys(sequences))
        found: dict[str, tuple[ServerAlignments, int]] = {}
        with ExitStack() as open_files:
            for sequence in sequences:
                if sequence not in found:
                    batch = unsent[: options.batch]
                    del unsent[: options.batch]
                    alignments = open_files.enter_context(self.server.search(kind, batch))
                    found |= {each: (alignments, number) for number, each in enumerate(batch, start=FIRST_NUMBER)}
                alignments, number = found[sequence]
                yield alignments.a3m(number)


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
