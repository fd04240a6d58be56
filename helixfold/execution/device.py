"""Choice of the device to compute on."""

import os

import torch

from data_pipeline.errors import InputError
from data_pipeline.processors import available_processors


def pick_device(name: str = "auto") -> torch.device:
    """Return the device of that name; "auto" is the first of cuda, mps and cpu that is available.

    Raise `InputError` if the name is unknown or the device is not available.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"there is no device {name!r}; choose auto, cpu, cuda, cuda:N or mps") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"device {name!r} is not there ({torch.cuda.device_count()} CUDA devices); choose auto or cpu")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise InputError("device 'mps' is not there; choose auto or cpu")
    return device


def limit_threads() -> None:
    """Have PyTorch use no more threads than there are processors for, unless `OMP_NUM_THREADS` says how many.

    PyTorch sees the affinity of the process, but not the share of time that a container or a batch system gives it.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(min(torch.get_num_threads(), available_processors()))
