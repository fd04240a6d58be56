"""Archives of many targets hold each by value, whatever a kill, another process or a stranger did to them."""

import json
import os
import threading
import zipfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.io.errors import InputError
from helixfold.results import packed
from helixfold.results.packed import (
    INDEX_FILE,
    PackedResults,
    pack_targets,
    readable_structures,
    readable_target,
    remove_partial,
)
from tests.support.interruptions import assert_same, calls_of, states, temporary_files

NAMES = ("a", "b.1", "c_2")


def write(directory: Path, version: str = "") -> Path:
    contents = {
        "msas/H/rows.a3m": b">x\nGG-X\n",
        "features.npz": bytes(range(256)) * 9,
        "ranked_0.cif": f"data_{directory.name}{version}\n".encode(),
        "settings.json": b"{}",
        "ranking_debug.json": json.dumps({"order": [directory.name + version]}).encode(),
    }
    for name, content in contents.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)
    return directory


def describe(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "ranking_debug.json").read_text())


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def results(output: Path) -> dict[str, dict[str, bytes]]:
    """The files of every target, packed or not, each of which must be in one place that counts."""
    found = {path.name: contents(path) for path in output.iterdir() if path.is_dir() and path.name != "packed"}
    with PackedResults(output) as archives:
        assert not archives.problems
        for name in archives.names():
            assert name not in found
            with archives.directory(name) as directory:
                found[name] = contents(directory)
    return found


def archives_in(output: Path) -> list[str]:
    return sorted(path.name for path in (output / "packed").glob("*.zip"))


@pytest.fixture
def output(tmp_path: Path) -> Path:
    for name in NAMES:
        write(tmp_path / "out" / name)
    return tmp_path / "out"


def test_packed_targets_can_be_read_and_restored_byte_for_byte(output: Path, tmp_path: Path) -> None:
    before = results(output)
    assert pack_targets(output, NAMES, describe) == {}
    assert sorted(path.name for path in output.iterdir()) == ["packed"]
    assert archives_in(output) == ["000001.zip"]
    assert results(output) == before
    found = PackedResults(output)
    assert sorted(found.names()) == sorted(NAMES)
    for name in NAMES:
        entry = found.entry(name)
        assert entry is not None
        assert entry.content == {"order": [name]}
    with zipfile.ZipFile(output / "packed" / "000001.zip") as archive:
        assert archive.testzip() is None
        archive.extractall(tmp_path / "plain")
    assert {name: contents(tmp_path / "plain" / name) for name in NAMES} == before
    with found:
        assert found.restore("a") == output / "a"
    assert contents(output / "a") == before["a"]
    assert "a" not in found
    assert "b.1" in found


def test_equal_targets_give_equal_archives(output: Path, tmp_path: Path) -> None:
    for name in NAMES:
        write(tmp_path / "other" / name)
    for directory in (output, tmp_path / "other"):
        pack_targets(directory, NAMES, describe)
    both = [(directory / "packed" / "000001.zip").read_bytes() for directory in (output, tmp_path / "other")]
    assert both[0] == both[1]


def test_the_last_archive_counts_and_a_directory_before_all(output: Path) -> None:
    pack_targets(output, NAMES, describe)
    write(output / "a", "second")
    pack_targets(output, ["a"], describe)
    assert archives_in(output) == ["000001.zip", "000002.zip"]
    assert results(output)["a"]["ranked_0.cif"] == b"data_asecond\n"
    write(output / "a", "third")
    with PackedResults(output) as found:
        assert "a" not in found
        assert sorted(found.names()) == ["b.1", "c_2"]
        with found.directory("a") as directory:
            assert directory == output / "a"


def test_archives_are_of_limited_size(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = results(output)
    monkeypatch.setattr(packed, "TARGETS", 2)
    pack_targets(output, NAMES, describe)
    assert archives_in(output) == ["000001.zip", "000002.zip"]
    monkeypatch.setattr(packed, "_MAX_FILES", 9)
    for name in NAMES:
        write(output / name, "again")
    pack_targets(output, NAMES, describe)
    assert len(archives_in(output)) == 5
    assert results(output).keys() == before.keys()


def test_what_is_not_finished_or_would_be_lost_stays(output: Path) -> None:
    (output / "a" / "ranking_debug.json").unlink()
    (output / "b.1" / "link").symlink_to(output / "a")
    problems = pack_targets(output, [*NAMES, "gone"], describe)
    assert list(problems) == ["b.1"]
    assert "link" in problems["b.1"]
    assert PackedResults(output).names() == ["c_2"]
    assert (output / "b.1" / "link").is_symlink()
    assert (output / "a").is_dir()


def test_a_target_that_cannot_be_described_stays(output: Path) -> None:
    (output / "a" / "ranking_debug.json").write_text("{")
    assert list(pack_targets(output, NAMES, describe)) == ["a"]
    assert (output / "a").is_dir()
    assert sorted(PackedResults(output).names()) == ["b.1", "c_2"]


def test_a_long_line_is_left_out_of_the_index(output: Path) -> None:
    pack_targets(output, NAMES, lambda directory: {"x": "y" * (2**18 if directory.name == "a" else 1)})
    found = PackedResults(output)
    assert found.entry("a") is None
    assert found.entry("c_2") is not None
    assert "a" in found


def test_packing_survives_a_kill_at_every_step(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "TARGETS", 2)
    before = results(output)

    def pack() -> None:
        assert pack_targets(output, NAMES, describe) == {}

    found = states(output, pack)
    expected = archives_in(output)
    assert len(found) >= 8
    for state in found:
        state.restore(output)
        assert_same(results(output), before, state.label)
        pack()
        assert_same(results(output), before, state.label)
        assert sorted(path.name for path in output.iterdir()) == ["packed"], state.label
        assert not temporary_files(output), state.label
        # A target is in one archive, whatever is packed again.
        names = [name for path in sorted((output / "packed").glob("*.zip")) for name in targets_of(path)]
        assert sorted(names) == sorted(NAMES), state.label
    assert expected == ["000001.zip", "000002.zip"]


def targets_of(archive: Path) -> set[str]:
    return {name.partition("/")[0] for name in zipfile.ZipFile(archive).namelist() if "/" in name}


def test_restoring_survives_a_kill_at_every_step(output: Path) -> None:
    before = results(output)
    pack_targets(output, NAMES, describe)

    def restore() -> None:
        remove_partial(output)
        with PackedResults(output) as found:
            found.restore("a") if "a" in found else None

    for state in states(output, restore):
        state.restore(output)
        assert_same(results(output), before, state.label)
        restore()
        assert contents(output / "a") == before["a"], state.label
        assert not temporary_files(output), state.label


def test_processes_that_pack_at_once_wait_for_each_other(output: Path) -> None:
    before = results(output)
    reached, others = threading.Event(), []

    def second() -> None:
        reached.set()
        others.append(pack_targets(output, NAMES, describe))

    thread = threading.Thread(target=second)

    def begin(is_after: bool) -> None:
        if not is_after and not thread.ident:
            thread.start()
            reached.wait()

    with calls_of("helixfold.results.packed:_write_archive", begin):
        pack_targets(output, NAMES, describe)
    thread.join()
    assert others == [{}]
    assert archives_in(output) == ["000001.zip"]
    assert results(output) == before


@pytest.mark.parametrize("step", ["write_zip", "file_state", "_put_in_place", "_remove_directory"])
@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("call", [1, 2, 3])
def test_nothing_is_lost_where_a_file_system_has_no_locks(
    step: str, is_after: bool, call: int, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process packs the same targets at any step."""
    before, calls = results(output), 0

    def refuse(*_: object) -> None:
        raise OSError("no locks")

    monkeypatch.setattr("fcntl.flock", refuse)

    def act(now_after: bool) -> None:
        nonlocal calls
        calls += now_after == is_after
        if calls == call and now_after == is_after:
            calls += 1
            pack_targets(output, NAMES, describe)

    # One that finds its draft removed by the other gives up.
    with calls_of(f"helixfold.results.packed:{step}", act), suppress(FileNotFoundError, InputError):
        pack_targets(output, NAMES, describe)
    assert results(output) == before


def test_a_target_begun_again_meanwhile_is_not_packed(output: Path) -> None:
    def begin(is_after: bool) -> None:
        if is_after:
            (output / "a" / "ranking_debug.json").unlink(missing_ok=True)
            (output / "a" / "ranked_0.cif").write_text("half")

    with calls_of("helixfold.results.packed:write_zip", begin):
        pack_targets(output, NAMES, describe)
    assert sorted(PackedResults(output).names()) == ["b.1", "c_2"]
    assert targets_of(output / "packed" / "000001.zip") == {"b.1", "c_2"}
    assert (output / "a" / "ranked_0.cif").read_text() == "half"


def test_a_changed_target_is_packed_again_and_an_unchanged_one_is_not(output: Path) -> None:
    pack_targets(output, NAMES, describe)
    for name in NAMES:
        write(output / name, "changed" if name == "a" else "")
    pack_targets(output, NAMES, describe)
    assert targets_of(output / "packed" / "000002.zip") == {"a"}
    assert [path.name for path in output.iterdir()] == ["packed"]
    assert results(output)["a"]["ranked_0.cif"] == b"data_achanged\n"


def test_the_index_is_not_needed(output: Path) -> None:
    before = results(output)
    pack_targets(output, NAMES, describe)
    for change in (without_index, with_other_order, with_damaged_index):
        rewrite(output / "packed" / "000001.zip", change)
        found = PackedResults(output)
        assert not found.problems
        assert sorted(found.names()) == sorted(NAMES), change
        assert all(found.entry(name) is None for name in NAMES)
        assert results(output) == before


Members = list[tuple[zipfile.ZipInfo, bytes]]


def rewrite(path: Path, change: Callable[[Members], Iterable[tuple[zipfile.ZipInfo, bytes]]]) -> None:
    """Write an archive again with other members."""
    with zipfile.ZipFile(path) as archive:
        members = [(member, archive.read(member)) for member in archive.infolist()]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in change(members):
            archive.writestr(member, content)


def without_index(members: Members) -> Members:
    return members[1:] if members[0][0].filename == INDEX_FILE else members


def with_other_order(members: Members) -> Members:
    return members[::-1]


def with_damaged_index(members: Members) -> Members:
    info = zipfile.ZipInfo(INDEX_FILE)
    info.compress_type = zipfile.ZIP_DEFLATED
    return [(info, b'{"targets": ["a", "b.1"]}\n{}\n'), *without_index(members)]


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.9, 0.999])
def test_a_truncated_archive_is_one_sentence_and_its_targets_are_not_there(output: Path, share: float) -> None:
    pack_targets(output, ["a"], describe)
    pack_targets(output, NAMES, describe)
    path = output / "packed" / "000001.zip"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    found = PackedResults(output)
    (problem,) = found.problems.values()
    assert problem.count("000001.zip") == 1
    assert sorted(found.names()) == ["b.1", "c_2"]
    (output / "packed" / "000003.zip").write_text("something else")
    found.refresh()
    assert len(found.problems) == 2


def test_a_damaged_member_is_one_sentence(output: Path) -> None:
    pack_targets(output, NAMES, describe)
    path = output / "packed" / "000001.zip"
    with zipfile.ZipFile(path) as archive:
        start = archive.getinfo("b.1/features.npz").header_offset
    content = bytearray(path.read_bytes())
    content[start + 80] ^= 0xFF
    path.write_bytes(content)
    with PackedResults(output) as found:
        with found.directory("a") as directory:
            assert (directory / "ranked_0.cif").is_file()
        with pytest.raises(InputError, match=r"000001\.zip"):
            found.restore("b.1")
        assert not (output / "b.1").exists()
    assert not temporary_files(output)


def hostile(path: Path, members: dict[str, bytes], mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, mode << 16
            archive.writestr(info, content)


@pytest.mark.parametrize(
    "name", ["t/../../escaped", "t/a/../../../escaped", "t//escaped", "t/./escaped", "t/.."], ids=lambda name: name
)
def test_no_path_leads_out_of_a_target(tmp_path: Path, name: str) -> None:
    output = tmp_path / "a" / "b" / "out"
    hostile(output / "packed" / "000001.zip", {"t/ranking_debug.json": b"{}", name: b"x"})
    with PackedResults(output) as found:
        assert found.names() == ["t"]
        with pytest.raises(InputError, match="is not a plain file"):
            found.restore("t")
        with pytest.raises(InputError, match="is not a plain file"), found.directory("t"):
            pass
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.parent.name != "packed"]


@pytest.mark.parametrize("name", ["..", ".hidden", "", "/etc", "x\\..", "a" * 300])
def test_names_unfit_for_a_directory_are_no_targets(tmp_path: Path, name: str) -> None:
    hostile(tmp_path / "packed" / "000001.zip", {f"{name}/ranking_debug.json": b"{}", "good/ranking_debug.json": b""})
    expected = {"good", name} if name == "x\\.." else {"good"}  # a plain name on this system
    assert set(PackedResults(tmp_path).names()) == expected
    index = json.dumps({"targets": [name, "good"]}).encode() + b"\n{}\n{}\n"
    members = {INDEX_FILE: index, "good/ranking_debug.json": b""}
    hostile(tmp_path / "packed" / "000001.zip", members)
    assert set(PackedResults(tmp_path).names()) <= expected


def test_links_and_contradictions_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "packed" / "000001.zip"
    hostile(path, {"t/ranking_debug.json": b"/etc/passwd"}, mode=0o120777)
    with PackedResults(tmp_path) as found, pytest.raises(InputError, match="plain file"):
        found.restore("t")
    hostile(path, {"t/ranking_debug.json": b"{}", "t/a": b"", "t/a/b": b""})
    with PackedResults(tmp_path) as found, pytest.raises(InputError, match="is also a directory"):
        found.restore("t")
    hostile(path, {INDEX_FILE: b'{"targets": ["t"]}\n{}\n', "u/ranking_debug.json": b"{}"})
    os.utime(path, (1, 1))
    assert PackedResults(tmp_path).names() == ["u"]
    assert [each.name for each in tmp_path.iterdir()] == ["packed"]


def test_bombs_are_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "packed" / "000001.zip"
    monkeypatch.setattr(packed, "_LIMITS", replace(packed._LIMITS, harmless_bytes=2**20))
    zeros = bytes(2**22)
    hostile(path, {"t/ranking_debug.json": b"{}", "t/zeros": zeros})
    (problem,) = PackedResults(tmp_path).problems.values()
    assert "would unpack to" in problem
    line = b'{"targets": ["t"]}\n{"line": 1}\n'
    hostile(path, {INDEX_FILE: line, "t/ranking_debug.json": b"{}"})
    os.utime(path, (1, 1))
    assert PackedResults(tmp_path).entry("t") is not None
    monkeypatch.setattr(packed, "_MAX_INDEX_BYTES", len(line) - 1)
    os.utime(path, (3, 3))
    found = PackedResults(tmp_path)
    assert found.names() == ["t"]
    assert found.entry("t") is None
    monkeypatch.setattr(packed, "_LIMITS", packed.ArchiveLimits(members=1))
    os.utime(path, (2, 2))
    (problem,) = PackedResults(tmp_path).problems.values()
    assert "has 2 members" in problem


def test_hostile_lines_of_an_index_are_none(tmp_path: Path) -> None:
    path = tmp_path / "packed" / "000001.zip"
    for number, line in enumerate((b"[" * 10_000, b"[]", b"{", b"7", b'{"a": NaN', b"\xff")):
        hostile(path, {INDEX_FILE: b'{"targets": ["t"]}\n' + line + b"\n", "t/ranking_debug.json": b"{}"})
        os.utime(path, (number, number))
        assert PackedResults(tmp_path).entry("t") is None


def test_a_path_of_a_packed_target_can_be_read(output: Path) -> None:
    before = contents(output / "a")
    with readable_target(output / "a") as directory:
        assert directory == output / "a"
    pack_targets(output, ["a"], describe)
    with readable_target(output / "a") as directory:
        assert contents(directory) == before
        assert directory.name == "a"
    assert not directory.exists()
    with readable_target(output / "nowhere") as directory:
        assert directory == output / "nowhere"


def test_structures_of_packed_and_other_targets_are_together(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with readable_structures(output) as directory:
        assert directory == output
    pack_targets(output, ["a"], describe)
    (output / "packed" / "000002.zip").write_text("no archive")
    with readable_structures(output) as directory:
        assert sorted(path.name for path in directory.iterdir()) == sorted(NAMES)
        assert contents(directory / "a") == {"ranked_0.cif": b"data_a\n"}
        assert (directory / "b.1" / "ranked_0.cif").read_bytes() == b"data_b.1\n"
    assert (output / "b.1").is_dir()
    assert capsys.readouterr().err.count("000002.zip") == 1
    with readable_structures(output / "a") as directory:
        assert contents(directory)["ranked_0.cif"] == b"data_a\n"
