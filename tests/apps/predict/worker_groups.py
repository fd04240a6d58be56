"""What every process of tests/apps/predict/test_devices.py runs: `helixfold predict` with something going wrong."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from helixfold.apps.predict import lot, postprocess, run
from helixfold.cli.main import main
from helixfold.execution.slabs import Slabs
from helixfold.folding import planned
from helixfold.folding.prediction import Prediction
from helixfold.folding.recycling import FoldingTarget
from helixfold.model.update import Executor
from helixfold.parallel.worker_group import ControlChannel, WorkerGroup, join_workers

BAD, HUNGRY = "bad", "hungry"


def predict(arguments: Sequence[str], log: Path, last_fails: bool, port: int) -> int:
    """Target `bad` fails on the last rank of a group, if it `last_fails`, and `hungry` wants more memory than there is
    unless in slabs. The store is another process's, as under `torchrun`.
    """
    told = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0", "MASTER_PORT": str(port)}
    os.environ.update(told)
    run.join_workers = partial(join_workers, timeout=15.0)
    postprocess.write_plots = lambda *_: None  # plots take most of the time
    fold, fold_planned, groups = planned.fold, lot.fold_planned, list[ControlChannel]()

    def recorded(*given: Any, workers: WorkerGroup, **named: Any) -> Prediction:
        groups.append(workers.group)
        return fold_planned(*given, workers=workers, **named)

    def failing(
        model: Any, preset: Any, targets: Sequence[FoldingTarget], options: Any, run: Executor, **named: Any
    ) -> Any:
        group, features = groups[-1], targets[0].features
        if features.domain_name == BAD and last_fails and group.rank == group.size - 1:
            raise RuntimeError("the chain is broken")
        if features.domain_name == HUNGRY and not isinstance(getattr(run, "within", run), Slabs):
            raise torch.OutOfMemoryError("no memory left")
        with log.open("a") as file:
            file.write(f"{features.domain_name} {group.rank}\n")
        return fold(model, preset, targets, options, run, **named)

    planned.fold, lot.fold_planned = failing, recorded  # type: ignore[assignment]
    return main(["predict", *arguments, "--num-recycles", "0", "--device", "cpu", "--models", "tiny"])
