"""A site's rules hold for every way to predict, and its directories need neither a home nor write permission."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import helixfold
from data_pipeline.io.errors import InputError
from data_pipeline.io.user_cache import can_be_written, writable_cache
from data_pipeline.search.mmseqs import Mmseqs
from helixfold.apps.serve.worker import tasks
from helixfold.apps.serve.worker.options import WorkerOptions
from helixfold.benchmark import precision
from helixfold.cli.main import main
from helixfold.model.presets import tiny
from helixfold.training.finetune.adapted import base_file
from helixfold.weights.checkpoint import save_checkpoint
from helixfold.weights.untrained import untrained_model
from tests.support.sources import ROOT

HELIX = ROOT / "examples" / "structures" / "helix_short.pdb"
STEPS = ("--logits-steps", "1", "--soft-steps", "1", "--hard-steps", "1")
COMMANDS = {
    "predict": (["predict", "MKTAYIAKQR"], "--models"),
    "predict a complex": (["predict", "MKTAYIAKQR:MKTAY"], "--models"),
    "score": (["score", str(HELIX)], "--model"),
    "scan": (["scan", "MKTAYIAKQR", "--positions", "2", "--to", "A"], "--model"),
    "design": (["design", "hallucination", "--length", "8", *STEPS], "--models"),
}
CALLS: dict[str, Callable[[tuple[str, ...]], Any]] = {
    "predict": lambda names: helixfold.predict("MKTAYIAKQR", names),
    "load_model": lambda names: helixfold.load_model(*names),
    "a worker of a service": lambda names: tasks.offers(WorkerOptions(models=names, device="cpu")),
    "fine-tuning": lambda names: base_file(names[0] if names else None, None),
}
MODELS: list[tuple[str, ...]] = [(), ("small",), ("tiny",)]


@pytest.fixture
def forbidding(site_file: Path) -> Path:
    site_file.write_text("weights_directory = 'none'\nallow_demonstration_model = false\n")
    return site_file


@pytest.mark.parametrize("models", MODELS)
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_obey_where_the_demonstration_model_is_forbidden(
    command: str, models: tuple[str, ...], forbidding: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, option = COMMANDS[command]
    output = tmp_path / "out"
    named = [option, *models] if models else []
    assert main([*words, *named, "--device", "cpu", "--output", str(output)]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"helixfold: error: {forbidding}: allow_demonstration_model is false, and ")
    assert last.endswith("; run 'helixfold weights download', pass --weights, or set weights_directory")
    assert not output.exists()


@pytest.mark.parametrize("models", MODELS)
@pytest.mark.parametrize("call", CALLS)
def test_calls_obey_where_the_demonstration_model_is_forbidden(
    call: str, models: tuple[str, ...], forbidding: Path
) -> None:
    with pytest.raises(InputError, match=f"{forbidding}: allow_demonstration_model is false, and "):
        CALLS[call](models)


def test_measurements_are_not_affected(forbidding: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []
    monkeypatch.setattr(precision, "measured", lambda model, *_: measured.append(model.preset.name) or [])
    monkeypatch.setattr(precision, "table", lambda _: [])
    precision.run(precision.PrecisionOptions())
    assert measured == ["small"]


def test_a_cache_that_cannot_be_written_is_replaced_by_a_temporary_directory(tmp_path: Path) -> None:
    assert writable_cache(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    (tmp_path / "file").touch()
    unwritable = tmp_path / "file" / "cache"  # also for root, which may write everywhere else
    assert not can_be_written(unwritable)
    temporary = writable_cache(unwritable)
    assert temporary.is_dir()
    assert writable_cache(unwritable) == temporary


def test_databases_are_converted_elsewhere_if_the_cache_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = tmp_path / "x.fasta"
    database.write_text(">x\nMKTAYIAKQR\n")
    (tmp_path / "file").touch()
    monkeypatch.setattr(Mmseqs, "_run", lambda self, directory, *words: (directory / words[2]).touch())
    tool = Mmseqs(program=Path("mmseqs"), database=database, cache=tmp_path / "file" / "cache")
    converted = tool._database_path()
    assert converted.is_file()
    assert tool._database_path() == converted
    assert tmp_path not in converted.parents


# As the command of an account that has no home directory and no entry in the table of users.
WITHOUT_ACCOUNT = """
import pwd

def unknown(_):
    raise KeyError("no entry")

pwd.getpwuid = unknown
from helixfold.cli.main import command

command()
"""


@pytest.mark.integration
@pytest.mark.parametrize("cache", [pytest.param("writable", marks=pytest.mark.long), "read-only"])
def test_an_account_without_a_home_predicts_with_central_directories(cache: str, tmp_path: Path) -> None:
    params, work = tmp_path / "params", tmp_path / "work"
    params.mkdir()
    work.mkdir()
    config = tiny().model
    save_checkpoint(params / "params_tiny.safetensors", untrained_model(config, seed=1).state_dict(), config.to_dict())
    (tmp_path / "cache").mkdir() if cache == "writable" else (tmp_path / "cache").touch()
    site = tmp_path / "helixfold.toml"
    site.write_text(
        "weights_directory = 'params'\nmonomer_models = ['tiny']\nallow_demonstration_model = false\n"
        "cache_directory = 'cache/of_all'\n"
    )
    params.chmod(0o555)
    packages = [ROOT / "helixfold", ROOT / "data_pipeline"]
    before = {folder: _state(folder) for folder in (params, *packages)}
    environment = {
        name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ
    } | {"HELIXFOLD_CONFIG": str(site), "TMPDIR": str(work), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    words = ["predict", "MKTAYIAKQR", "--device", "cpu", "--num-recycles", "0", "--output", "out"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ACCOUNT, *words],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "UNTRAINED" not in done.stderr
    (ranked,) = work.glob("out/*/ranked_0.pdb")
    assert sum(" CA " in line for line in ranked.read_text().splitlines()) == 10
    assert {folder: _state(folder) for folder in before} == before


def _state(folder: Path) -> str:
    """A digest of the names, sizes and times of all files of a folder, but those that Python may compile meanwhile."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    described = [f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files]
    return hashlib.sha256("\n".join(described).encode()).hexdigest()
