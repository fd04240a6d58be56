"""Choice of the device to compute on, and the settings of PyTorch that belong to it."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from data_pipeline.io.errors import InputError
from data_pipeline.io.processors import available_processors
from helixfold.model.alphafold import IN_FLOAT32, AlphaFold
from helixfold.ops.device_properties import DeviceProperties

# Those of pairs of 36 residues of the demonstration model, or 22 of `model_1`. Up to there one thread of two idle
# processors takes 0.6 to 0.75 times as long as two and gives the same bits; two are faster from four times as many on.
_ELEMENTS_OF_ONE_THREAD = 2**16


def pick_device(name: str = "auto") -> torch.device:
    """Return the device of that name; "auto" is the first of cuda, mps and cpu that is available.

    A CUDA device becomes the current one, on which Triton launches its kernels. Raise `InputError` if the name is
    unknown or the device is not available.
    """
    try:
        device = torch.device(_available() if name == "auto" else name)
    except RuntimeError as error:
        raise InputError(f"there is no device {name!r}; choose auto, cpu, cuda, cuda:N or mps") from error
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise InputError(f"device {name!r} is not there ({count} CUDA devices); choose auto or cpu")
        _prepare_cuda(device)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise InputError("device 'mps' is not there; choose auto or cpu")
    return device


def untried(properties: DeviceProperties) -> str | None:
    """Return a sentence that says so if helixfold has never run on devices of this kind, else None."""
    if properties.kind != "rocm":
        return None
    return (
        f"{properties.name} is a GPU of AMD (ROCm {torch.version.hip}), on which helixfold has never been tried; "
        "compare first results with those of --device cpu"
    )


def limit_threads() -> None:
    """Have PyTorch use no more threads than there are processors for, unless `OMP_NUM_THREADS` says how many.

    PyTorch sees the affinity of the process, but not the share of time that a container or a batch system gives it.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(min(torch.get_num_threads(), available_processors()))


def _available() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _prepare_cuda(device: torch.device) -> None:
    if device.index is not None:
        torch.cuda.set_device(device)
    # By default cuBLAS may round partial sums of bfloat16 products to bfloat16, also in weights' gradients, which sum
    # over tens of thousands of positions.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def threads_for(elements: int, device: torch.device) -> int:
    """Return the number of threads in which a CPU computes a pass whose largest stream has so many elements.

    The threads of a peptide's pass would wait for each other longer than they compute, most of all beside programs that
    keep processors busy.
    """
    threads = torch.get_num_threads()
    return 1 if device.type == "cpu" and elements <= _ELEMENTS_OF_ONE_THREAD else threads


@contextmanager
def in_threads(count: int) -> Iterator[None]:
    """Let PyTorch compute in so many threads inside."""
    before = torch.get_num_threads()
    if count != before:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if count != before:
            torch.set_num_threads(before)


AUTO = "auto"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# The first compute capability whose matrix units multiply bfloat16.
_BFLOAT16_FROM = (8, 0)


def settled_dtype(name: str, properties: DeviceProperties) -> str:
    """Return the name of the dtype that "auto" stands for on a card; a name of `DTYPES` stands for itself.

    It is bfloat16 on NVIDIA's GPUs that multiply it, and float32 on older ones and on all other devices. It is never
    float16, whose largest number, 65,504, a trained network may pass.
    """
    if name != AUTO:
        return name
    return "bfloat16" if properties.capability is not None and properties.capability >= _BFLOAT16_FROM else "float32"


def common_dtype(names: Sequence[str]) -> str:
    """Return the dtype in which devices compute alike that would choose these themselves: float32 if they differ."""
    return names[0] if len(set(names)) == 1 else "float32"


def dtype_on(name: str, properties: DeviceProperties) -> torch.dtype:
    """Return the dtype of this name on a card; "auto" is chosen for the card."""
    return DTYPES[settled_dtype(name, properties)]


def cast_trunk(network: AlphaFold, dtype: torch.dtype) -> None:
    """Cast the parameters of the trunk, on a GPU, to its dtype once, so that operators need not for every call.

    Those of the structure module and the heads, which compute in float32, stay as they are, and so do buffers. On a CPU
    nothing is cast, since its operators round products alone.
    """
    for name, part in network.named_children():
        if name not in IN_FLOAT32:
            for parameter in part.parameters():
                if parameter.device.type != "cpu":
                    parameter.data = parameter.data.to(dtype)
