"""Stands in for Google Drive, as a directory."""

from pathlib import Path


def mount(directory: str) -> None:
    Path(directory, "MyDrive").mkdir(parents=True, exist_ok=True)
