import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from data_pipeline.io.remote_file import DownloadError, RemoteFile, RetryPolicy, fetch
from tests.data_pipeline.io.test_http import evil
from tests.weights.server import Behaviour, serving

CONTENT = bytes(range(256)) * 8192  # 2 MiB
HASTY = RetryPolicy(timeout=60, attempts=3, pause=0.01)


@pytest.fixture
def behaviour() -> Behaviour:
    return Behaviour(content=CONTENT)


@pytest.fixture
def remote(behaviour: Behaviour) -> Iterator[RemoteFile]:
    with serving(behaviour) as url:
        file = RemoteFile(url, HASTY)
        yield file
        file.close()


def test_a_file_is_read_to_its_end(remote: RemoteFile) -> None:
    assert remote.read(1000) == CONTENT[:1000]
    assert remote.read(len(CONTENT)) == CONTENT[1000:]
    assert remote.read(10) == b""
    assert remote.size == len(CONTENT)


def test_a_far_part_costs_only_itself(remote: RemoteFile, behaviour: Behaviour) -> None:
    remote.read(10)
    remote.seek(2_000_000)
    assert remote.read(100) == CONTENT[2_000_000:2_000_100]
    assert behaviour.ranges == ["bytes=0-", "bytes=2000000-"]
    remote.seek(5)
    assert remote.read(5) == CONTENT[5:10]


def test_reading_goes_on_where_the_connection_was_cut(remote: RemoteFile, behaviour: Behaviour) -> None:
    behaviour.cuts = [700_000, 10]
    assert remote.read(len(CONTENT)) == CONTENT
    assert behaviour.ranges == ["bytes=0-", "bytes=700000-", "bytes=700010-"]


def test_a_server_without_parts_is_read_from_the_beginning_again(remote: RemoteFile, behaviour: Behaviour) -> None:
    behaviour.parts, behaviour.cuts = False, [700_000]
    assert remote.read(len(CONTENT)) == CONTENT
    assert len(behaviour.ranges) == 2
    remote.seek(1_000_000)
    assert remote.read(10) == CONTENT[1_000_000:1_000_010]


def test_a_server_without_parts_is_read_through_to_a_far_part(remote: RemoteFile, behaviour: Behaviour) -> None:
    behaviour.parts = False
    remote.read(10)
    remote.seek(1_500_000)
    assert remote.read(10) == CONTENT[1_500_000:1_500_010]
    assert len(behaviour.ranges) == 1


def test_a_stalled_server_is_asked_again(behaviour: Behaviour) -> None:
    behaviour.stalls = 1
    with serving(behaviour) as url:
        # On a busy machine, the answers to more requests than the first may come late.
        remote = RemoteFile(url, RetryPolicy(timeout=0.3, attempts=200, pause=0.01))
        assert remote.read(100) == CONTENT[:100]
        remote.close()
    assert set(behaviour.ranges[:2]) == {"bytes=0-"}


def test_a_busy_server_is_asked_again(remote: RemoteFile, behaviour: Behaviour) -> None:
    behaviour.statuses = [503, 429]
    assert remote.read(100) == CONTENT[:100]


def test_patience_ends(remote: RemoteFile, behaviour: Behaviour) -> None:
    behaviour.cuts = [500, 0, 0, 0]
    with pytest.raises(DownloadError, match=r"no more bytes after 500 .*; run the command again"):
        remote.read(len(CONTENT))
    assert len(behaviour.ranges) == 3


@pytest.mark.parametrize("status", [403, 404, 410])
def test_a_refusal_is_final(status: int, remote: RemoteFile, behaviour: Behaviour) -> None:
    behaviour.statuses = [status]
    with pytest.raises(DownloadError, match=f"the server answers {status}"):
        remote.read(1)
    assert len(behaviour.ranges) == 1


def test_a_server_that_is_not_there_is_named() -> None:
    with serving(Behaviour(content=b"")) as url:
        pass
    file = RemoteFile(url, HASTY)
    with pytest.raises(DownloadError, match=r"cannot be reached \(.*\); run the command again"):
        file.read(1)
    file.close()


def test_a_file_that_changes_under_way_is_refused(remote: RemoteFile, behaviour: Behaviour) -> None:
    behaviour.versions, behaviour.cuts = ['"1"', '"2"'], [1000]
    with pytest.raises(DownloadError, match="changed on the server"):
        remote.read(len(CONTENT))


def test_a_wrong_part_is_refused(remote: RemoteFile, behaviour: Behaviour) -> None:
    behaviour.shift = 7
    with pytest.raises(DownloadError, match="a different part"):
        remote.read(10)


def test_a_size_of_thousands_of_digits_counts_as_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    head = f"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-9/{'9' * 5000}\r\n\r\n"
    with evil(lambda: [head.encode() + b"content"]) as server:
        remote = RemoteFile(server.url, HASTY)
        assert remote.read(7) == b"content"
        assert remote.size is None
        remote.close()


def test_a_huge_piece_is_refused(remote: RemoteFile, behaviour: Behaviour) -> None:
    with pytest.raises(DownloadError, match="malicious"):
        remote.read(2**40)
    assert behaviour.ranges == []


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://host/x", "params.tar"])
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(DownloadError, match="only http and https"):
        RemoteFile(url, HASTY)


def test_a_server_that_sends_a_byte_at_a_time_is_given_up(remote: RemoteFile, behaviour: Behaviour) -> None:
    behaviour.cuts = [1] * 1000
    with pytest.raises(DownloadError, match="no more bytes after 3 "):
        remote.read(len(CONTENT))
    assert len(behaviour.ranges) == HASTY.attempts


@pytest.mark.parametrize("kind", ["link", "link to nothing", "hard link", "pipe", "another user's"])
def test_only_the_users_own_file_is_resumed(
    kind: str, remote: RemoteFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precious, part = tmp_path / "precious", tmp_path / "x.npz.part"
    precious.write_bytes(b"precious")
    if kind.startswith("link"):
        part.symlink_to(precious if kind == "link" else tmp_path / "nothing")
    elif kind == "hard link":
        part.hardlink_to(precious)
    elif kind == "pipe":
        os.mkfifo(part)
    else:
        part.write_bytes(b"planted")
        monkeypatch.setattr(os, "geteuid", lambda: part.stat().st_uid + 1)
    fetch(remote, 0, 100_000, part, progress=False)
    assert part.read_bytes() == CONTENT[:100_000]
    assert not part.is_symlink()
    assert precious.read_bytes() == b"precious"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["precious", "x.npz.part"]


def test_a_part_that_is_longer_than_the_file_is_fetched_again(remote: RemoteFile, tmp_path: Path) -> None:
    part = tmp_path / "file.part"
    part.write_bytes(b"x" * 301)
    fetch(remote, 100, 300, part, progress=False)
    assert part.read_bytes() == CONTENT[100:400]
    part.write_bytes(CONTENT[100:350])
    fetch(remote, 100, 300, part, progress=False)
    assert part.read_bytes() == CONTENT[100:400]
    with pytest.raises(DownloadError, match=r"the file ends within other$"):
        fetch(remote, len(CONTENT) - 10, 20, tmp_path / "other.part", progress=False)


def test_a_full_disk_is_told_before_anything_is_fetched(
    remote: RemoteFile, behaviour: Behaviour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file.part").write_bytes(b"x" * 10)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1989))
    with pytest.raises(DownloadError, match=r"not enough disk space: 1,990 bytes are needed, 1,989 are free"):
        fetch(remote, 0, 2000, tmp_path / "file.part", progress=False)
    assert behaviour.ranges == []
