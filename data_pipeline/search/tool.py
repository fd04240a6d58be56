"""Interfaces of search tools: a tool takes a sequence or an alignment and returns the content of a result file.

Results are stored as the tool writes them (Stockholm, a3m, hhr or m8), under AlphaFold's file names, so that results of
other machines and of AlphaFold itself can be read too.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, Protocol, runtime_checkable

FileFormat = Literal["sto", "a3m", "hhr", "m8"]


@runtime_checkable
class SequenceSearch(Protocol):
    """A tool that searches a database for homologs of a sequence."""

    @property
    def file_format(self) -> FileFormat:
        """Format of the result."""

    def identity(self) -> str:
        """Return one line that names tool, version, every option and the database; equal lines give equal results."""

    def search(self, sequence: str) -> bytes:
        """Return the alignment of all hits, the target ("query") first; raise `SearchError` if the tool fails."""


@runtime_checkable
class BatchSearch(SequenceSearch, Protocol):
    """A tool that searches for several targets in hardly more time than for one."""

    @property
    def targets_per_pass(self) -> int:
        """The most targets that one call should be given; their results are in memory together."""

    def search_many(self, sequences: Sequence[str]) -> Iterable[bytes]:
        """Return the result of `search` for each sequence, which may be made when it is asked for."""


@runtime_checkable
class PairingSearch(Protocol):
    """A tool that searches for rows of all sequences of a complex at once, which it pairs."""

    def identity(self) -> str:
        """Return one line that names tool, version, every option and the database; equal lines give equal results."""

    def search(self, sequences: Sequence[str]) -> Iterable[bytes]:
        """Return an a3m for each of these different sequences, which is its first row; rows of one number are paired.

        Raise `SearchError` if the tool fails.
        """


@runtime_checkable
class BatchPairing(PairingSearch, Protocol):
    """A tool that pairs rows of several complexes in hardly more time than of one."""

    def search_many(self, complexes: Sequence[Sequence[str]]) -> Sequence[Sequence[bytes]]:
        """Return the result of `search` for each complex."""


@runtime_checkable
class TemplateSearch(Protocol):
    """A tool that searches a database for chains of known structure that match an alignment."""

    @property
    def input_format(self) -> FileFormat:
        """Format of the alignment: Stockholm with aligned insertions and marked reference columns, or a3m."""

    @property
    def file_format(self) -> FileFormat:
        """Format of the result."""

    def identity(self) -> str:
        """Return one line that names tool, version, every option and the database; equal lines give equal results."""

    def search(self, alignment: bytes) -> bytes:
        """Return the hits of an alignment whose first row is the target; raise `SearchError` if the tool fails."""


@runtime_checkable
class StructureSource(Protocol):
    """A search for templates that also brings their structure files."""

    def fetch(self, names: Sequence[str]) -> None:
        """Save the structure files of hits with these names where the search's user reads them."""
