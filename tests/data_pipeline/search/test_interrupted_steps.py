"""A download of a database that is killed before or after any change of a file goes on to the same files."""

import gzip
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from data_pipeline.search import database_download as module
from data_pipeline.search.cluster_build import move_database
from data_pipeline.search.database_download import DOWNLOADS, download_databases
from tests.data_pipeline.search.test_database_download import ARCHIVE, HASTY, NAME, database_files, download
from tests.support.interruptions import check_kills, states
from tests.weights.server import Behaviour, serving

pytestmark = pytest.mark.integration

SINGLE = "pdb100_230517"


def contents(directory: Path) -> dict[str, bytes]:
    """Files of the directory itself; what a killed program has unpacked is in folders of its own."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


class Conversion:
    """In place of MMseqs2: one file, and the last one that makes it a database."""

    def __init__(self, **_: object) -> None:
        pass

    def sequences(self, files: Sequence[Path], output: Path) -> None:
        work = output.parent / "work"
        work.mkdir(exist_ok=True)
        for name in (output.name, f"{output.name}.dbtype"):
            (work / name).write_bytes(gzip.decompress(files[0].read_bytes()))
            os.replace(work / name, output.parent / name)


def test_an_unpacked_database_survives_a_kill_at_every_step(tmp_path: Path) -> None:
    directory = tmp_path / "databases"

    def run() -> int:
        return 0 if download(Behaviour(content=ARCHIVE), directory).is_file() else 1

    assert check_kills(directory, run, contents) > 8
    assert contents(directory).keys() == {*database_files(NAME), "downloads.json"}


def test_a_converted_database_survives_a_kill_at_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ClusterBuild", Conversion)
    monkeypatch.setattr(module, "require_mmseqs", lambda _: Path("mmseqs"))
    directory, archive = tmp_path / "databases", gzip.compress(b">one\nMKTAYIAK\n", mtime=0)

    def run() -> int:
        with serving(Behaviour(content=archive)) as url:
            download_databases([SINGLE], directory, url=url, retry=HASTY, progress=False)
        return 0

    assert check_kills(directory, run, contents) > 4
    assert contents(directory).keys() == {SINGLE, f"{SINGLE}.dbtype", "downloads.json"}
    assert DOWNLOADS[SINGLE].database == SINGLE


def test_a_database_that_is_moved_is_one_once_all_files_are_there(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    for directory in (source, target):
        directory.mkdir()
    for name, content in database_files(NAME).items():
        (source / name).write_bytes(content[:10])
    found = states(target, lambda: move_database(source, target, f"{NAME}_db"))
    assert len(found) > len(database_files(NAME))
    for state in found:
        if f"{NAME}_db.dbtype" in state.content:
            assert state.content.keys() == database_files(NAME).keys(), state.label
