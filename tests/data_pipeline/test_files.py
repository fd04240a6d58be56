"""A file is there whole or not at all, whatever happens while it is written."""

from pathlib import Path

import pytest

from data_pipeline.files import atomic_write


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_the_new_content_takes_the_place_of_the_old(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    with atomic_write(path) as temporary:
        temporary.write_text("after")
        assert path.read_text() == "before"
    assert path.read_text() == "after"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("error", [OSError("no space left on device"), KeyboardInterrupt()])
def test_an_error_leaves_what_was_there(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    with pytest.raises(type(error)), atomic_write(path) as temporary:
        temporary.write_text("half")
        raise error
    assert path.read_text() == "before"
    assert names(tmp_path) == ["file"]


def test_missing_directories_are_made(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "a" / "b" / "file") as temporary:
        temporary.write_text("text")
    assert (tmp_path / "a" / "b" / "file").read_text() == "text"
