"""Archives hold the files of a target by value, wherever they lie in its directory."""

import os
import zipfile
from pathlib import Path

from helixfold.results.archive import write_archive, write_zip

CONTENTS = {
    "a.txt": b"first\n",
    "msas/H/rows.a3m": b">x\nGG-X\n",
    "msas/L/rows.a3m": b"",
    "b.bin": bytes(range(256)) * 9,
}


def target(directory: Path) -> Path:
    for name, content in CONTENTS.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (directory / "link.txt").symlink_to(directory / "a.txt")
    return directory


def contents(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        return {member.filename: archive.read(member) for member in archive.infolist()}


def test_every_file_is_in_the_archive_under_the_targets_name(tmp_path: Path) -> None:
    directory = target(tmp_path / "T.1")
    write_archive(directory)
    assert contents(tmp_path / "T.1.result.zip") == {f"T.1/{name}": content for name, content in CONTENTS.items()}
    with zipfile.ZipFile(tmp_path / "T.1.result.zip") as archive:
        assert [member.external_attr >> 16 & 0o777 for member in archive.infolist()] == [0o644] * 4


def test_a_directory_can_be_packed_under_another_name(tmp_path: Path) -> None:
    write_zip(tmp_path / "x.zip", {"other": target(tmp_path / "T1")})
    assert contents(tmp_path / "x.zip") == {f"other/{name}": content for name, content in CONTENTS.items()}


def test_a_changed_file_is_packed_again_and_an_unchanged_target_is_not(tmp_path: Path) -> None:
    directory = target(tmp_path / "T1")
    for path in directory.rglob("*"):
        if not path.is_symlink():
            os.utime(path, (1000, 1000))
    archive = tmp_path / "T1.result.zip"
    write_archive(directory)
    archive.write_bytes(b"earlier")
    os.utime(archive, (2000, 2000))
    write_archive(directory)
    assert archive.read_bytes() == b"earlier"
    (directory / "msas/L/rows.a3m").write_bytes(b"new")
    os.utime(directory / "msas/L/rows.a3m", (3000, 3000))
    write_archive(directory)
    assert contents(archive)["T1/msas/L/rows.a3m"] == b"new"
