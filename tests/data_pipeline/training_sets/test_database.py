"""A database gives back what LMDB wrote, and one that is damaged in any place is an InputError and never a crash."""

import random
import struct
from pathlib import Path

import lmdb
import pytest

from data_pipeline.io.errors import InputError
from data_pipeline.training_sets.database import Database
from data_pipeline.training_sets.store import write_database

PAGE = 4096
# Most records lie within a page, some on pages of their own; the tree has three levels.
RECORDS = [
    (struct.pack(">QQ", 7 * number, number).hex(), random.Random(number).randbytes(9000 if number % 5000 == 0 else 8))
    for number in range(20_000)
]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("database") / "features.lmdb"
    write_database(path, RECORDS, (len(content) for _, content in RECORDS))
    return path


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "features.lmdb"
    write_database(path, RECORDS[:3], (len(content) for _, content in RECORDS[:3]))
    return path


def everything(path: Path) -> list[bytes]:
    database = Database(path)
    return [bytes(content) for key in database.keys() if (content := database.get(key)) is not None]  # noqa: SIM118


def test_every_record_of_a_deep_tree_is_found(large: Path) -> None:
    with lmdb.open(str(large), subdir=False, readonly=True, lock=False) as environment:
        assert environment.stat()["depth"] == 3
    database = Database(large)
    assert database.keys() == [key for key, _ in RECORDS]
    for key, content in RECORDS:
        assert database.get(key) == content
        assert database.get(key + "00") is None  # between two keys
    assert database.get("00" * 16) == RECORDS[0][1]
    assert database.get("ff" * 16) is None
    assert database.get("") is None


def test_of_two_states_the_newer_one_is_read(tmp_path: Path) -> None:
    path = tmp_path / "features.lmdb"
    for count in range(1, 5):
        with lmdb.open(str(path), subdir=False, lock=False, map_size=2**20) as environment:
            transaction = environment.begin(write=True)
            transaction.put(bytes.fromhex(RECORDS[count][0]), RECORDS[count][1])
            transaction.commit()
        assert Database(path).keys() == [key for key, _ in RECORDS[1 : count + 1]]


def test_damage_in_any_place_is_refused_or_changes_no_tree(small: Path) -> None:
    whole = small.read_bytes()
    states_root_and_nodes = [(0, 160), (PAGE, PAGE + 160), (2 * PAGE, 2 * PAGE + 40), (3 * PAGE - 100, 3 * PAGE)]
    undamaged, told = [content for _, content in RECORDS[:3]], 0
    for place in (place for first, end in states_root_and_nodes for place in range(first, end)):
        content = bytearray(whole)
        content[place] ^= 255
        small.write_bytes(content)
        try:
            found = everything(small)
        except InputError as error:
            assert "features.lmdb: " in str(error), place
            told += 1
        else:
            if place < 2 * PAGE:
                # The number of the last transaction has no checksum; the state before it, which is empty, is read then.
                assert found == ([] if 144 <= place < 152 else undamaged), place
            # Records have checksums of their own, which the feature store compares.
            assert len(found) in (0, len(undamaged)), place
    assert told > 80


@pytest.mark.parametrize("place", [0, PAGE, 2 * PAGE, 3 * PAGE], ids=["first", "second", "root", "overflow"])
@pytest.mark.parametrize("fill", [0, 255])
def test_a_page_of_anything_else_is_told(place: int, fill: int, small: Path) -> None:
    content = bytearray(small.read_bytes())
    content[place : place + PAGE] = bytes([fill]) * PAGE
    small.write_bytes(content)
    with pytest.raises(InputError, match=r"not a complete feature database \(.*\); build it again$"):
        everything(small)


def test_a_page_in_the_place_of_another_is_told(large: Path, tmp_path: Path) -> None:
    content = bytearray(large.read_bytes())
    leaves = [
        start
        for start in range(2 * PAGE, len(content), PAGE)
        if content[start + 10] == 2 and int.from_bytes(content[start : start + 8], "little") * PAGE == start
    ]
    content[leaves[5] : leaves[5] + PAGE] = content[leaves[4] : leaves[4] + PAGE]
    path = tmp_path / "swapped"
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"page {leaves[5] // PAGE} is damaged"):
        Database(path).get(RECORDS[610][0])


@pytest.mark.parametrize("number", [0, 1], ids=["on pages of its own", "within a page"])
def test_a_record_that_claims_to_be_longer_is_told(number: int, small: Path) -> None:
    content = bytearray(small.read_bytes())
    (node,) = struct.unpack_from("=H", content, 2 * PAGE + 16 + 2 * number)
    struct.pack_into("=HH", content, 2 * PAGE + node, 0xFFFF, 0xFFFF)
    small.write_bytes(content)
    with pytest.raises(InputError, match=r"\(a record is cut off\); build it again"):
        Database(small).get(RECORDS[number][0])


def test_a_branch_that_leads_to_itself_is_told(large: Path, tmp_path: Path) -> None:
    content = bytearray(large.read_bytes())
    states = (0, PAGE)
    newest = max(states, key=lambda state: struct.unpack_from("=Q", content, state + 144))
    (root,) = struct.unpack_from("=Q", content, newest + 128)
    (node,) = struct.unpack_from("=H", content, root * PAGE + 16 + 2)
    struct.pack_into("=HHH", content, root * PAGE + node, root, 0, 0)
    path = tmp_path / "loop"
    path.write_bytes(content)
    for read in (lambda: everything(path), lambda: Database(path).get(RECORDS[-1][0])):
        with pytest.raises(InputError, match=r"deeper than it says|not sorted"):
            read()
