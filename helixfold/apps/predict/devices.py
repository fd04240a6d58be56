"""Choose the devices of `helixfold predict`, and the processes that use them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from data_pipeline.io.errors import InputError
from data_pipeline.io.processors import available_processors
from helixfold.runtime.options import MAX_PROCESSES, whole_number

_VISIBLE, _THREADS = "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"


@dataclass(frozen=True, kw_only=True)
class Processes:
    """Number of processes to start on this machine, and environment variables that give them devices and cores."""

    count: int
    environment: Mapping[str, str]


def processes(devices: str | None, device: str, ranks_per_target: int) -> Processes | None:
    """Return the processes that `--devices` asks for; None if it was not given.

    Raise `InputError` for devices that do not exist, or that cannot be divided into groups.
    """
    if devices is None:
        return None
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise InputError("torchrun has started the processes and each takes its own device; leave --devices out")
    if device not in ("auto", "cpu", "cuda"):
        raise InputError(f"--device {device} and --devices cannot be combined; name all devices with --devices")
    there = 0 if device == "cpu" else torch.cuda.device_count()
    if device == "cuda" and not there:
        raise InputError("there is no CUDA device; choose --device cpu")
    chosen = _gpus(devices, there) if there else None
    count = len(chosen) if chosen is not None else _count(devices)
    if count % ranks_per_target:
        raise InputError(
            f"{count} processes cannot be divided into groups of {ranks_per_target}; --ranks-per-target must divide "
            "the number of --devices"
        )
    environment = {_THREADS: os.environ.get(_THREADS) or str(max(1, available_processors() // count))}
    if chosen is not None:
        names = os.environ.get(_VISIBLE, "").split(",")
        environment[_VISIBLE] = ",".join(names[number] if len(names) == there else str(number) for number in chosen)
    return Processes(count=count, environment=environment)


def _gpus(devices: str, there: int) -> list[int]:
    if devices == "all":
        return list(range(there))
    words = [word.strip() for word in devices.split(",")]
    numbers = [int(word) for word in words if word.isdecimal() and int(word) < there]
    if len(set(numbers)) != len(words):
        raise InputError(
            f"--devices is all, or a list of GPUs such as 0,1, each once; there are 0 to {there - 1}, got {devices!r}"
        )
    return numbers


def _count(devices: str) -> int:
    try:
        return whole_number(1, MAX_PROCESSES)(devices)
    except ValueError as error:
        raise InputError(f"on a CPU --devices is how many processes to start, such as 2; it {error}") from error
