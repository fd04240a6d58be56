"""Ranks that `launch.on_ranks` starts, forked from a server that has everything imported instead of begun anew."""

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
    """Let `on_ranks` fork its processes, which begin at once; what they print goes to a file.

    For tests of what ranks do, not of how they are started.
    """

    def start(environment: Mapping[str, str], function: Callable[..., None], *arguments: Any) -> BaseProcess:
        process = SERVER.Process(target=_run, args=(dict(environment), output, function, arguments))
        process.start()
        return process

    monkeypatch.setattr(launch, "_start", start)


def _run(environment: dict[str, str], output: Path, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    with output.open("a") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    os.environ |= environment
    # As in `Ranks`: what was imported before the fork is no garbage, and shapes need one rank's check.
    gc.freeze()
    config.update("jaxtyping_disable", environment.get("RANK", "0") != "0")
    launch._run(function, *arguments)
