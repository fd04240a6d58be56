"""Finished pieces stay, half-finished ones go, and one run at a time."""

import os
from pathlib import Path

import pytest

from data_pipeline.io.errors import InputError
from data_pipeline.io.json_files import compress_json, decompress_json
from data_pipeline.training_sets.build_cache import (
    BuildCache,
    content_key,
    file_digest,
    store_lock,
)

KEYS = sorted(content_key(index) for index in range(5))


def test_keys_differ_where_anything_differs() -> None:
    parts = [("a", "b"), ("ab",), ("a", ["b"]), ("a", "b", None), ("a", 1), ("a", "1"), ("a", True)]
    assert len({content_key(*part) for part in parts}) == len(parts)
    assert content_key("a", ["b", 1]) == content_key("a", ("b", 1))


def test_files_are_told_apart_by_content(tmp_path: Path) -> None:
    for name, content in (("a", b"x"), ("b", b"x"), ("c", b"y")):
        (tmp_path / name).write_bytes(content)
    assert file_digest(tmp_path / "a") == file_digest(tmp_path / "b") != file_digest(tmp_path / "c")
    with pytest.raises(InputError, match="cannot be read: No such file"):
        file_digest(tmp_path / "none")


def test_pieces_are_kept_then_packed_then_found_in_the_database(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path)
    for key in KEYS:
        assert cache.get(key) is None
        cache.put(key, key.encode())
    assert cache.get(KEYS[0]) == KEYS[0].encode()
    cache.pack(KEYS[:3])
    cache.clear()
    assert os.listdir(tmp_path) == ["features.lmdb"]
    packed = BuildCache(tmp_path)
    assert [packed.get(key) for key in KEYS] == [*(key.encode() for key in KEYS[:3]), None, None]
    assert packed.size(KEYS[0]) == len(KEYS[0])


def test_a_piece_that_is_made_again_takes_the_place_of_the_packed_one(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path)
    for key in KEYS:
        cache.put(key, b"old")
    cache.pack(KEYS)
    cache.clear()
    cache = BuildCache(tmp_path)
    cache.put(KEYS[1], b"newer")
    cache.pack(KEYS)
    cache.clear()
    assert [BuildCache(tmp_path).get(key) for key in KEYS[:3]] == [b"old", b"newer", b"old"]


def test_the_database_depends_on_the_pieces_alone(tmp_path: Path) -> None:
    whole, grown = BuildCache(tmp_path / "whole"), BuildCache(tmp_path / "grown")
    for key in KEYS:
        whole.put(key, key.encode() * 100)
    whole.pack(KEYS)
    for count in (2, 4, 5):
        for key in KEYS[:count]:
            grown.put(key, key.encode() * 100)
        grown.pack(KEYS[:count])
        grown = BuildCache(tmp_path / "grown")
    assert (tmp_path / "whole/features.lmdb").read_bytes() == (tmp_path / "grown/features.lmdb").read_bytes()


def test_a_database_that_is_right_already_is_left_alone(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path)
    for key in KEYS:
        cache.put(key, b"x")
    cache.pack(KEYS)
    cache.clear()
    before = (tmp_path / "features.lmdb").stat()
    BuildCache(tmp_path).pack(KEYS)
    after = (tmp_path / "features.lmdb").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    BuildCache(tmp_path).pack(KEYS[:4])
    assert (tmp_path / "features.lmdb").stat().st_ino != before.st_ino


def test_half_written_files_of_killed_runs_are_swept(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path)
    cache.put(KEYS[0], b"x")
    folder = tmp_path / "work" / KEYS[0][:2]
    for partial in (folder / f".{KEYS[0]}.0a.partial", tmp_path / ".features.lmdb.0a.partial"):
        partial.write_bytes(b"half")
    cache.sweep()
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [KEYS[0]]


def test_a_second_run_on_a_store_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    with store_lock(tmp_path / "store"):
        child = os.fork()
        if child == 0:
            try:
                with store_lock(tmp_path / "store"):
                    os._exit(0)
            except InputError as error:
                os._exit(3 if "another run is building this feature store" in str(error) else 4)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    with store_lock(tmp_path / "store"):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be used as a feature store"), store_lock(tmp_path / "file"):
        pass


def test_small_pieces_come_back_and_damage_is_found() -> None:
    content = compress_json({"b": [1, None], "a": "ü"})
    assert compress_json({"a": "ü", "b": [1, None]}) == content
    assert decompress_json(content) == {"a": "ü", "b": [1, None]}
    for damaged in (content[:-1], content[:5] + b"\xff" + content[6:], b""):
        with pytest.raises(ValueError, match="damaged"):
            decompress_json(damaged)
