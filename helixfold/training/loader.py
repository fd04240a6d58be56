"""Training examples on their way to the device: made by worker processes, each step's arrays in one buffer.

One buffer is one piece of shared memory between processes and one copy to the device, however many arrays it holds.
Padding is no part of it: that is added on the device.
"""

import itertools
import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from data_pipeline.datasets.examples import StepExamples, TrainingDataset
from data_pipeline.errors import InputError
from data_pipeline.features.ground_truth import GroundTruth
from data_pipeline.features.sample import SAMPLE_AXES
from helixfold.batch import Batch
from helixfold.execution.allocator import keep_freed_memory
from helixfold.losses.labels import Labels

_ALIGNMENT = 64
_BATCH_FIELDS = tuple(field.name for field in fields(Batch))
# What all passes of an example share, and so one copy serves.
_SHARED_FIELDS = frozenset(
    name for name in _BATCH_FIELDS if name.startswith("template_") or name in ("residue_index", "seq_mask")
)
# Axes as in SAMPLE_AXES; everything else about an example is by residue, or one number.
_NUMBERS = ("use_clamped_fape", "resolution", "is_distillation")
_AXES = SAMPLE_AXES | dict.fromkeys((field.name for field in fields(GroundTruth)), "r") | dict.fromkeys(_NUMBERS, "")
# Measured numbers; the others are small whole ones (masks, residue types) and travel as bytes where that is exact.
_MEASURED = frozenset(
    name for name in _AXES if "position" in name or name.endswith(("_feat", "_value", "pseudo_beta", "resolution"))
)
_TORCH = {
    np.dtype(kind): dtype
    for kind, dtype in (
        (np.int8, torch.int8),
        (np.int32, torch.int32),
        (np.int64, torch.int64),
        (np.float32, torch.float32),
    )
}
_SHARED_MEMORY = "/dev/shm"
_WORTH_SHARING = 2**20  # below, a pipe is faster than a piece of shared memory of its own


@dataclass(frozen=True, kw_only=True)
class TrainingBatch:
    """One part of a step's batch on its device: what goes through the network at once."""

    step: int
    part: int
    passes: tuple[Batch, ...]  # one for each recycling pass
    labels: Labels
    names: tuple[str, ...]
    refused: tuple[str, ...]  # chains that were drawn and cannot be used, each with its reason


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where in the buffer one array of one example lies."""

    offset: int
    dtype: np.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class PackedStep:
    """A `TrainingBatch` on its way to the device: the arrays of all examples, unpadded, in one buffer of bytes."""

    step: int
    part: int
    names: tuple[str, ...]
    refused: tuple[str, ...]
    num_passes: int
    sizes: dict[str, int] | None  # to pad to, by axis; None: there is one example, and it keeps its own
    places: dict[str, list[_Place]]  # by "pass/field" or field, of each example
    is_whole: frozenset[str]  # fields of whole numbers
    buffer: Tensor | np.ndarray

    def pin_memory(self) -> "PackedStep":
        """In memory that the device copies from by itself; torch's loader calls this."""
        return replace(self, buffer=torch.as_tensor(self.buffer).pin_memory())

    def on(self, device: torch.device) -> TrainingBatch:
        # NumPy on the CPU: torch's threads would wait for each other at each of a hundred small copies, and for cores
        # that the workers use.
        buffer = torch.as_tensor(self.buffer)
        memory = buffer.numpy() if device.type == "cpu" else buffer.to(device, non_blocking=True)

        def tensor(field: str, index: int | None = None) -> Tensor:
            return torch.as_tensor(self._stacked(memory, field if index is None else f"{index}/{field}", field))

        shared = {name: tensor(name, 0) for name in _SHARED_FIELDS}
        passes = tuple(
            Batch(**{name: shared[name] if name in shared else tensor(name, index) for name in _BATCH_FIELDS})
            for index in range(self.num_passes)
        )
        return TrainingBatch(
            step=self.step,
            part=self.part,
            passes=passes,
            labels=Labels(**{field.name: tensor(field.name) for field in fields(Labels)}),
            names=self.names,
            refused=self.refused,
        )

    def _stacked(self, memory: Any, name: str, field: str) -> Any:
        """One array of the batch: the examples' one after the other, each with zeros after it."""
        kind = np.dtype(np.int64 if field in self.is_whole else np.float32)
        places, axes = self.places[name], _AXES[field]
        shape = places[0].shape
        if self.sizes is not None:
            shape = (*(self.sizes[axis] for axis in axes), *shape[len(axes) :])
        on_cpu = isinstance(memory, np.ndarray)

        def content(place: _Place) -> Any:
            stretch = memory[place.offset : place.offset + math.prod(place.shape) * place.dtype.itemsize]
            return stretch.view(place.dtype if on_cpu else _TORCH[place.dtype]).reshape(place.shape)

        if len(places) == 1 and places[0].shape == shape:
            whole = content(places[0])
            return (whole.astype(kind, copy=False) if on_cpu else whole.to(_TORCH[kind]))[None]
        padded = (len(places), *shape)
        batch: Any = np.zeros(padded, kind) if on_cpu else torch.zeros(padded, dtype=_TORCH[kind], device=memory.device)
        for index, place in enumerate(places):
            batch[(index, *map(slice, place.shape))] = content(place)
        return batch


def pack(drawn: StepExamples, sizes: dict[str, int] | None) -> PackedStep:
    """The examples of one step on their way, to be padded to `sizes` where they arrive."""
    arrays = _arrays(drawn)
    with np.errstate(invalid="ignore"):  # what does not fit into a byte is found by comparing
        contents = [
            (name, array if name.rpartition("/")[2] in _MEASURED else _as_bytes(array))
            for name, stack in arrays.items()
            for array in stack
        ]
    aligned = (-(-content.nbytes // _ALIGNMENT) * _ALIGNMENT for _, content in contents)
    *offsets, end = itertools.accumulate(aligned, initial=0)
    buffer = np.empty(end, np.uint8)
    places: dict[str, list[_Place]] = {name: [] for name in arrays}
    for offset, (name, content) in zip(offsets, contents, strict=True):
        buffer[offset : offset + content.nbytes] = content.reshape(-1).view(np.uint8)
        places[name].append(_Place(offset=offset, dtype=content.dtype, shape=content.shape))
    return PackedStep(
        step=drawn.step,
        part=drawn.part,
        names=tuple(example.name for example in drawn.examples),
        refused=drawn.refused,
        num_passes=len(drawn.examples[0].samples),
        sizes=sizes,
        places=places,
        is_whole=frozenset(name.rpartition("/")[2] for name, (first, *_) in arrays.items() if first.dtype.kind == "i"),
        buffer=torch.from_numpy(buffer) if end >= _WORTH_SHARING and _has_room(end) else buffer,
    )


def _arrays(drawn: StepExamples) -> dict[str, list[np.ndarray]]:
    """Everything about the examples, by the names in `PackedStep.places`."""
    examples = drawn.examples
    last = len(examples[0].samples) - 1
    arrays = {
        f"{index}/{name}": [getattr(example.samples[index], name) for example in examples]
        for index in range(last + 1)
        for name in _BATCH_FIELDS
        if index == 0 or name not in _SHARED_FIELDS
    }
    arrays |= {
        field.name: [getattr(example.truth, field.name) for example in examples] for field in fields(GroundTruth)
    }
    arrays |= {
        name: [getattr(example.samples[last], name) for example in examples] for name in ("true_msa", "bert_mask")
    }
    arrays |= {name: [np.array(getattr(example, name), np.float32) for example in examples] for name in _NUMBERS}
    return {
        name: [np.ascontiguousarray(array).reshape(array.shape) for array in stack] for name, stack in arrays.items()
    }


def _as_bytes(array: np.ndarray) -> np.ndarray:
    small = array.astype(np.int8)
    return small if (small == array).all() else array


def _keep_memory(worker: int) -> None:
    """Have a worker use its large arrays' memory again and again."""
    keep_freed_memory()


def _has_room(size: int) -> bool:
    """Whether shared memory has room for this step and some more.

    Where it does not (containers often give 64 MiB) a process that writes to it dies; the buffer then goes through a
    pipe, which costs time and nothing else.
    """
    try:
        return shutil.disk_usage(_SHARED_MEMORY).free > 4 * size
    except FileNotFoundError:
        return False


class _PackedSteps(Dataset[PackedStep | InputError]):
    """What a worker does. Wrong input is handed over as a value, as torch would bury it in a traceback."""

    def __init__(self, dataset: TrainingDataset) -> None:
        self.dataset = dataset
        self.sizes = dataset.config.sizes() if dataset.config.fixed_shapes else None

    def __getitem__(self, part: tuple[int, int]) -> PackedStep | InputError:
        try:
            return pack(self.dataset.draw(*part), self.sizes)
        except InputError as error:
            return error


class TrainingLoader:
    """One rank's parts of all batches from `first_step` to before `last_step`, made ahead by worker processes.

    A part depends on the dataset, the step and its number alone: not on `workers`, `prefetch` or where it began.
    An error in a worker is raised here with the chain and the step in its text.
    """

    def __init__(
        self,
        dataset: TrainingDataset,
        *,
        first_step: int,
        last_step: int,
        parts: Sequence[int] = (0,),  # of every step's batch
        device: torch.device | str = "cpu",
        workers: int = 0,
        prefetch: int = 4,  # steps made ahead by each worker; a deep alignment takes as long as many a shallow one
    ) -> None:
        if not 0 <= first_step <= last_step or workers < 0 or prefetch < 1:
            raise ValueError(
                f"steps must be 0 <= first_step <= last_step, workers not negative and prefetch at least 1, "
                f"got {first_step}, {last_step}, {workers} and {prefetch}"
            )
        self.device = torch.device(device)
        self._loader = DataLoader(
            _PackedSteps(dataset),
            batch_size=None,
            sampler=[(step, part) for step in range(first_step, last_step) for part in parts],
            num_workers=workers,
            worker_init_fn=_keep_memory,
            prefetch_factor=prefetch if workers else None,
            # A forked child of a process with threads may hang on a lock that no one there will release.
            multiprocessing_context="spawn" if workers else None,
            pin_memory=self.device.type == "cuda",
        )

    def __iter__(self) -> Iterator[TrainingBatch]:
        for packed in self._loader:
            if isinstance(packed, InputError):
                raise packed
            yield packed.on(self.device)
