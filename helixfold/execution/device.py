"""Choose the device, its dtype and the number of threads."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from data_pipeline.io.errors import InputError
from data_pipeline.io.processors import available_processors
from helixfold.model.alphafold import IN_FLOAT32, AlphaFold
from helixfold.ops.device_properties import DeviceProperties
from helixfold.runtime.openmp import spin_less_if_busy

# The pair stream of 36 residues in the demonstration model, or of 22 in `model_1`. Up to this size one thread takes 0.6
# to 0.75 times as long as two threads on two idle processors, and the results are equal bit for bit. Two threads are
# faster from four times this size on.
_ELEMENTS_OF_ONE_THREAD = 2**16


def pick_device(name: str = "auto") -> torch.device:
    """Return the PyTorch device of a name; "auto" is the first of cuda, mps and cpu that is available.

    A CUDA device with an index becomes the current device, because Triton launches its kernels there, and its bfloat16
    products are summed in float32. On a CPU, threads spin less from now on while other programs are busy. Raise
    `InputError` if the name is unknown or the device is not available.
    """
    try:
        device = torch.device(_available() if name == "auto" else name)
    except RuntimeError as error:
        raise InputError(f"unknown device {name!r}; choose auto, cpu, cuda, cuda:N or mps") from error
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise InputError(f"device {name!r} is not available ({count} CUDA devices); choose auto or cpu")
        _prepare_cuda(device)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise InputError("device 'mps' is not available; choose auto or cpu")
    if device.type == "cpu":
        spin_less_if_busy()
    return device


def untested_warning(properties: DeviceProperties) -> str | None:
    """Return a warning if helixfold has never been tested on this kind of device, else None."""
    if properties.kind != "rocm":
        return None
    return (
        f"{properties.name} is an AMD GPU (ROCm {torch.version.hip}), on which helixfold has never been tested; "
        "compare first results with results of --device cpu"
    )


def limit_threads() -> None:
    """Limit PyTorch's threads to the available processors, unless `OMP_NUM_THREADS` is set.

    PyTorch reads the affinity of the process, but not the CPU quota of a container or batch system.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(min(torch.get_num_threads(), available_processors()))


def _available() -> str:
    """Return the first of cuda, mps and cpu that is available."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _prepare_cuda(device: torch.device) -> None:
    """Make the device current, and let cuBLAS sum bfloat16 products in float32."""
    if device.index is not None:
        torch.cuda.set_device(device)
    # By default cuBLAS may round partial sums of bfloat16 products to bfloat16. The gradients of weights are sums over
    # tens of thousands of positions and would lose precision.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def threads_for(elements: int, device: torch.device) -> int:
    """Return the number of CPU threads for a network whose largest stream has `elements` elements.

    It is PyTorch's current number, except that peptides use one thread on a CPU: several would wait for each other
    longer than they compute, above all on busy processors.
    """
    threads = torch.get_num_threads()
    return 1 if device.type == "cpu" and elements <= _ELEMENTS_OF_ONE_THREAD else threads


@contextmanager
def in_threads(count: int) -> Iterator[None]:
    """Set the number of PyTorch's threads inside the context, and restore it afterwards."""
    before = torch.get_num_threads()
    if count != before:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if count != before:
            torch.set_num_threads(before)


AUTO = "auto"  # name of the device's own dtype
# Dtypes of the trunk by the names that options accept.
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# The lowest compute capability whose matrix units multiply bfloat16.
_BFLOAT16_FROM = (8, 0)


def settled_dtype(name: str, properties: DeviceProperties) -> str:
    """Return the name of the dtype that "auto" means on a device; a name of `DTYPES` is returned as it is.

    "auto" is bfloat16 on NVIDIA GPUs that multiply it, and float32 on older GPUs and all other devices. It is never
    float16, because activations of a trained network may exceed its largest number, 65,504.
    """
    if name != AUTO:
        return name
    return "bfloat16" if properties.capability is not None and properties.capability >= _BFLOAT16_FROM else "float32"


def common_dtype(names: Sequence[str]) -> str:
    """Return one dtype for devices whose own choices are `names`: the common one, or float32 if they differ."""
    return names[0] if len(set(names)) == 1 else "float32"


def dtype_on(name: str, properties: DeviceProperties) -> torch.dtype:
    """Return the PyTorch dtype of a name, or the device's own if the name is "auto"."""
    return DTYPES[settled_dtype(name, properties)]


def cast_trunk(network: AlphaFold, dtype: torch.dtype) -> None:
    """Cast the trunk's parameters on a GPU to its dtype once, so that operators need not cast them in every call.

    Parameters of the structure module and the heads, which compute in float32, and buffers are not cast. On a CPU
    nothing is cast, because its operators only round products.
    """
    for name, part in network.named_children():
        if name not in IN_FLOAT32:
            for parameter in part.parameters():
                if parameter.device.type != "cpu":
                    parameter.data = parameter.data.to(dtype)
