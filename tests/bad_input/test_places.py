"""Nothing is written outside the output directory, and what an earlier run left there may be damaged in any way."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from torch.distributed import HashStore

from data_pipeline.io.claims import ClaimFiles
from data_pipeline.io.errors import InputError
from data_pipeline.io.user_cache import user_cache
from data_pipeline.search.database import AlignmentDatabase, DatabaseProfile
from data_pipeline.search.plan import plan_searches
from helixfold.apps.predict import lot, run, runner
from helixfold.cli.main import main
from helixfold.parallel.launch import LaunchResult
from helixfold.parallel.task_queue import TaskQueue
from helixfold.results.lock import locked_directory
from helixfold.results.writing import write_file
from helixfold.weights import cache
from tests.bad_input.meeting import met

GOOD = b">good\nMKTAYIAKQR\n"
TINY = ("--models", "tiny")
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def no_downloaded_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("helixfold.weights.find.parameters_directory", lambda: tmp_path / "no_parameters")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "x.fasta").write_bytes(GOOD)
    (folder / "precious").write_bytes(b"precious")
    return folder


def predict(folder: Path) -> int:
    return main(["predict", str(folder / "x.fasta"), "--output", str(folder / "out"), "--num-recycles", "0", *TINY])


def test_a_lock_that_is_a_link_is_not_written_through(folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "out/.helixfold.lock").symlink_to("../precious")
    found = met("predict x.fasta", folder)
    assert (found.code, found.changed) == (2, ())
    assert "out: cannot be written: Too many levels of symbolic links" in found.said[-1]


def test_links_among_results_are_replaced_and_not_followed(folder: Path) -> None:
    assert predict(folder) == 0
    made = [path for path in (folder / "out/good").iterdir() if path.is_file()]
    for path in made:
        path.unlink()
        path.symlink_to(folder / "precious")
    assert main(["predict", str(folder / "x.fasta"), "--output", str(folder / "out"), "--overwrite", *TINY]) == 0
    assert (folder / "precious").read_bytes() == b"precious"
    assert not [path for path in (folder / "out/good").iterdir() if path.is_symlink()]


@pytest.mark.parametrize("place", ["good", "good/msas", "good/msas/A"])
def test_a_link_that_leads_out_of_a_target_is_refused(place: str, folder: Path) -> None:
    link = folder / "out" / place
    link.parent.mkdir(parents=True)
    (folder / "elsewhere").mkdir()
    link.symlink_to(folder / "elsewhere")
    (folder / "x.a3m").write_bytes(b">good\nMKTAYIAKQR\n>other\nMKTAYIAKQK\n")
    found = met(f"predict x.fasta --msa x.a3m --output {folder / 'out'}", folder)
    assert found.code == 2
    problem = "a symbolic link leads out of the output directory; put a directory here, or choose another --output"
    assert found.said[-1] == f"helixfold: error: {link}: {problem}"
    assert not any((folder / "elsewhere").iterdir())


def test_a_link_that_appears_during_a_run_is_not_written_through(tmp_path: Path) -> None:
    output, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    for each in (output, elsewhere):
        each.mkdir()
    (output / "structures").symlink_to(elsewhere)
    (output / "inner").symlink_to(".")
    with locked_directory(output):
        for write in (lambda path: write_file(path, "x"), lambda path: ClaimFiles(path.parent).replace("a", b"x")):
            with pytest.raises(InputError, match="structures: a symbolic link leads out of the output directory"):
                write(output / "structures/a.pdb")
        write_file(output / "inner/a.pdb", "x")
    assert not any(elsewhere.iterdir())
    assert (output / "a.pdb").is_file()


def test_an_output_directory_may_be_a_link(folder: Path) -> None:
    (folder / "disk").mkdir()
    (folder / "out").symlink_to("disk")
    assert predict(folder) == 0
    assert (folder / "disk/good/ranked_0.pdb").is_file()


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    "moment", ["between targets", "before a prediction is written", "after the last target", "at the end"]
)
def test_an_output_directory_that_is_moved_ends_the_run_and_is_not_made_anew(
    moment: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "x.fasta").write_bytes(GOOD + b">other\nMKTAYIAKQRA\n")
    calls = []

    def moving(action: Callable[..., object], *, first: bool) -> Callable[..., object]:
        def wrapped(*arguments: object, **options: object) -> object:
            calls.append(moment)
            if first and len(calls) == 1:
                (folder / "out").rename(folder / "moved")
            found = action(*arguments, **options)
            if not first and len(calls) == (1 if moment == "between targets" else 2):
                (folder / "out").rename(folder / "moved")
            return found

        return wrapped

    if moment == "before a prediction is written":
        monkeypatch.setattr(lot, "write_prediction", moving(lot.write_prediction, first=True))
    elif moment == "at the end":
        monkeypatch.setattr(run, "close_batch", moving(run.close_batch, first=True))
    else:
        monkeypatch.setattr(runner, "fold_lot", moving(runner.fold_lot, first=False))
    found = met(["predict", "x.fasta", *TINY], folder)
    assert found.code == 2
    problem = "was moved or removed while this run wrote there; move it back and run the same command again"
    assert found.said[-1] == f"helixfold: error: {folder / 'out'}: {problem}"
    assert not [line for line in found.said if "failed" in line]
    assert not (folder / "out").exists()
    if moment == "before a prediction is written":
        (folder / "moved").rename(folder / "out")
        assert met(["predict", "x.fasta", *TINY], folder).code == 0
        assert (folder / "out/other/ranked_0.pdb").is_file()


def test_a_directory_that_is_moved_from_several_processes_is_not_made_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process has ended with the sentence, and its parent would write failures and the page for it."""
    queue = TaskQueue(HashStore())
    queue.open(["good"])
    ended = LaunchResult(code=2, unclosed=queue)
    monkeypatch.setattr("helixfold.parallel.launch.launch", lambda *_, **__: ended)
    found = met("predict x.fasta --device cpu --devices 2", folder)
    assert (found.code, found.changed) == (2, ())


@pytest.mark.parametrize("home", ["unknown", "a tilde"])
def test_without_a_home_predictions_need_none(home: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cache_directory(_: str) -> str:
        if home == "unknown":
            raise RuntimeError("could not determine the home directory")
        return "~/.cache/helixfold"

    monkeypatch.setattr("platformdirs.user_cache_dir", cache_directory)
    monkeypatch.setattr("helixfold.weights.find.parameters_directory", cache.parameters_directory)
    assert met("predict --dry-run x.fasta", folder).code == 0
    for command, says in (
        ("predict x.fasta --models model_1", "no parameters of model_1: the home directory is unknown"),
        ("weights download", "no directory for the parameters: the home directory is unknown"),
    ):
        found = met(command, folder)
        assert (found.code, found.changed, len(found.said)) == (2, (), 1)
        assert says in found.said[0]
        assert "set HOME or XDG_CACHE_HOME" in found.said[0]
    monkeypatch.setattr("helixfold.apps.predict.doctor._models", lambda *_: {"problem": "left out, for it takes long"})
    assert met("doctor", folder).code == 0
    profile = DatabaseProfile(alignments=(AlignmentDatabase(name="x", tool="mmseqs", paths=(folder / "x.fasta",)),))
    monkeypatch.setattr("data_pipeline.search.plan.require_mmseqs", lambda: Path("mmseqs"))
    with pytest.raises(
        InputError,
        match="'x' must be converted for MMseqs2, which needs a cache: the home directory is unknown",
    ):
        plan_searches(profile, cpus=1, cache=user_cache())


def test_a_directory_whose_name_is_no_text_is_written(folder: Path) -> None:
    (folder / "x.fasta").rename(folder / "b\udcff.fasta")
    assert met(["predict", "b\udcff.fasta", "--output", "out\udcff", "--zip", *TINY], folder).code == 0
    assert met(["report", "out\udcff"], folder).code == 0
    assert os.path.isfile(os.fsencode(folder) + b"/out\xff/good/ranked_0.pdb")
    assert r"out\udcff" in (folder / "out\udcff/index.html").read_text()


def test_a_name_that_the_locale_does_not_have_is_refused_before_anything_is_written(folder: Path) -> None:
    (folder / "x.fasta").write_bytes(">caf\u00e9\nMKTAYIAKQR\n".encode())
    ascii_only = {"PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "helixfold.cli.main", "features", "x.fasta", "--output", "out"]
    environment = {**os.environ, **ascii_only}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=120, check=False)
    assert done.returncode == 2
    (sentence,) = done.stderr.decode().splitlines()
    assert r"'caf\xe9': file names can only have ascii characters in this locale; set LC_ALL=C.UTF-8" in sentence
    assert not (folder / "out").exists()


_FEW = ("cut", "tables of nothing", "of the wrong kinds")
DAMAGE = {
    "empty": b"",
    "cut": b'{"plddt": [1, 2',
    "no JSON": b"\0\xff\xfe garbage",
    "nothing": b"null",
    "a list": b"[[[]]]",
    "a number": b"17",
    "an empty table": b"{}",
    "deep": b"[" * 200_000,
    "not finite": b'{"plddt": [NaN, Infinity], "ptm": NaN, "ranking_confidence": NaN, "models": 1e999}',
    "digits without end": b'{"plddt": ' + b"9" * 10_000 + b"}",
    "tables of nothing": b'{"models": null, "stages": null, "inputs": null, "options": null, "predictions": null, '
    b'"plddts": null, "order": null, "notes": null, "used": null, "rejected": null, "chains": null}',
    "of the wrong kinds": b'{"models": [], "stages": [1], "inputs": 3, "options": "x", "predictions": [null], '
    b'"plddts": 7, "order": [[]], "notes": 3, "used": {}, "rejected": "x", "chains": {"a": []}, "msa": [1]}',
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run left, to be copied."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "x.fasta").write_bytes(GOOD)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("helixfold.weights.find.parameters_directory", lambda: folder / "no_parameters")
        assert predict(folder) == 0
    return folder


def damaged(finished: Path, folder: Path, damage: str, names: list[str]) -> int:
    """What the same command comes to when these files hold something else."""
    shutil.copytree(finished / "out", folder / "out")
    for path in (folder / "out").rglob("*"):
        if path.name in names:
            path.write_bytes(DAMAGE[damage])
    return predict(folder)


def texts(finished: Path) -> list[str]:
    return sorted(path.name for path in finished.rglob("*") if path.suffix in (".json", ".tsv", ".html", ".lock"))


# Each costs a prediction.
@pytest.mark.parametrize(
    "damage", [name if name in _FEW else pytest.param(name, marks=pytest.mark.long) for name in DAMAGE]
)
def test_damaged_files_of_an_unfinished_run_are_made_again(damage: str, finished: Path, folder: Path) -> None:
    names = [name for name in texts(finished) if name not in ("settings.json", "ranking_debug.json")]
    assert len(names) > 3
    unmarked = folder / "unmarked"
    shutil.copytree(finished, unmarked)
    (unmarked / "out/good/ranking_debug.json").unlink()
    assert damaged(unmarked, folder, damage, names) == 0
    for name in names:
        assert next((folder / "out").rglob(name)).read_bytes() != DAMAGE[damage], name


# Files that a report is made from, and damage by which the lesser ones only lack what they need not have.
_READ = ("confidence_tiny.json", "features.npz", "pae_tiny.json", "ranking_debug.json", "settings.json", "timings.json")
_HARMLESS = {
    "settings.json": ("an empty table", "tables of nothing", "not finite"),
    "timings.json": ("an empty table", "tables of nothing"),
}


@pytest.mark.parametrize(
    "damage", [name if name in _FEW else pytest.param(name, marks=pytest.mark.long) for name in DAMAGE]
)
def test_reports_on_damaged_results_are_made_or_refused_in_a_sentence(
    damage: str, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    for name in [*texts(finished), "features.npz", "all of them"]:
        out = tmp_path / name
        shutil.copytree(finished / "out", out)
        for path in out.rglob("*"):
            if path.name == name or (
                name == "all of them" and path.suffix in (".json", ".npz", ".tsv", ".pdb", ".cif")
            ):
                path.write_bytes(DAMAGE[damage])
        code, said = main(["report", str(out)]), capsys.readouterr().err.splitlines()
        if damage in _HARMLESS.get(name, ()) or name not in (*_READ, "all of them"):
            assert (code, said) == (0, []), name
            assert (out / "good/report.html").read_bytes() != DAMAGE[damage]
            continue
        # Of several damaged files it names the first that it reads.
        wrong = "ranking_debug.json" if name == "all of them" else name
        (line,) = said
        assert code == 1, name
        assert line.startswith(f"helixfold: good: no report: {out}/good/{wrong}: ")
        advice = (
            "fold the target again with --overwrite",
            "get it again",
            "pass --overwrite to predict the target again",
        )
        assert line.endswith(tuple(f"; {each}" for each in advice))


@pytest.mark.parametrize("damage", ["cut", "of the wrong kinds"])
def test_when_all_is_damaged_the_run_says_so_and_overwrites_when_told(
    damage: str, finished: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert damaged(finished, folder, damage, [*texts(finished), "features.npz"]) == 2
    assert "missing or damaged" in capsys.readouterr().err
    assert main(["predict", str(folder / "x.fasta"), "--output", str(folder / "out"), "--overwrite", *TINY]) == 0
    assert json.loads((folder / "out/good/ranking_debug.json").read_text())["order"] == ["tiny"]


@pytest.mark.long
@pytest.mark.parametrize("damage", DAMAGE)
def test_each_file_may_be_damaged_in_each_way(damage: str, finished: Path, tmp_path: Path) -> None:
    for name in [*texts(finished), "features.npz"]:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "x.fasta").write_bytes(GOOD)
        # Without its settings, nothing shows how a finished target was made.
        expected = (0, 2) if name == "settings.json" else (0,)
        assert damaged(finished, folder, damage, [name]) in expected, name


@pytest.mark.parametrize("name", ["features.npz", "confidence_tiny.json"])
def test_a_directory_in_the_place_of_a_file_fails_one_target_only(name: str, folder: Path) -> None:
    (folder / "x.fasta").write_bytes(GOOD + b">other\nMKTAYIAKQRA\n")
    (folder / f"out/good/{name}").mkdir(parents=True)
    assert predict(folder) == 1
    assert (folder / "out/other/ranked_0.pdb").is_file()
    assert (folder / "out/failures.json").is_file()


def test_a_pipe_in_the_place_of_a_file_does_not_hold_a_run(folder: Path) -> None:
    (folder / "out/good").mkdir(parents=True)
    os.mkfifo(folder / "out/good/features.npz")
    assert predict(folder) == 0
    assert (folder / "out/good/features.npz").is_file()
