"""Choice of the device to compute on."""

import torch

from data_pipeline.errors import InputError


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
