import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.io.errors import InputError
from data_pipeline.io.remote_file import DownloadError, RetryPolicy
from helixfold.model.presets import preset
from helixfold.weights import alphafold
from helixfold.weights.cache import parameters_directory
from helixfold.weights.download import (
    ARCHIVE_URL,
    PUBLISHED_SHA256,
    download_parameters,
)
from helixfold.weights.load import load_weights
from helixfold.weights.untrained import untrained_model
from tests.weights.server import Behaviour, serving

TINY = preset("tiny").model
NAME = "params_tiny.npz"
HASTY = RetryPolicy(timeout=60, attempts=4, pause=0.01)


def parameter_file(seed: int = 0) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **alphafold.from_state_dict(untrained_model(TINY, seed).state_dict(), TINY))
    return stream.getvalue()


FILE = parameter_file()


def tar(members: Mapping[str, bytes | tarfile.TarInfo]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in members.items():
            if isinstance(content, tarfile.TarInfo):
                archive.addfile(content)
            else:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


ARCHIVE = tar({"LICENSE": b"CC BY 4.0", "params_other.npz": bytes(900_000), NAME: FILE, "params_last.npz": bytes(500)})


def fetch(
    behaviour: Behaviour, directory: Path, sha256: Mapping[str, str] | None = None, retry: RetryPolicy = HASTY
) -> Path:
    with serving(behaviour) as url:
        (path,) = download_parameters(
            ["tiny"], directory=directory, url=url, sha256=sha256 or {}, retry=retry, progress=False
        )
    return path


def test_only_the_wanted_member_is_fetched(tmp_path: Path) -> None:
    behaviour = Behaviour(content=ARCHIVE)
    path = fetch(behaviour, tmp_path / "deep" / "cache")
    assert path.read_bytes() == FILE
    assert sorted(each.name for each in path.parent.iterdir()) == [NAME, "sha256.json"]
    assert len(load_weights(path, TINY)) > 300
    assert behaviour.ranges[0] == "bytes=0-"
    assert len(behaviour.ranges) == 2  # the archive's start, and past the other member


def test_a_file_that_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    fetch(Behaviour(content=ARCHIVE), tmp_path)
    again = Behaviour(content=b"")
    assert fetch(again, tmp_path).read_bytes() == FILE
    assert again.ranges == []


def test_an_interrupted_download_goes_on_in_the_next_run(tmp_path: Path) -> None:
    start = ARCHIVE.index(FILE)
    with pytest.raises(DownloadError, match="run the command again"):
        fetch(Behaviour(content=ARCHIVE, cuts=[None, start + 700_000 - 900_000, 0, 0, 0]), tmp_path)
    part = tmp_path / f"{NAME}.part"
    kept = part.stat().st_size
    assert 0 < kept < len(FILE)
    assert list(tmp_path.iterdir()) == [part]
    behaviour = Behaviour(content=ARCHIVE)
    assert fetch(behaviour, tmp_path).read_bytes() == FILE
    assert f"bytes={start + kept}-" in behaviour.ranges
    assert not part.exists()


def test_cuts_within_a_run_are_not_noticed(tmp_path: Path) -> None:
    behaviour = Behaviour(content=ARCHIVE, cuts=[100, 600, 2000, 300_000, 100_000])
    assert fetch(behaviour, tmp_path).read_bytes() == FILE
    assert len(behaviour.ranges) >= 5


def test_a_server_without_parts_serves_too(tmp_path: Path) -> None:
    behaviour = Behaviour(content=ARCHIVE, parts=False, cuts=[1_200_000])
    assert fetch(behaviour, tmp_path).read_bytes() == FILE


def test_a_stalled_server_is_waited_for(tmp_path: Path) -> None:
    behaviour = Behaviour(content=ARCHIVE, stalls=2)
    patient = RetryPolicy(timeout=0.3, attempts=200, pause=0.01)
    assert fetch(behaviour, tmp_path, retry=patient).read_bytes() == FILE
    assert len(behaviour.ranges) > 2


def test_the_right_checksum_is_accepted(tmp_path: Path) -> None:
    fetch(Behaviour(content=ARCHIVE), tmp_path, {NAME: hashlib.sha256(FILE).hexdigest()})


def test_a_wrong_checksum_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=f"{NAME} does not have the checksum {'0' * 64}, so it was deleted"):
        fetch(Behaviour(content=ARCHIVE), tmp_path, {NAME: "0" * 64})
    assert list(tmp_path.iterdir()) == []


def test_the_first_download_decides_where_no_checksum_is_published(tmp_path: Path) -> None:
    path = fetch(Behaviour(content=ARCHIVE), tmp_path)
    assert json.loads((tmp_path / "sha256.json").read_text()) == {NAME: hashlib.sha256(FILE).hexdigest()}
    path.unlink()
    other = tar({NAME: parameter_file(seed=1)})
    with pytest.raises(DownloadError, match="does not have the checksum"):
        fetch(Behaviour(content=other), tmp_path)
    assert not path.exists()
    assert fetch(Behaviour(content=ARCHIVE), tmp_path).read_bytes() == FILE


@pytest.mark.parametrize("notes", ["{", "[]", '{"a": 3}', '{"params_tiny.npz": "md5"}'])
def test_broken_notes_are_refused(notes: str, tmp_path: Path) -> None:
    (tmp_path / "sha256.json").write_text(notes)
    with pytest.raises(InputError, match="delete it to trust the next download"):
        fetch(Behaviour(content=ARCHIVE), tmp_path)


def test_a_missing_archive_is_named(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="the server answers 404"):
        fetch(Behaviour(content=b"", statuses=[404]), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "word"),
    [
        pytest.param(b"<html>not found</html>" * 100, "not a tar archive", id="page"),
        pytest.param(b"", "tar archive|no file", id="empty"),
        pytest.param(tar({"params_model_9.npz": FILE}), f"has no file {NAME}", id="absent"),
        pytest.param(ARCHIVE[: ARCHIVE.index(FILE) + 1000], "ends within", id="short"),
        pytest.param(tar({NAME: FILE[:-10_000] + bytes(10_000)}), "damaged", id="damaged"),
        pytest.param(tar({NAME: parameter_file()[:100]}), "damaged", id="stub"),
    ],
)
def test_other_archives_are_refused(content: bytes, word: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=word):
        fetch(Behaviour(content=content), tmp_path)
    assert not (tmp_path / NAME).exists()


def test_parameters_of_another_model_are_refused(tmp_path: Path) -> None:
    with (
        serving(Behaviour(content=tar({"params_model_3.npz": FILE}))) as url,
        pytest.raises(InputError, match="it fits tiny"),
    ):
        download_parameters(["model_3"], directory=tmp_path, url=url, retry=HASTY, progress=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_passed_over(kind: bytes, tmp_path: Path) -> None:
    info = tarfile.TarInfo(NAME)
    info.type, info.linkname = kind, "/etc/passwd"
    with pytest.raises(DownloadError, match="has no file"):
        fetch(Behaviour(content=tar({NAME: info})), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_planted_link_is_not_written_through(tmp_path: Path) -> None:
    precious, cache = tmp_path / "precious", tmp_path / "cache"
    precious.write_bytes(b"")
    cache.mkdir()
    (cache / f"{NAME}.part").symlink_to(precious)
    path = fetch(Behaviour(content=ARCHIVE), cache)
    assert path.read_bytes() == FILE
    assert not path.is_symlink()
    assert precious.read_bytes() == b""


def test_a_path_in_the_archive_leads_nowhere(tmp_path: Path) -> None:
    inside = tmp_path / "cache"
    path = fetch(Behaviour(content=tar({f"../../{NAME}": FILE})), inside)
    assert path == inside / NAME
    assert [each.name for each in tmp_path.iterdir()] == ["cache"]


def test_a_member_of_absurd_size_is_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo(NAME)
    info.size = 2**40
    header = info.tobuf()
    with pytest.raises(DownloadError, match="has 1,099,511,627,776 bytes"):
        fetch(Behaviour(content=header + bytes(2048)), tmp_path)


def test_a_full_disk_is_said_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(DownloadError, match="bytes are needed, 1,000 are free"):
        fetch(Behaviour(content=ARCHIVE), tmp_path)


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DownloadError, match="file"):
        fetch(Behaviour(content=ARCHIVE), tmp_path / "file" / "cache")


def test_published_checksums_are_of_files_that_can_be_asked_for() -> None:
    for name, digest in PUBLISHED_SHA256.items():
        preset(name.removeprefix("params_").removesuffix(".npz"))
        assert len(bytes.fromhex(digest)) == 32
    assert ARCHIVE_URL.startswith("https://storage.googleapis.com/alphafold/")
    assert parameters_directory().name == "params"


@pytest.mark.parametrize(
    ("name", "archive"),
    [
        ("model_1", "alphafold_params_2022-12-06.tar"),
        ("model_5_multimer_v3", "alphafold_params_2022-12-06.tar"),
        ("model_5_multimer_v2", "alphafold_params_colab_2022-03-02.tar"),
        ("model_5_multimer", "alphafold_params_colab_2021-10-27.tar"),
    ],
)
def test_every_release_is_fetched_from_its_archive(
    name: str, archive: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def download(url: str, path: Path, *_: object, **__: object) -> None:
        asked.append(url.rsplit("/", 1)[-1])
        path.write_bytes(b"")

    monkeypatch.setattr("helixfold.weights.download._download_member", download)
    assert download_parameters([name], directory=tmp_path) == [tmp_path / f"params_{name}.npz"]
    assert asked == [archive]
