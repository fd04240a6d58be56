"""The door through which strangers' files come in: sound files are read, everything else is one sentence, soon."""

import io
import os
import struct
import time
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_pipeline.io.errors import InputError
from data_pipeline.io.zip_archive import ArchiveLimits
from helixfold.weights.npz import LIMITS, open_npz, write_npz

FEW_BYTES = 48 * 2**20
# Of the processor, not of the clock: other programs may take their part of it.
SOON = 5.0


@contextmanager
def cheap() -> Iterator[None]:
    """Whatever happens inside takes little time and memory."""
    tracemalloc.start()
    start = time.thread_time()
    try:
        yield
    finally:
        seconds, (_, peak) = time.thread_time() - start, tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < FEW_BYTES
    assert seconds < SOON


def array_bytes(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, allow_pickle=array.dtype == object)
    return stream.getvalue()


def header_bytes(text: str, version: tuple[int, int] = (1, 0), length: int | None = None) -> bytes:
    """The start of a .npy file with any header."""
    size = len(text) if length is None else length
    return (
        b"\x93NUMPY" + bytes(version) + struct.pack("<H" if version == (1, 0) else "<I", size) + text.encode("latin1")
    )


def archive(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def read_npz(path: Path, limits: ArchiveLimits = LIMITS) -> dict[str, np.ndarray]:
    with open_npz(path, limits) as arrays:
        return dict(arrays)


def refusal(path: Path) -> str:
    """What is said about a file that must be refused at little cost."""
    with cheap(), pytest.raises(InputError) as refused:
        read_npz(path)
    text = str(refused.value)
    assert text.startswith(str(path))
    assert "\n" not in text
    return text


def test_arrays_come_back_exactly(tmp_path: Path) -> None:
    arrays = {"scope/a//w": np.float32(np.random.default_rng(0).normal(size=(3, 4, 5))), "../b": np.float32([1.5])}
    write_npz(tmp_path / "x.npz", arrays)
    back = read_npz(tmp_path / "x.npz")
    assert list(back) == list(arrays)
    for name, array in arrays.items():
        assert back[name].dtype == np.float32
        assert np.array_equal(back[name], array)


def test_shapes_are_known_without_reading_numbers(tmp_path: Path) -> None:
    large = np.zeros((64, 2**18), np.float32)
    write_npz(tmp_path / "x.npz", {"large": large, "number": np.float32(3)})
    with cheap(), open_npz(tmp_path / "x.npz") as arrays:
        assert arrays.shapes == {"large": (64, 2**18), "number": ()}


@pytest.mark.parametrize("kind", ["<f4", ">f4", "<f2", ">f2", "<f8", ">f8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_every_float_and_order_becomes_native_float32(kind: str, order: str, tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4) / 8
    np.savez(tmp_path / "x.npz", a=np.array(values, dtype=kind, order=order))
    array = read_npz(tmp_path / "x.npz")["a"]
    assert array.dtype == np.float32
    assert array.dtype.isnative
    assert array.flags.c_contiguous
    assert np.array_equal(array, values)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_the_format_is_read(version: tuple[int, int], tmp_path: Path) -> None:
    content = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # NumPy finds versions 2 and 3 too new
        np.lib.format.write_array(content, np.float32([1, 2]), version=version)
    assert read_npz(archive(tmp_path / "x.npz", {"a.npy": content.getvalue()}))["a"].tolist() == [1, 2]


def test_compressed_files_are_read(tmp_path: Path) -> None:
    values = np.float32(np.random.default_rng(0).normal(size=100_000))
    np.savez_compressed(tmp_path / "x.npz", a=values)
    assert np.array_equal(read_npz(tmp_path / "x.npz")["a"], values)


def test_a_failed_write_leaves_the_old_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.npz"
    write_npz(path, {"a": np.zeros(3, np.float32)})
    before = path.read_bytes()

    def full_disk(file: IO[bytes], **_: np.ndarray) -> None:
        file.write(b"half of it")
        raise OSError("no space left")

    monkeypatch.setattr(np, "savez", full_disk)
    with pytest.raises(OSError, match="no space left"):
        write_npz(path, {"a": np.ones(3, np.float32)})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "x.npz")


def test_a_directory_is_refused(tmp_path: Path) -> None:
    assert "it is a" in refusal(tmp_path)


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.npz")
    assert "it is a" in refusal(tmp_path / "x.npz")


@pytest.mark.parametrize("content", [b"", b"PK", b"%PDF-1.7", bytes(100_000), b"PK\x05\x06" + b"\xff" * 18])
def test_other_bytes_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(content)
    assert "damaged, incomplete or not a zip archive" in refusal(tmp_path / "x.npz")


@pytest.mark.parametrize("kept", [10, 5_000, 39_000, -1])
def test_a_truncated_file_is_refused(kept: int, tmp_path: Path) -> None:
    np.savez(tmp_path / "whole.npz", a=np.zeros(5000, np.float32), b=np.zeros(5000, np.float32))
    (tmp_path / "x.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:kept])
    assert "damaged" in refusal(tmp_path / "x.npz")


def test_a_changed_number_is_noticed(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.ones(5000, np.float32))
    content = bytearray((tmp_path / "x.npz").read_bytes())
    content[10_000] ^= 1
    (tmp_path / "x.npz").write_bytes(content)
    assert "CRC" in refusal(tmp_path / "x.npz")


def test_a_bomb_of_zeros_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as file, file.open("a.npy", "w") as member:
        member.write(header_bytes("{'descr': '<f4', 'fortran_order': False, 'shape': (67108864,), }\n"))
        for _ in range(256):
            member.write(bytes(2**20))
    assert "would unpack to 268,435" in refusal(tmp_path / "x.npz")


def test_an_archive_that_declares_too_much_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.zeros(5000, np.float32))
    with pytest.raises(InputError, match="more than 10,000 bytes"):
        read_npz(tmp_path / "x.npz", ArchiveLimits(members=10, unpacked_bytes=10_000))


def test_sizes_that_the_archive_cannot_hold_are_refused(tmp_path: Path) -> None:
    content = bytearray(archive(tmp_path / "x.npz", {"a.npy": array_bytes(np.zeros(9, np.float32))}).read_bytes())
    entry = content.rindex(b"PK\x01\x02")
    content[entry + 20 : entry + 28] = struct.pack("<II", 2**31, 2**31)
    (tmp_path / "x.npz").write_bytes(content)
    assert "declares more data than it has" in refusal(tmp_path / "x.npz")


def test_members_that_share_their_bytes_are_refused(tmp_path: Path) -> None:
    """One stored member, listed a thousand times."""
    array = array_bytes(np.zeros(2000, np.float32))
    content = archive(tmp_path / "x.npz", {"0000.npy": array}).read_bytes()
    start = content.rindex(b"PK\x01\x02")
    entry = content[start : content.rindex(b"PK\x05\x06")]
    entries = b"".join(entry.replace(b"0000", f"{number:04}".encode()) for number in range(1000))
    end = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 1000, 1000, len(entries), start, 0)
    (tmp_path / "x.npz").write_bytes(content[:start] + entries + end)
    assert "overlap" in refusal(tmp_path / "x.npz")


def test_many_members_are_refused(tmp_path: Path) -> None:
    archive(tmp_path / "x.npz", {f"{number}.npy": b"" for number in range(3000)})
    assert "3,000 members" in refusal(tmp_path / "x.npz")


def test_a_huge_directory_is_not_even_read(tmp_path: Path) -> None:
    entry = struct.pack("<4s42x", b"PK\x01\x02")
    with (tmp_path / "x.npz").open("wb") as file:
        file.write(entry * 2_000_000)
        file.write(struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 46 * 2_000_000, 0, 0))
    assert "directory is too large" in refusal(tmp_path / "x.npz")


def test_two_members_of_one_name_are_refused(tmp_path: Path) -> None:
    array = array_bytes(np.zeros(1, np.float32))
    with warnings.catch_warnings(), zipfile.ZipFile(tmp_path / "x.npz", "w") as file:
        warnings.simplefilter("ignore", UserWarning)
        file.writestr("a.npy", array)
        file.writestr("a.npy", array)
    assert "'a.npy' twice" in refusal(tmp_path / "x.npz")


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_unusual_compression_is_refused(compression: int, tmp_path: Path) -> None:
    archive(tmp_path / "x.npz", {"a.npy": array_bytes(np.zeros(9, np.float32))}, compression)
    assert "unsupported compression" in refusal(tmp_path / "x.npz")


def test_an_encrypted_member_is_refused(tmp_path: Path) -> None:
    content = bytearray(archive(tmp_path / "x.npz", {"a.npy": array_bytes(np.zeros(9, np.float32))}).read_bytes())
    content[content.rindex(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "x.npz").write_bytes(content)
    assert "encrypted" in refusal(tmp_path / "x.npz")


@pytest.mark.parametrize(
    ("array", "word"),
    [
        pytest.param(np.array([{"a": 1}], object), "Python objects, which are never read", id="objects"),
        pytest.param(np.arange(3, dtype=np.int32), "holds <i4; parameters are floating-point", id="integers"),
        pytest.param(np.array(["text"]), "floating-point", id="text"),
        pytest.param(np.array([1j]), "floating-point", id="complex"),
        pytest.param(np.zeros(2, [("a", "<f4"), ("b", "<f4")]), "not a plain array", id="records"),
        pytest.param(np.zeros((0, 3), np.float32), "which no parameter has", id="empty"),
        pytest.param(np.zeros((1,) * 9, np.float32), "which no parameter has", id="axes"),
    ],
)
def test_other_arrays_are_refused(array: np.ndarray, word: str, tmp_path: Path) -> None:
    assert word in refusal(archive(tmp_path / "x.npz", {"scope//a.npy": array_bytes(array)}))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_numbers_that_are_not_finite_are_refused_by_name(value: float, tmp_path: Path) -> None:
    values = np.zeros(10)
    values[7] = value
    np.savez(tmp_path / "x.npz", fine=np.zeros(3), broken=values)
    assert "array 'broken' has values that are not finite" in refusal(tmp_path / "x.npz")


@pytest.mark.parametrize(
    ("content", "word"),
    [
        pytest.param(b"", "like a NumPy array", id="empty"),
        pytest.param(b"\x93NUMPY\x09\x00ab", "like a NumPy array", id="version"),
        pytest.param(b"plain text, and quite a lot of it", "like a NumPy array", id="text"),
        pytest.param(header_bytes("", (2, 0), 2**31), "header of 2,147,483,648 bytes", id="header length"),
        pytest.param(header_bytes("__import__('os').abort()\n"), "not a plain array", id="code"),
        pytest.param(header_bytes("(" * 4000), "not a plain array", id="nesting"),
        pytest.param(
            header_bytes("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }\n"),
            "declares 4,000,000,000,000 bytes of numbers, got 0",
            id="shape",
        ),
        pytest.param(
            header_bytes("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }\n") + bytes(16),
            "declares 12 bytes of numbers, got 16",
            id="surplus",
        ),
        pytest.param(
            header_bytes("{'descr': '<f4', 'fortran_order': False, 'shape': (-3,), }\n"),
            "not a plain array",
            id="negative",
        ),
    ],
)
def test_hostile_headers_are_refused(content: bytes, word: str, tmp_path: Path) -> None:
    assert word in refusal(archive(tmp_path / "x.npz", {"a.npy": content}))


def test_members_that_are_no_arrays_are_refused(tmp_path: Path) -> None:
    archive(tmp_path / "x.npz", {"readme.txt": b"hello", "\x1b[2J.npy": b""})
    assert "'readme.txt' is not an array" in refusal(tmp_path / "x.npz")


def test_names_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    text = refusal(archive(tmp_path / "x.npz", {"\x1b[2J\n.npy": b""}))
    assert text.isprintable()


def sound_archive(save: Callable[..., None]) -> bytes:
    stream = io.BytesIO()
    random = np.random.default_rng(0)
    save(stream, **{"a//w": np.float32(random.normal(size=(3, 5))), "b//bias": np.float32(random.normal(size=4))})
    return stream.getvalue()


SOUND = [sound_archive(np.savez), sound_archive(np.savez_compressed)]


@st.composite
def mangled(draw: st.DrawFn) -> bytes:
    """A sound archive with some bytes changed, removed or doubled."""
    content = bytearray(draw(st.sampled_from(SOUND)))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(content) - 1))
        match draw(st.sampled_from(["change", "change", "cut", "remove", "double"])):
            case "change":
                content[at] = draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
            case "cut":
                del content[max(at, 1) :]
            case "remove":
                del content[at : at + draw(st.integers(1, 40))]
                content = content or bytearray(1)
            case "double":
                content[at:at] = content[at : at + draw(st.integers(1, 40))]
    return bytes(content)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=mangled())
def test_a_mangled_file_is_refused_or_read(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "mangled.npz"
    path.write_bytes(content)
    with cheap():
        said, arrays = "", {}
        try:
            arrays = read_npz(path)
        except InputError as error:
            said = str(error)
    assert said.isprintable()
    assert all(np.isfinite(array).all() for array in arrays.values())
