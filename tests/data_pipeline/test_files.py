"""A file is there whole or not at all, whatever happens while it is written."""

from pathlib import Path

import pytest

from data_pipeline.files import MovedDirectoryError, atomic_write, require_unmoved, unmoved_directory


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


def test_a_directory_that_was_moved_is_not_made_anew(tmp_path: Path) -> None:
    run, moved = tmp_path / "run", tmp_path / "moved"
    (run / "a").mkdir(parents=True)
    (tmp_path / "link").symlink_to(run)
    with unmoved_directory(tmp_path / "link"):
        for place in (run, tmp_path / "link"):
            with atomic_write(place / "b/c/file") as temporary:
                temporary.write_text("text")
        run.rename(moved)
        for place in (run, tmp_path / "link"):
            for path in (place / "file", place / "a/b/file"):
                with pytest.raises(MovedDirectoryError, match=r"was moved or removed while this run wrote there"):
                    atomic_write(path).__enter__()
        assert not run.exists()
        run.mkdir()  # another one in its place is not the one
        with pytest.raises(MovedDirectoryError):
            require_unmoved(run)
        with atomic_write(tmp_path / "running/file") as temporary:  # a name that only begins alike
            temporary.write_text("text")
        run.rmdir()
        moved.rename(run)
        with atomic_write(run / "file") as temporary:
            temporary.write_text("text")
    run.rename(moved)
    with atomic_write(run / "file") as temporary:
        temporary.write_text("text")
