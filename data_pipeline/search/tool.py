"""Interfaces of search tools, which take a sequence or an alignment and return the content of a result file.

Results are stored in the format of the tool (Stockholm, a3m, hhr or m8) under AlphaFold's file names, so results from
other machines and from AlphaFold itself can be used too. A `FileFormat` is such a format, and "sto" is Stockholm.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, Protocol, runtime_checkable

FileFormat = Literal["sto", "a3m", "hhr", "m8"]


@runtime_checkable
class SequenceSearch(Protocol):
    """A tool that searches a database for homologs of a sequence."""

    @property
    def file_format(self) -> FileFormat:
        """Format of the result: "sto" (Stockholm) or "a3m"."""

    def identity(self) -> str:
        """Return one line that names tool, version, every option and the database; equal lines give equal results."""

    def search(self, sequence: str) -> bytes:
        """Return the alignment of all hits, with the target ("query") first; raise `SearchError` on failure."""


@runtime_checkable
class BatchSearch(SequenceSearch, Protocol):
    """A tool that searches for several targets in little more time than for one."""

    @property
    def targets_per_pass(self) -> int:
        """Maximum number of targets per call; their results are in memory at the same time."""

    def search_many(self, sequences: Sequence[str]) -> Iterable[bytes]:
        """Return the result of `search` for each sequence; the iterable may search lazily."""


@runtime_checkable
class PairingSearch(Protocol):
    """A tool that searches with all sequences of a complex at once and pairs the rows."""

    def identity(self) -> str:
        """Return one line that names tool, version, every option and the database; equal lines give equal results."""

    def search(self, sequences: Sequence[str]) -> Iterable[bytes]:
        """Return one a3m per sequence, with the sequence as its first row; rows with the same index are paired.

        The sequences must differ. Raise `SearchError` if the tool fails.
        """


@runtime_checkable
class BatchPairing(PairingSearch, Protocol):
    """A tool that pairs the rows of several complexes in little more time than of one."""

    def search_many(self, complexes: Sequence[Sequence[str]]) -> Sequence[Sequence[bytes]]:
        """Return the result of `search` for each complex."""


@runtime_checkable
class TemplateSearch(Protocol):
    """A tool that searches a database for chains of known structure that match an alignment."""

    @property
    def input_format(self) -> FileFormat:
        """Format of the alignment: a3m, or Stockholm with aligned insertions and reference columns (`#=GC RF`)."""

    @property
    def file_format(self) -> FileFormat:
        """Format of the hits: "hhr", "sto" (Stockholm) or "m8"."""

    def identity(self) -> str:
        """Return one line that names tool, version, every option and the database; equal lines give equal results."""

    def search(self, alignment: bytes) -> bytes:
        """Return the hits of an alignment whose first row is the target; raise `SearchError` on failure."""


@runtime_checkable
class StructureSource(Protocol):
    """A template search that also downloads the structure files of its hits."""

    def fetch(self, names: Sequence[str]) -> None:
        """Save the structure files of hits with these names, such as 1abc_A, in the directory of structures."""
