"""Choose the devices of `helixfold predict`, and the processes that use them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from data_pipeline.io.errors import InputError
from data_pipeline.io.processors import available_processors
from helixfold.runtime.options import MAX_PROCESSES, whole_number

_VISIBLE_GPUS_VARIABLE, _THREADS_VARIABLE = "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"


@dataclass(frozen=True, kw_only=True)
class Processes:
    """Number of processes to start on this machine, and environment variables that assign devices and cores to them.

    All processes have the same variables: the visible GPUs, and the number of threads of each process.
    """

    count: int
    environment: Mapping[str, str]


def processes(devices: str | None, device: str, ranks_per_target: int) -> Processes | None:
    """Return the processes to start for the option `--devices`, or None without it.

    `devices` is "all" or a list of GPU indices; on a CPU, it is the number of processes. `device` is the option
    `--device`, and `ranks_per_target` the number of processes that fold a target together.

    Raise `InputError` for devices that do not exist, or if their number is not a multiple of `ranks_per_target`.
    """
    if devices is None:
        return None
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise InputError("--devices cannot be combined with torchrun, which starts the processes; leave --devices out")
    if device not in ("auto", "cpu", "cuda"):
        raise InputError(f"--device {device} and --devices cannot be combined; name all devices with --devices")
    gpu_count = 0 if device == "cpu" else torch.cuda.device_count()
    if device == "cuda" and not gpu_count:
        raise InputError("no CUDA device was found; choose --device cpu")
    gpus = _gpus(devices, gpu_count) if gpu_count else None
    count = len(gpus) if gpus is not None else _count(devices)
    if count % ranks_per_target:
        raise InputError(
            f"{count} processes cannot be divided into groups of {ranks_per_target}; --ranks-per-target must divide "
            "the number of --devices"
        )
    environment = {_THREADS_VARIABLE: os.environ.get(_THREADS_VARIABLE) or str(max(1, available_processors() // count))}
    if gpus is not None:
        names = os.environ.get(_VISIBLE_GPUS_VARIABLE, "").split(",")
        environment[_VISIBLE_GPUS_VARIABLE] = ",".join(
            names[index] if len(names) == gpu_count else str(index) for index in gpus
        )
    return Processes(count=count, environment=environment)


def _gpus(devices: str, count: int) -> list[int]:
    """Return the indices of GPUs in the option --devices, of which there are `count`."""
    if devices == "all":
        return list(range(count))
    words = [word.strip() for word in devices.split(",")]
    indices = [int(word) for word in words if word.isdecimal() and int(word) < count]
    if len(set(indices)) != len(words):
        raise InputError(
            f"--devices must be all, or different GPUs from 0 to {count - 1}, such as 0,1; got {devices!r}"
        )
    return indices


def _count(devices: str) -> int:
    """Read the number of processes from the option --devices on a CPU."""
    try:
        return whole_number(1, MAX_PROCESSES)(devices)
    except ValueError as error:
        raise InputError(f"on a CPU --devices is the number of processes to start, such as 2; it {error}") from error
