"""`helixfold predict` in processes that are to be killed, and what must hold of the files that they leave."""

import gzip
import json
import os
import signal
import sys
import warnings
import zipfile
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

import gemmi
import numpy as np
import torch
from jaxtyping import config

from data_pipeline.features.schema import Features
from helixfold import inference
from helixfold.cli.main import main
from tests.training.ranks import SERVER

BAD = "bad"


def started(arguments: Sequence[str], log: Path, printed: Path) -> BaseProcess:
    """A process that begins at once, forked from a server that has everything imported."""
    process = SERVER.Process(target=_run, args=(list(arguments), log, printed))
    process.start()
    return process


def predict(arguments: Sequence[str], log: Path) -> int:
    """The command; every prediction is logged when it begins, and those of the target `bad` fail."""
    fold = inference.fold

    def logged(model: object, run: object, features: Features, *rest: object, **named: object) -> object:
        with log.open("a") as file:
            file.write(f"{features.domain_name} {named['name']}\n")
        if features.domain_name == BAD:
            raise RuntimeError("the chain is broken")
        return fold(model, run, features, *rest, **named)  # type: ignore[arg-type]

    inference.fold = logged  # type: ignore[assignment]
    try:
        models = [] if {"--models", "--preset", "--weights"} & set(arguments) else ["--models", "tiny"]
        return main(["predict", *arguments, "--num-recycles", "0", "--device", "cpu", *models])
    finally:
        inference.fold = fold


def _run(arguments: list[str], log: Path, printed: Path) -> None:
    with printed.open("a") as file:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(file.fileno(), stream.fileno())
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background may ignore it
    config.update("jaxtyping_disable", True)  # shapes are checked where the command is run in the tests' own process
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    sys.exit(predict(arguments, log))


def finished(output: Path) -> dict[Path, tuple[int, int]]:
    """The files of finished predictions and of finished targets, each with what changes when it is written again."""
    found: dict[Path, tuple[int, int]] = {}
    for directory in (path for path in output.iterdir() if path.is_dir()):
        is_marked = (directory / "ranking_debug.json").is_file()
        for path in directory.iterdir():
            of_prediction = path.name.startswith(("unrelaxed_", "confidence_", "pae_")) and path.suffix != ".png"
            name = path.stem.split("_", 1)[-1]
            whole = (directory / f"unrelaxed_{name}.pdb").is_file()
            if path.is_file() and (is_marked or (of_prediction and whole)):
                status = path.stat()
                found[path] = (status.st_ino, status.st_mtime_ns)
    return found


def assert_whole(output: Path) -> None:
    """Every file that has its name is read from its beginning to its end."""
    for path in sorted(output.rglob("*")):
        if path.is_dir() or path.name.endswith(".partial"):
            continue
        content = path.read_bytes()
        if path.suffix == ".json":
            json.loads(content)
        elif path.suffix == ".pdb":
            assert content.rstrip().endswith(b"END"), path
        elif path.suffix == ".cif":
            assert len(gemmi.read_structure(str(path))) == 1, path
        elif path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                assert all(arrays[name] is not None for name in arrays), path
        elif path.suffix == ".png":
            assert content.endswith(b"IEND\xaeB`\x82"), path
        elif path.suffix == ".html":
            assert content.rstrip().endswith(b"</html>"), path
        elif path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                assert archive.testzip() is None, path
        elif path.suffix == ".sto":
            assert content.rstrip().endswith(b"//"), path
        elif path.suffix in {".tsv", ".a3m"}:
            assert content.endswith(b"\n"), path
        else:
            assert path.name == ".helixfold.lock" or gzip.decompress(content), path
