"""Which processes train together, and the few things that they tell each other.

There is one process for each device. `torchrun` starts them and starts them again after a failure; without it a
process is alone, and everything here costs nothing. Today all ranks are replicas of the model (the mesh's one axis is
data); hybrid layouts cut the same ranks along further axes.
"""

import json
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from data_pipeline.errors import InputError
from helixfold.device import pick_device


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """This process's place among those that train together."""

    rank: int
    size: int
    device: torch.device

    @classmethod
    def alone(cls, device: torch.device | str = "cpu") -> "Mesh":
        return cls(rank=0, size=1, device=torch.device(device))

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that writes what only one may write."""
        return self.rank == 0

    def parts(self, count: int) -> range:
        """Which of a step's `count` equal parts this rank works on."""
        share = count // self.size
        return range(self.rank * share, (self.rank + 1) * share)

    def sum_(self, tensor: Tensor) -> None:
        """Replace the tensor by its sum over all ranks."""
        if self.size > 1:
            dist.all_reduce(tensor)

    def any(self, flag: bool) -> bool:
        """Whether it is so on any rank."""
        count = torch.tensor(float(flag), device=self.device)
        self.sum_(count)
        return bool(count > 0)

    def broadcast(self, value: Any) -> Any:
        """The first rank's value, plain data as JSON has it, on every rank."""
        if self.size == 1:
            return value
        content = json.dumps(value).encode() if self.is_first else b""
        length = torch.tensor(len(content), device=self.device)
        dist.broadcast(length, src=0)
        buffer = torch.zeros(int(length), dtype=torch.uint8, device=self.device)
        if self.is_first:
            buffer.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        dist.broadcast(buffer, src=0)
        return json.loads(buffer.cpu().numpy().tobytes())

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, plain data as JSON has it, in the order of ranks, on every rank."""
        if self.size == 1:
            return [value]
        content = json.dumps(value).encode()
        lengths = torch.zeros(self.size, dtype=torch.int64, device=self.device)
        lengths[self.rank] = len(content)
        dist.all_reduce(lengths)
        rows = torch.zeros(self.size, max(1, int(lengths.max())), dtype=torch.uint8, device=self.device)
        if content:
            rows[self.rank, : len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        dist.all_reduce(rows)  # every row has one rank that filled it
        return [
            json.loads(row[: int(length)].cpu().numpy().tobytes()) for row, length in zip(rows, lengths, strict=True)
        ]

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.size > 1:
            dist.barrier()


def join(device: str = "auto") -> Mesh:
    """Meet the other processes that `torchrun` started; alone if this process was started without it.

    On GPUs each process takes the one of its number on its machine and they talk over NCCL, else over gloo.
    """
    if not dist.is_torchelastic_launched():
        return Mesh.alone(pick_device(device))
    on_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    if device not in ("auto", "cpu", "cuda"):
        raise InputError(f"under torchrun --device is auto, cpu or cuda, got {device!r}; each process takes its own")
    # gloo beside NCCL: training state is written from the processor's memory.
    dist.init_process_group(backend="cpu:gloo,cuda:nccl" if on_gpu else "gloo")
    place = torch.device("cpu")
    if on_gpu:
        place = pick_device(f"cuda:{dist.get_node_local_rank()}")
        torch.cuda.set_device(place)
    return Mesh(rank=dist.get_rank(), size=dist.get_world_size(), device=place)


def leave() -> None:
    """Part from the other processes, if there are any."""
    if dist.is_initialized():
        dist.destroy_process_group()
