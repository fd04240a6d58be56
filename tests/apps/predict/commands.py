"""`helixfold predict` as tests run it, and the files of a run that a later one must leave alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from helixfold.cli.main import main
from helixfold.folding import planned
from helixfold.folding.recycling import FoldingTarget

BAD = "bad"


def predict(arguments: Sequence[str], log: Path) -> int:
    """The command; every prediction is logged when it begins, and those of the target `bad` fail."""
    fold = planned.fold

    def logged(model: Any, preset: Any, targets: Sequence[FoldingTarget], *rest: Any, **named: Any) -> Any:
        for target in targets:
            with log.open("a") as file:
                file.write(f"{target.features.domain_name} {target.name}\n")
            if target.features.domain_name == BAD:
                raise RuntimeError("the chain is broken")
        return fold(model, preset, targets, *rest, **named)

    planned.fold = logged  # type: ignore[assignment]
    try:
        models = [] if {"--models", "--preset", "--weights"} & set(arguments) else ["--models", "tiny"]
        return main(["predict", *arguments, "--num-recycles", "0", "--device", "cpu", *models])
    finally:
        planned.fold = fold


def batch(path: Path, count: int, *others: str) -> Path:
    """Write a FASTA file of random short chains, with `others` as the last names."""
    random = np.random.default_rng(0)
    names = [*(f"t{number:02d}" for number in range(count - len(others))), *others]
    chains = ["".join(random.choice(list("ACDEFGHIKLMNPQRSTVWY"), 8 + number % 7)) for number in range(count)]
    path.write_text("".join(f">{name}\n{chain}\n" for name, chain in zip(names, chains, strict=True)))
    return path


def finished(output: Path) -> dict[Path, tuple[int, int]]:
    """The files of finished predictions and of finished targets, each with what changes when it is written again."""
    found: dict[Path, tuple[int, int]] = {}
    for directory in (path for path in output.iterdir() if path.is_dir()):
        is_marked = (directory / "ranking_debug.json").is_file()
        for path in directory.iterdir():
            of_prediction = path.name.startswith(("unrelaxed_", "confidence_", "pae_")) and path.suffix != ".png"
            name = path.stem.split("_", 1)[-1]
            whole = (directory / f"confidence_{name}.json").is_file()
            if path.is_file() and (is_marked or (of_prediction and whole)):
                status = path.stat()
                found[path] = (status.st_ino, status.st_mtime_ns)
    return found
