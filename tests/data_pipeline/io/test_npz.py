"""Archives from strangers: an array comes back, or one clear error."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipeline.io.errors import InputError
from data_pipeline.io.npz import read_npz


def npz(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def header(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def archive(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return buffer.getvalue()


SAVED = {"a": np.arange(12.0).reshape(3, 4), "b": np.array(["x", "yz"]), "c": np.zeros((0, 5), np.int8)}
VALID = npz(**SAVED)
_stored = io.BytesIO()
np.savez(_stored, **SAVED)
STORED = _stored.getvalue()  # not compressed: a changed byte is one of an array


def test_arrays_come_back_as_saved(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    fortran = np.asfortranarray(np.arange(6).reshape(2, 3))
    path.write_bytes(npz(fortran=fortran, scalar=np.array(2.5), text=np.array("ab"), none=np.zeros((0, 3))))
    arrays = read_npz(path)
    np.testing.assert_array_equal(arrays["fortran"], fortran)
    assert arrays["scalar"] == 2.5
    assert str(arrays["text"]) == "ab"
    assert arrays["none"].shape == (0, 3)


def test_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    path.write_bytes(npz(a=np.zeros(10**7)))
    with pytest.raises(InputError, match=r"bomb.npz: has [0-9,]+ bytes and would unpack to 80,000,\d+"):
        read_npz(path, max_bytes=10**7)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000,), }", "too few for float64"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (20,), }", "too few for float64"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (-1, -8), }", "too few for float64"),
        ("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", "allow_pickle"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (3,", ""),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (" + "-" * 5000 + "1,), }", ""),
        ("__import__('os')", ""),
    ],
)
def test_dishonest_array_header_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(archive({"a.npy": header(text) + b"\0" * 16}))
    with pytest.raises(InputError, match=rf"a\.npz: .*(is damaged|header is damaged).*{problem}"):
        read_npz(path)


def test_foreign_members_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(archive({"readme.txt": b"hello"}))
    with pytest.raises(InputError, match=r"'readme.txt' is not an array"):
        read_npz(path)


def test_missing_file_and_directory_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_npz(tmp_path / "none.npz")
    with pytest.raises(InputError, match="directory"):
        read_npz(tmp_path)


@settings(max_examples=300, deadline=None)
@given(
    valid=st.sampled_from([VALID, STORED]),
    place=st.integers(0, 9999),
    removed=st.none() | st.integers(0, len(STORED)),
    patch=st.binary(max_size=4),
)
def test_damaged_archive_gives_the_arrays_that_were_saved_or_an_input_error(
    tmp_path_factory: pytest.TempPathFactory, valid: bytes, place: int, removed: int | None, patch: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.npz"
    start = place % len(valid)
    path.write_bytes(valid[:start] + patch + valid[start + (len(patch) if removed is None else removed) :])
    try:
        arrays = read_npz(path)
    except InputError as error:
        assert str(error).startswith(str(path))
        return
    # Names and the list of arrays have no checksum; what an array holds has one.
    for array in arrays.values():
        assert any(array.dtype == saved.dtype and np.array_equal(array, saved) for saved in SAVED.values())
