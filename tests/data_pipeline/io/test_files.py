"""A file is there whole or not at all, whatever happens while it is written."""

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from data_pipeline.io import files
from data_pipeline.io.errors import DiskFullError, InputError
from data_pipeline.io.files import MovedDirectoryError, atomic_write, read_file, require_unmoved, unmoved_directory
from data_pipeline.training_sets.store import write_database


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


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_a_sentence_with_the_file_and_what_to_do(tmp_path: Path, number: int) -> None:
    path = tmp_path / "a" / "file"
    for named in (None, "temporary"):
        with pytest.raises(DiskFullError) as raised, atomic_write(path) as temporary:
            raise OSError(number, os.strerror(number), named and str(temporary))
        assert str(raised.value) == f"{path}: {os.strerror(number)}; free some space, then run the same command again"
        assert (raised.value.errno, raised.value.filename) == (number, str(path))
    assert names(path.parent) == []


@pytest.mark.parametrize("named", [None, "temporary", "other"])
def test_other_system_errors_name_the_file_that_is_written(tmp_path: Path, named: str | None) -> None:
    path = tmp_path / "file"
    with pytest.raises(OSError, match="Input/output") as raised, atomic_write(path) as temporary:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(temporary) if named == "temporary" else named)
    assert raised.value.filename == (named if named == "other" else str(path))


@pytest.mark.parametrize("error", [RuntimeError("PytorchStreamWriter failed"), OSError("7 requested and 3 written")])
def test_an_error_of_a_library_that_says_nothing_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    for number, expected in ((None, type(error)), (errno.ENOSPC, DiskFullError)):
        monkeypatch.setattr(files, "_fullness", lambda _, number=number: number)
        with pytest.raises(expected), atomic_write(tmp_path / "file"):
            raise error
    with pytest.raises(InputError), atomic_write(tmp_path / "file"):
        raise InputError("not of the disk")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    try:
        is_mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        is_mounted = False
    if not is_mounted:
        pytest.skip("needs the right to mount")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_database_that_does_not_fit_says_so_and_is_written_when_it_does(small_disk: Path) -> None:
    records = [(f"{number:032x}", bytes(7000)) for number in range(20)]
    sizes = [len(content) for _, content in records]
    path = small_disk / "features.lmdb"
    assert files._fullness(small_disk) == errno.ENOSPC  # for the megabyte that is tried
    # LMDB itself says "mdb_txn_commit: Input/output error".
    with pytest.raises(DiskFullError, match=r"features\.lmdb: No space left on device; free some space, then run"):
        write_database(path, records, sizes)
    assert names(small_disk) == []
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    assert files._fullness(small_disk) is None
    write_database(path, records, sizes)
    assert names(small_disk) == ["features.lmdb"]


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


def test_a_signal_as_soon_as_a_file_is_there_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch = Path.touch

    def interrupted(path: Path, **options: bool) -> None:
        touch(path, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "touch", interrupted)
    with pytest.raises(KeyboardInterrupt), atomic_write(tmp_path / "x"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_reading_a_small_file_allocates_no_more_than_its_size(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"content")
    assert read_file(tmp_path / "small", 2**62) == b"content"
