"""`helixfold cache` shows and removes what helixfold keeps on disk, and nothing else."""

import os
import re
import time
from pathlib import Path

import pytest

from data_pipeline.search.colabfold_search import SharedResults
from helixfold.cli.main import main

OWN = {
    "weights": "params/params_model_1.npz",
    "databases": "databases/mine.fasta-0123456789abcdef",
    "templates": "databases/structures/1abc.cif",
    "entries": "entries/P69905.fasta",
    "loops": "loops/0123456789abcdef",
}
# What a user or another program may keep in the same directories.
OTHERS = (
    *("params/own.npz", "params/sha256.json", "notes.txt", "databases/searches/list.txt", "databases/structures/x.pdb"),
    *("databases/backup-0123456789abcdef/data", "loops/mine/code.nbi", "entries/notes.md"),
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with one item of each kind, each of them older than 50 days, and files of others."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    directory = tmp_path / "helixfold"
    SharedResults(directory / "databases" / "searches").save("a search", "MKTAYIAK", b"result")
    for name in (
        OWN["weights"],
        OWN["templates"],
        OWN["entries"],
        f"{OWN['databases']}/sequences.dbtype",
        f"{OWN['loops']}/x.nbi",
    ):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(bytes(5000))
    before = time.time() - 50.5 * 86400
    for path in directory.rglob("*"):
        os.utime(path, (before, before))
    for name in OTHERS:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text("not helixfold's")
    (directory / "params" / "params_linked.npz").symlink_to(tmp_path / "shared.npz")
    (tmp_path / "shared.npz").write_text("of all users")
    return directory


def files_of(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if not path.is_dir()}


def test_each_kind_is_shown_with_its_size_and_age(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache"]) == 0
    rows = [line.split(maxsplit=6) for line in capsys.readouterr().out.splitlines()]
    kinds = ["weights", "searches", "databases", "templates", "entries", "loops"]
    assert [(row[0], row[1], row[3], row[5]) for row in rows[1:-1]] == [(kind, "1", "50", "50") for kind in kinds]
    assert rows[1][6].startswith(f"{cache}/params (")
    assert rows[-1][0] == "all"


def test_only_files_of_helixfold_are_removed(cache: Path, tmp_path: Path) -> None:
    assert main(["cache", "prune", "all"]) == 0
    assert files_of(cache) == {*OTHERS, "params/params_linked.npz"}
    assert (tmp_path / "shared.npz").exists()


@pytest.mark.parametrize("kind", OWN)
def test_only_the_named_kind_is_removed(kind: str, cache: Path) -> None:
    before = files_of(cache)
    assert main(["cache", "prune", kind]) == 0
    removed = before - files_of(cache)
    assert len(removed) == 1
    assert removed.pop().startswith(OWN[kind])


def test_what_is_newer_is_kept_and_a_dry_run_removes_nothing(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files_of(cache)
    assert main(["cache", "prune", "all", "--older-than", "51"]) == 0
    assert main(["cache", "prune", "all", "--dry-run"]) == 0
    assert files_of(cache) == before
    out = capsys.readouterr().out
    assert set(re.findall(r"(?m)^(\w+): removed 0, ", out)) == {*OWN, "searches"}
    assert f"would remove {cache / OWN['loops']}\n" in out
    assert main(["cache", "prune", "searches", "--older-than", "50"]) == 0
    assert len(before - files_of(cache)) == 1


def test_another_search_cache_and_the_configured_weights_are_found(
    cache: Path, tmp_path: Path, site_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site_file.write_text(f"weights_directory = '{tmp_path / 'site'}'\n")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "params_model_2.npz").touch()
    SharedResults(tmp_path / "group" / "searches").save("a search", "MKTAYIAK", b"result")
    assert main(["cache", "prune", "searches", "weights", "--search-cache", str(tmp_path / "group"), "--dry-run"]) == 0
    removed = re.findall(r"would remove (/\S+)", capsys.readouterr().out)
    assert [Path(path).parts[: len(tmp_path.parts) + 1][-1] for path in removed] == ["site", "group"]


def test_prune_without_a_kind_is_an_error(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "prune"]) == 2
    assert "name the KIND to remove: weights, searches," in capsys.readouterr().err


def test_a_process_without_a_home_has_only_nothing_to_show(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("data_pipeline.io.user_cache.user_cache", lambda: None)
    monkeypatch.setattr("helixfold.weights.cache.user_cache", lambda: None)
    assert main(["cache"]) == 0
    assert "no home directory" in capsys.readouterr().out
