"""A stand-in for a search program, which records how it is called."""

from pathlib import Path


class RecordingProgram:
    """A program that writes down its arguments and then runs a shell script."""

    def __init__(self, folder: Path, name: str, script: str = "") -> None:
        self._calls, self.path = folder / f"{name}.calls", folder / name
        self.path.write_text(f'#!/bin/sh\necho "$*" >> {self._calls}\n{script}\n')
        self.path.chmod(0o755)

    @property
    def calls(self) -> list[str]:
        """The arguments of each call so far, with one space between."""
        return self._calls.read_text().splitlines() if self._calls.exists() else []
