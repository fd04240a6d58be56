"""Ranks of `launch.on_ranks`, forked from a server that has imported everything, which is faster than new processes."""

import gc
import os
import sys
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from jaxtyping import config

from helixfold.parallel import launch
from tests.training.ranks import SERVER


def fork_ranks(monkeypatch: pytest.MonkeyPatch, output: Path) -> None:
    """Let `on_ranks` fork its processes, and write their output to a file.

    For tests of the work of ranks, not of their start.
    """

    def start(
        processes: list[BaseProcess], environment: Mapping[str, str], function: Callable[..., None], *arguments: Any
    ) -> None:
        processes.append(SERVER.Process(target=_run, args=(dict(environment), output, function, arguments)))
        processes[-1].start()

    monkeypatch.setattr(launch, "_start", start)


def _run(environment: dict[str, str], output: Path, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    with output.open("a") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    os.environ |= environment
    # As in `Ranks`: imported modules are not garbage, and checking shapes in one rank is enough.
    gc.freeze()
    if environment.get("RANK", "0") != "0":
        config.update("jaxtyping_disable", True)
    launch._run(function, *arguments)
