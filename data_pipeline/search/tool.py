"""What every search has in common: it takes a sequence or an alignment and gives the content of a result file.

A result is kept as the bytes of the file that the tool writes (Stockholm, a3m or hhr), under AlphaFold's file names;
so what was found by one machine, or by AlphaFold itself, can be read by another, and each format has one reader.
"""

from typing import Literal, Protocol, runtime_checkable

FileFormat = Literal["sto", "a3m", "hhr"]


@runtime_checkable
class SequenceSearch(Protocol):
    """Finds relatives of a sequence in a database."""

    @property
    def file_format(self) -> FileFormat:
        """Of the result."""

    def identity(self) -> str:
        """One line that names tool, version, every option and the database; equal lines give equal results."""

    def search(self, sequence: str) -> bytes:
        """The alignment of everything found, the target ("query") first. A failing tool raises `SearchError`."""


@runtime_checkable
class TemplateSearch(Protocol):
    """Finds chains of known structure for an alignment."""

    @property
    def input_format(self) -> FileFormat:
        """Of the alignment. Stockholm has insertions aligned and reference columns marked, a3m match columns only."""

    @property
    def file_format(self) -> FileFormat:
        """Of the result."""

    def identity(self) -> str:
        """As for `SequenceSearch`."""

    def search(self, alignment: bytes) -> bytes:
        """Hits for an alignment whose first row is the target. A failing tool raises `SearchError`."""
