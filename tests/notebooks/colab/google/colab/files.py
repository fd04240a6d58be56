"""Stands in for Colab's uploads and downloads: a test sets what is uploaded next, and reads what was downloaded."""

from pathlib import Path

to_upload: list[dict[str, bytes]] = []
downloaded: list[str] = []


def upload() -> dict[str, bytes]:
    """Return the next files, which are also written into the working directory; the name of one that exists changes."""
    contents = {}
    for name, content in to_upload.pop(0).items():
        path = Path(name)
        while path.exists():
            path = path.with_stem(f"{path.stem} (1)")
        path.write_bytes(content)
        contents[str(path)] = content
    return contents


def download(name: str) -> None:
    if not Path(name).is_file():
        raise FileNotFoundError(name)
    downloaded.append(name)
