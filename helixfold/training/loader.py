"""Loader of training batches: worker processes draw examples and pack all their arrays into one buffer.

However many arrays it holds, a buffer is one piece of shared memory between processes and one copy to the device.
Arrays are padded on the device, not in the buffer.
"""

import itertools
import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from data_pipeline.features.ground_truth import GroundTruth
from data_pipeline.features.sample import SAMPLE_AXES, Sample
from data_pipeline.io.child_processes import interruptions_postponed, leave_interruptions_to_parent
from data_pipeline.io.errors import InputError
from data_pipeline.sampling.complex_training import ComplexTruth
from data_pipeline.sampling.sample import ALIGNMENT_AXES, DrawnSample
from data_pipeline.training_sets.examples import StepExamples, TrainingDataset
from helixfold.execution.allocator import keep_freed_memory
from helixfold.execution.device import in_threads
from helixfold.losses.labels import ComplexLabels, Labels
from helixfold.model.batch import Batch, MultimerBatch, sampled_fields
from helixfold.training.alignment_features import alignment_features

_BOUNDARY = 64  # bytes, of which every array's offset is a multiple
_BATCH_FIELDS = tuple(sampled_fields(Batch))
_CHAIN_NUMBERS = ("asym_id", "entity_id", "sym_id")
_LABELS = ("true_msa", "bert_mask")  # fields of samples that only the losses read
# Fields that are the same in all recycling iterations of an example, and are sent once.
_SHARED_FIELDS = frozenset(
    name
    for name in (*_BATCH_FIELDS, *_CHAIN_NUMBERS)
    if name.startswith("template_") or name in ("residue_index", "seq_mask", *_CHAIN_NUMBERS)
)
# Axes of each field, as in SAMPLE_AXES; fields that are not named there have one residue axis, or are one number.
_NUMBERS = ("use_clamped_fape", "resolution", "is_distillation")
_AXES = SAMPLE_AXES | dict.fromkeys((field.name for field in fields(GroundTruth)), "r") | dict.fromkeys(_NUMBERS, "")
_AXES |= dict.fromkeys(_CHAIN_NUMBERS, "r") | dict.fromkeys(("copies_positions", "copies_mask"), "kr")
# Fields of an alignment in whole numbers, which become features on the device. Labels are those of the last iteration.
_ALIGNMENT = tuple(name for name in ALIGNMENT_AXES if name not in ("true_msa", "hidden"))
_AXES |= {name: ALIGNMENT_AXES[name] for name in _ALIGNMENT}
# Fields of real numbers; the others are small integers (masks, residue types) and are sent as bytes if that is exact.
_MEASURED = frozenset(
    name for name in _AXES if "position" in name or name.endswith(("_feat", "_value", "pseudo_beta", "resolution"))
)
_TORCH = {
    np.dtype(kind): dtype
    for kind, dtype in (
        (np.int8, torch.int8),
        (np.uint8, torch.uint8),
        (np.int16, torch.int16),
        (np.int32, torch.int32),
        (np.int64, torch.int64),
        (np.float32, torch.float32),
    )
}
_SHARED_MEMORY = "/dev/shm"
_WORTH_SHARING = 2**20  # bytes, below which a pipe is faster than shared memory
_PIPE_BYTES = 2**20  # the most that Linux allows to all users


@dataclass(frozen=True, kw_only=True)
class TrainingBatch:
    """One micro-batch of a step on its device."""

    step: int
    micro_batch: int  # index within the step
    recycling_inputs: tuple[Batch, ...]  # one for each recycling iteration
    labels: Labels
    names: tuple[str, ...]
    refused: tuple[str, ...]  # chains that were drawn and cannot be used, each with its reason


@dataclass(frozen=True, kw_only=True)
class _Slot:
    """Position, dtype and shape of one array of one example in the buffer."""

    offset: int
    dtype: np.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class PackedBatch:
    """A `TrainingBatch` before it is on the device: the arrays of all examples, unpadded, in one buffer of bytes."""

    step: int
    micro_batch: int
    names: tuple[str, ...]
    refused: tuple[str, ...]
    num_iterations: int  # of recycling
    sizes: dict[str, int] | None  # to pad to, by axis; None for a single example, which is not padded
    slots: dict[str, list[_Slot]]  # of all examples, by "iteration/field" or field
    integers: frozenset[str]  # names of the fields that hold integers
    buffer: Tensor | np.ndarray
    of_complexes: bool = False
    has_numbers: bool = False  # alignments are in whole numbers, not in features

    def pin_memory(self) -> "PackedBatch":
        """Return a copy whose buffer is page-locked; torch's loader calls this."""
        return replace(self, buffer=torch.as_tensor(self.buffer).pin_memory())

    def on(self, device: torch.device) -> TrainingBatch:
        """Return the batch on a device, padded."""
        # NumPy on the CPU: torch's threads would wait for each other at each of a hundred small copies, and for cores
        # that the workers use.
        buffer = torch.as_tensor(self.buffer)
        memory = buffer.numpy() if device.type == "cpu" else buffer.to(device, non_blocking=True)

        def tensor(field: str, index: int | None = None) -> Tensor:
            return torch.as_tensor(self._stacked(memory, field if index is None else f"{index}/{field}", field))

        kind, labels = (MultimerBatch, ComplexLabels) if self.of_complexes else (Batch, Labels)
        names = sampled_fields(kind)
        shared = {name: tensor(name, 0) for name in names if name in _SHARED_FIELDS}

        def iteration(index: int) -> Batch:
            values = dict(shared)
            if self.has_numbers:
                values |= alignment_features({name: tensor(name, index) for name in _ALIGNMENT})
            return kind(**values, **{name: tensor(name, index) for name in names if name not in values})

        recycling_inputs = tuple(map(iteration, range(self.num_iterations)))
        return TrainingBatch(
            step=self.step,
            micro_batch=self.micro_batch,
            recycling_inputs=recycling_inputs,
            labels=labels(**{field.name: tensor(field.name) for field in fields(labels)}),
            names=self.names,
            refused=self.refused,
        )

    def _stacked(self, memory: Any, name: str, field: str) -> Any:
        """Return one array of the batch: the arrays of all examples, padded with zeros and stacked."""
        slots, axes = self.slots[name], _AXES[field]
        if field in _ALIGNMENT and self.has_numbers:
            kind = np.result_type(*(slot.dtype for slot in slots))
        else:
            kind = np.dtype(np.int64 if field in self.integers else np.float32)
        shape = slots[0].shape
        if self.sizes is not None:
            # The copies of chains are as many as the examples have.
            most = {axis: max(slot.shape[dim] for slot in slots) for dim, axis in enumerate(axes)}
            shape = (*(self.sizes.get(axis, most[axis]) for axis in axes), *shape[len(axes) :])
        on_cpu = isinstance(memory, np.ndarray)

        def content(slot: _Slot) -> Any:
            stretch = memory[slot.offset : slot.offset + math.prod(slot.shape) * slot.dtype.itemsize]
            return stretch.view(slot.dtype if on_cpu else _TORCH[slot.dtype]).reshape(slot.shape)

        if len(slots) == 1 and slots[0].shape == shape:
            array = content(slots[0])
            return (array.astype(kind, copy=False) if on_cpu else array.to(_TORCH[kind]))[None]
        padded = (len(slots), *shape)
        batch: Any = np.zeros(padded, kind) if on_cpu else torch.zeros(padded, dtype=_TORCH[kind], device=memory.device)
        for index, slot in enumerate(slots):
            batch[(index, *map(slice, slot.shape))] = content(slot)
        return batch


def pack(drawn: StepExamples, sizes: dict[str, int] | None) -> PackedBatch:
    """Pack the examples of one micro-batch, which are padded to `sizes` on the device."""
    arrays = _arrays(drawn)
    with np.errstate(invalid="ignore"):  # `_as_bytes` checks what does not fit into a byte
        contents = [
            (name, array if name.rpartition("/")[2] in _MEASURED else _as_bytes(array))
            for name, stack in arrays.items()
            for array in stack
        ]
    aligned = (-(-content.nbytes // _BOUNDARY) * _BOUNDARY for _, content in contents)
    *offsets, end = itertools.accumulate(aligned, initial=0)
    buffer = np.empty(end, np.uint8)
    slots: dict[str, list[_Slot]] = {name: [] for name in arrays}
    for offset, (name, content) in zip(offsets, contents, strict=True):
        buffer[offset : offset + content.nbytes] = content.reshape(-1).view(np.uint8)
        slots[name].append(_Slot(offset=offset, dtype=content.dtype, shape=content.shape))
    return PackedBatch(
        step=drawn.step,
        micro_batch=drawn.micro_batch,
        names=tuple(example.name for example in drawn.examples),
        refused=drawn.refused,
        num_iterations=len(drawn.examples[0].drawn),
        sizes=sizes,
        slots=slots,
        integers=frozenset(name.rpartition("/")[2] for name, (first, *_) in arrays.items() if first.dtype.kind == "i"),
        buffer=torch.from_numpy(buffer) if end >= _WORTH_SHARING and _fits_shared_memory(end) else buffer,
        of_complexes=isinstance(drawn.examples[0].truth, ComplexTruth),
        has_numbers=isinstance(drawn.examples[0].drawn[0], DrawnSample),
    )


def _arrays(drawn: StepExamples) -> dict[str, list[np.ndarray]]:
    """Return all arrays of the examples, by the names in `PackedBatch.slots`."""
    examples = drawn.examples
    arrays: dict[str, list[np.ndarray]] = {}
    for index in range(len(examples[0].drawn)):
        drawn_fields = [_fields(example.drawn[index]) for example in examples]
        for name in drawn_fields[0]:
            stack = [each[name] for each in drawn_fields]
            if name in _LABELS:
                arrays[name] = stack  # those of the last iteration stay
            elif index == 0 or name not in _SHARED_FIELDS:
                arrays[f"{index}/{name}"] = stack
    arrays |= {
        field.name: [getattr(example.truth, field.name) for example in examples] for field in fields(examples[0].truth)
    }
    arrays |= {name: [np.array(getattr(example, name), np.float32) for example in examples] for name in _NUMBERS}
    return {
        name: [np.ascontiguousarray(array).reshape(array.shape) for array in stack] for name, stack in arrays.items()
    }


def _fields(drawn: DrawnSample | Sample) -> dict[str, np.ndarray]:
    """Return all arrays of one recycling iteration by their names, with the labels of its alignment."""
    if isinstance(drawn, Sample):
        return {field.name: getattr(drawn, field.name) for field in fields(drawn)}
    alignment = drawn.alignment
    numbers = {name: getattr(alignment, name) for name in _ALIGNMENT}
    # So that padding, which is 0, is no residue.
    numbers["shown_msa"] = numbers["shown_msa"] + np.int8(1)
    return {**drawn.others, **numbers, "true_msa": alignment.true_msa, "bert_mask": alignment.hidden}


def _as_bytes(array: np.ndarray) -> np.ndarray:
    if array.dtype == np.bool_:
        return array.view(np.int8)
    if array.dtype.itemsize < 4:  # as small as it gets
        return array
    small = array.astype(np.int8)
    return small if (small == array).all() else array


def _enlarge_pipe(batches: Any) -> None:
    """Let workers leave whole micro-batches in the pipe, where the system can, rather than wait for their reader."""
    queue = getattr(batches, "_worker_result_queue", None)  # of PyTorch's loader, if it has workers
    with suppress(ImportError, AttributeError, OSError):
        import fcntl  # noqa: PLC0415 (Windows has none)

        fcntl.fcntl(queue._reader.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)  # type: ignore[union-attr]


def _set_up_worker(worker: int) -> None:
    """Make a worker reuse the memory of its large arrays, and leave Ctrl-C to its parent."""
    keep_freed_memory()
    leave_interruptions_to_parent()


def _fits_shared_memory(size: int) -> bool:
    """Return whether shared memory has space for this micro-batch and some more.

    A process that writes beyond it is killed (containers often have 64 MiB). A pipe is used then, which is slower.
    """
    try:
        return shutil.disk_usage(_SHARED_MEMORY).free > 4 * size
    except FileNotFoundError:
        return False


class _PackedBatches(Dataset[tuple[tuple[int, int], PackedBatch | InputError]]):
    """Dataset that workers read; an item is its own index, and a micro-batch.

    It returns an `InputError`, since torch would hide a raised one in a traceback.
    """

    def __init__(self, dataset: TrainingDataset) -> None:
        self.dataset = dataset
        self.sizes = dataset.config.sizes() if dataset.config.fixed_shapes else None

    def __getitem__(self, step_and_index: tuple[int, int]) -> tuple[tuple[int, int], PackedBatch | InputError]:
        try:
            return step_and_index, pack(self.dataset.draw(*step_and_index), self.sizes)
        except InputError as error:
            return step_and_index, error


class TrainingLoader:
    """Iterable of one rank's micro-batches, in the steps from `first_step` to before `last_step`.

    Worker processes make them ahead. A micro-batch depends only on the dataset, the step and its index, not on
    `workers`, `prefetch` or `first_step`. Iteration raises the `InputError` of a worker, with the chain and the step in
    its text. Raise ValueError for steps or numbers out of range.
    """

    def __init__(
        self,
        dataset: TrainingDataset,
        *,
        first_step: int,
        last_step: int,
        micro_batches: Sequence[int] = (0,),  # indices within every step
        device: torch.device | str = "cpu",
        workers: int = 0,
        prefetch: int = 4,  # micro-batches that each worker makes ahead, since deep alignments take long
    ) -> None:
        if not 0 <= first_step <= last_step or workers < 0 or prefetch < 1:
            raise ValueError(
                f"steps must be 0 <= first_step <= last_step, workers not negative and prefetch at least 1, "
                f"got {first_step}, {last_step}, {workers} and {prefetch}"
            )
        self.device = torch.device(device)
        self._order = [(step, index) for step in range(first_step, last_step) for index in micro_batches]
        self._loader = DataLoader(
            _PackedBatches(dataset),
            batch_size=None,
            sampler=self._order,
            # A deep alignment keeps one worker, and not those who wait for its turn.
            in_order=False,
            num_workers=workers,
            worker_init_fn=_set_up_worker,
            prefetch_factor=prefetch if workers else None,
            # A forked child of a process with threads may hang on a lock that is never released.
            multiprocessing_context="spawn" if workers else None,
            pin_memory=self.device.type == "cuda",
        )

    def __iter__(self) -> Iterator[TrainingBatch]:
        with interruptions_postponed():
            batches = iter(self._loader)  # this starts the workers
        _enlarge_pipe(batches)
        early: dict[tuple[int, int], PackedBatch | InputError] = {}  # those that came before their turn
        for place in self._order:
            while place not in early:
                (step, index), packed = next(batches)
                early[step, index] = packed
            batch = early.pop(place)
            if isinstance(batch, InputError):
                raise batch
            # On a CPU that workers keep busy, a second thread would be waited for.
            is_shared = self.device.type == "cpu" and self._loader.num_workers > 0
            with in_threads(1) if is_shared else nullcontext():
                found = batch.on(self.device)
            yield found
