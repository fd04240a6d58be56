"""JSON of any kind is read within limits on its size, depth and number of values, or is one sentence."""

import json
import os
import sys
from pathlib import Path

import pytest

from data_pipeline.io.errors import InputError
from data_pipeline.io.files import read_file
from data_pipeline.io.json_files import parse_json, read_json
from tests.support.alarm import time_limit


def test_ordinary_content_is_read(tmp_path: Path) -> None:
    content = {"a": [1, 2.5, None, True], "b": {"c": "[,{" * 100}, "d": "\udcff"}
    (tmp_path / "x.json").write_text(json.dumps(content))
    assert read_json(tmp_path / "x.json", "mend it") == content
    assert parse_json(b'"bytes"') == parse_json('"bytes"') == "bytes"


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"":'])
@pytest.mark.parametrize("depth", [40, 900, 100_000])
def test_depth_is_limited(opening: str, depth: int) -> None:
    closing = "".join({"[": "]", "{": "}"}.get(letter, "") for letter in reversed(opening))
    with pytest.raises(ValueError, match="nested more than 32 deep"):
        parse_json(opening * depth + "1" + closing * depth)


@pytest.mark.parametrize("text", ["[[],[],[],[]]", "[1,2,3,4,5]", '{"a":{},"b":{},"c":0}'])
def test_the_number_of_values_is_limited_before_they_are_made(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_json(text, max_values=8)
    monkeypatch.setattr(json, "loads", lambda _: pytest.fail("was parsed"))
    with pytest.raises(ValueError, match="more than the maximum of 4 values"):
        parse_json(text, max_values=4)


@pytest.mark.parametrize(
    ("text", "problem"),
    [(b"", "Expecting value"), (b"[1", "Expecting ','"), (b"\xff", "can't decode"), (b"9" * 9999, "")],
)
def test_what_is_no_json_is_one_sentence(text: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(text)
    with pytest.raises(InputError, match=rf"x\.json: not a complete JSON file \(.*{problem}.*\); mend it$"):
        read_json(path, "mend it")


def test_only_small_regular_files_are_read(tmp_path: Path) -> None:
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(2**40)  # sparse
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "directory").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    problems = {
        "large": "it has 1,099,511,627,776 bytes; the maximum is 10",
        "pipe": "cannot be read: it is a pipe",
        "device": "cannot be read: it is a device",
        "directory": "cannot be read: it is a directory",
        "loop": "cannot be read: Too many levels",
        "missing": "cannot be read: No such file",
        "nul\0": "cannot be read: embedded null byte",
    }
    with time_limit(5):
        for name, problem in problems.items():
            with pytest.raises(InputError, match=problem):
                read_file(tmp_path / name, 10)


@pytest.mark.skipif(sys.platform != "linux", reason="the system's own files are Linux's")
def test_a_file_that_is_longer_than_it_says_is_read_up_to_the_limit() -> None:
    assert len(read_file("/proc/self/maps", 100)) == 100
