"""Load training batches: worker processes draw examples and pack all their arrays into one buffer.

A buffer is one block of shared memory between processes and one copy to the device, whatever the number of arrays.
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

_OFFSET_MULTIPLE = 64  # Every array's offset is a multiple of this many bytes.
# Names of fields of batches that are drawn for each sample.
_BATCH_FIELDS = tuple(sampled_fields(Batch))
_CHAIN_ID_FIELDS = ("asym_id", "entity_id", "sym_id")
_LABEL_FIELDS = ("true_msa", "bert_mask")  # fields of samples that only the losses read
# These fields are the same in all recycling iterations of an example, so they are sent once.
_SHARED_FIELDS = frozenset(
    name
    for name in (*_BATCH_FIELDS, *_CHAIN_ID_FIELDS)
    if name.startswith("template_") or name in ("residue_index", "seq_mask", *_CHAIN_ID_FIELDS)
)
# Axes of each field, as in SAMPLE_AXES, extended by fields with one residue axis and by scalars.
_SCALAR_FIELDS = ("use_clamped_fape", "resolution", "is_distillation")
_AXES_OF_FIELDS = (
    SAMPLE_AXES | dict.fromkeys((field.name for field in fields(GroundTruth)), "r") | dict.fromkeys(_SCALAR_FIELDS, "")
)
_AXES_OF_FIELDS |= dict.fromkeys(_CHAIN_ID_FIELDS, "r") | dict.fromkeys(("copies_positions", "copies_mask"), "kr")
# Integer fields of an alignment, from which features are computed on the device. Labels are sent separately.
_ALIGNMENT_FIELDS = tuple(name for name in ALIGNMENT_AXES if name not in ("true_msa", "hidden"))
_AXES_OF_FIELDS |= {name: ALIGNMENT_AXES[name] for name in _ALIGNMENT_FIELDS}
# Fields of real numbers. All others are small integers (masks, residue types), sent as bytes if that is exact.
_REAL_FIELDS = frozenset(
    name
    for name in _AXES_OF_FIELDS
    if "position" in name or name.endswith(("_feat", "_value", "pseudo_beta", "resolution"))
)
# PyTorch's dtype for each dtype of NumPy.
_TORCH_DTYPES = {
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
_SHARED_MEMORY = "/dev/shm"  # directory of the memory that processes share
_MIN_SHARED = 2**20  # bytes of a buffer; below this, a pipe is faster than shared memory
_PIPE_BYTES = 2**20  # size of the pipe of the workers: the maximum that Linux allows to unprivileged users


@dataclass(frozen=True, kw_only=True)
class TrainingBatch:
    """One micro-batch of a step on its device.

    `micro_batch` is its index within the step. `recycling_inputs` has one batch for each recycling iteration. `names`
    are the names of the examples' chains, and `refused` messages about chains that were drawn but cannot be used.
    """

    step: int
    micro_batch: int
    recycling_inputs: tuple[Batch, ...]
    labels: Labels
    names: tuple[str, ...]
    refused: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Slot:
    """Offset in bytes, dtype and shape of one array of one example in the buffer."""

    offset: int
    dtype: np.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class PackedBatch:
    """The arrays of all examples of a `TrainingBatch`, unpadded, in one buffer of bytes on the CPU.

    `sizes` has the length to which each axis is padded, by the axis's letter; None for a single example, which is not
    padded. `slots` has the places of the arrays of all examples in the buffer, by field or "iteration/field".
    `integers` has the names of the fields that hold integers. With `has_alignments`, it has integer alignments, from
    which MSA features are computed on the device.
    """

    step: int
    micro_batch: int  # index within the step
    names: tuple[str, ...]  # of the examples' chains
    refused: tuple[str, ...]  # messages about chains that were drawn but cannot be used
    num_iterations: int  # number of recycling iterations
    sizes: dict[str, int] | None
    slots: dict[str, list[_Slot]]
    integers: frozenset[str]
    buffer: Tensor | np.ndarray
    of_complexes: bool = False  # whether the examples are complexes
    has_alignments: bool = False

    def pin_memory(self) -> "PackedBatch":
        """Return a copy with a page-locked buffer; PyTorch's `DataLoader` calls this."""
        return replace(self, buffer=torch.as_tensor(self.buffer).pin_memory())

    def on(self, device: torch.device) -> TrainingBatch:
        """Copy the batch to a device, pad it and compute its MSA features."""
        # On the CPU, NumPy pads the arrays: PyTorch's threads would wait for each other at each of a hundred small
        # copies, and for cores that the workers use.
        buffer = torch.as_tensor(self.buffer)
        memory = buffer.numpy() if device.type == "cpu" else buffer.to(device, non_blocking=True)

        def tensor(field: str, index: int | None = None) -> Tensor:
            return torch.as_tensor(self._stacked(memory, field if index is None else f"{index}/{field}", field))

        kind, labels = (MultimerBatch, ComplexLabels) if self.of_complexes else (Batch, Labels)
        names = sampled_fields(kind)
        shared = {name: tensor(name, 0) for name in names if name in _SHARED_FIELDS}

        def iteration(index: int) -> Batch:
            values = dict(shared)
            if self.has_alignments:
                values |= alignment_features({name: tensor(name, index) for name in _ALIGNMENT_FIELDS})
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
        """Return one array of the batch: the examples' arrays, padded with zeros and stacked."""
        slots, axes = self.slots[name], _AXES_OF_FIELDS[field]
        if field in _ALIGNMENT_FIELDS and self.has_alignments:
            kind = np.result_type(*(slot.dtype for slot in slots))
        else:
            kind = np.dtype(np.int64 if field in self.integers else np.float32)
        shape = slots[0].shape
        if self.sizes is not None:
            # `sizes` has no entry for the axis of chain copies, which is padded to the largest example.
            largest = {axis: max(slot.shape[dim] for slot in slots) for dim, axis in enumerate(axes)}
            shape = (*(self.sizes.get(axis, largest[axis]) for axis in axes), *shape[len(axes) :])
        on_cpu = isinstance(memory, np.ndarray)

        def content(slot: _Slot) -> Any:
            stretch = memory[slot.offset : slot.offset + math.prod(slot.shape) * slot.dtype.itemsize]
            return stretch.view(slot.dtype if on_cpu else _TORCH_DTYPES[slot.dtype]).reshape(slot.shape)

        if len(slots) == 1 and slots[0].shape == shape:
            array = content(slots[0])
            return (array.astype(kind, copy=False) if on_cpu else array.to(_TORCH_DTYPES[kind]))[None]
        padded = (len(slots), *shape)
        batch: Any = (
            np.zeros(padded, kind) if on_cpu else torch.zeros(padded, dtype=_TORCH_DTYPES[kind], device=memory.device)
        )
        for index, slot in enumerate(slots):
            batch[(index, *map(slice, slot.shape))] = content(slot)
        return batch


def pack(drawn: StepExamples, sizes: dict[str, int] | None) -> PackedBatch:
    """Pack the examples of one micro-batch into one buffer.

    `PackedBatch.on` pads them to `sizes`, by the letter of each axis such as "r" for residues. With None, they are not
    padded, which needs a single example.
    """
    arrays = _arrays(drawn)
    with np.errstate(invalid="ignore"):  # `_as_bytes` checks that values fit into a byte.
        contents = [
            (name, array if name.rpartition("/")[2] in _REAL_FIELDS else _as_bytes(array))
            for name, stack in arrays.items()
            for array in stack
        ]
    aligned = (-(-content.nbytes // _OFFSET_MULTIPLE) * _OFFSET_MULTIPLE for _, content in contents)
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
        buffer=torch.from_numpy(buffer) if end >= _MIN_SHARED and _fits_shared_memory(end) else buffer,
        of_complexes=isinstance(drawn.examples[0].truth, ComplexTruth),
        has_alignments=isinstance(drawn.examples[0].drawn[0], DrawnSample),
    )


def _arrays(drawn: StepExamples) -> dict[str, list[np.ndarray]]:
    """Return all arrays of the examples, by the names in `PackedBatch.slots`."""
    examples = drawn.examples
    arrays: dict[str, list[np.ndarray]] = {}
    for index in range(len(examples[0].drawn)):
        drawn_fields = [_fields(example.drawn[index]) for example in examples]
        for name in drawn_fields[0]:
            stack = [each[name] for each in drawn_fields]
            if name in _LABEL_FIELDS:
                arrays[name] = stack  # The labels of the last iteration remain.
            elif index == 0 or name not in _SHARED_FIELDS:
                arrays[f"{index}/{name}"] = stack
    arrays |= {
        field.name: [getattr(example.truth, field.name) for example in examples] for field in fields(examples[0].truth)
    }
    arrays |= {name: [np.array(getattr(example, name), np.float32) for example in examples] for name in _SCALAR_FIELDS}
    return {
        name: [np.ascontiguousarray(array).reshape(array.shape) for array in stack] for name, stack in arrays.items()
    }


def _fields(drawn: DrawnSample | Sample) -> dict[str, np.ndarray]:
    """Return all arrays of one recycling iteration by name, including the labels of its alignment."""
    if isinstance(drawn, Sample):
        values = {field.name: getattr(drawn, field.name) for field in fields(drawn)}
        return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    alignment = drawn.alignment
    arrays = {name: getattr(alignment, name) for name in _ALIGNMENT_FIELDS}
    # Residue types are shifted by 1, so that padding, which is 0, is not a residue.
    arrays["shown_msa"] = arrays["shown_msa"] + np.int8(1)
    return {**drawn.others, **arrays, "true_msa": alignment.true_msa, "bert_mask": alignment.hidden}


def _as_bytes(array: np.ndarray) -> np.ndarray:
    """Return an array of masks or integers as int8 if that is exact, else unchanged."""
    if array.dtype == np.bool_:
        return array.view(np.int8)
    if array.dtype.itemsize < 4:  # already small
        return array
    small = array.astype(np.int8)
    return small if (small == array).all() else array


def _enlarge_pipe(batches: Any) -> None:
    """Enlarge the workers' pipe where possible, so that they can write whole micro-batches without waiting."""
    queue = getattr(batches, "_worker_result_queue", None)  # PyTorch's loader has one if it has workers.
    with suppress(ImportError, AttributeError, OSError):
        import fcntl  # noqa: PLC0415 (Windows has none)

        fcntl.fcntl(queue._reader.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)  # type: ignore[union-attr]


def _set_up_worker(worker: int) -> None:
    """Make a worker reuse the memory of its large arrays and ignore Ctrl-C, which its parent handles."""
    keep_freed_memory()
    leave_interruptions_to_parent()


def _fits_shared_memory(size: int) -> bool:
    """Return whether shared memory has space for four micro-batches of this size in bytes.

    Otherwise the slower pipe is used: a process that exceeds shared memory is killed, and containers often have only
    64 MiB of it.
    """
    try:
        return shutil.disk_usage(_SHARED_MEMORY).free > 4 * size
    except FileNotFoundError:
        return False


class _PackedBatches(Dataset[tuple[tuple[int, int], PackedBatch | InputError]]):
    """Dataset that the workers read; an item is its (step, index) and the packed micro-batch.

    An `InputError` is returned as the item, because PyTorch would hide a raised one in a traceback.
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
    """Iterable of one rank's micro-batches, for the steps `first_step` to `last_step` - 1.

    Each is on the device when it is yielded. `workers` processes prepare micro-batches in advance; with 0, this process
    prepares each when it is needed. A micro-batch depends only on the dataset, the step and its index, not on
    `workers`, `prefetch` or `first_step`. Iteration raises the `InputError` of a worker, which names the chain and the
    step. Raise `ValueError` if an argument is out of range.
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
        prefetch: int = 4,  # micro-batches that each worker prepares in advance, because deep alignments take long
    ) -> None:
        if not 0 <= first_step <= last_step or workers < 0 or prefetch < 1:
            raise ValueError(
                f"steps must be 0 <= first_step <= last_step, workers at least 0 and prefetch at least 1, "
                f"got {first_step}, {last_step}, {workers} and {prefetch}"
            )
        self.device = torch.device(device)
        self._order = [(step, index) for step in range(first_step, last_step) for index in micro_batches]
        self._loader = DataLoader(
            _PackedBatches(dataset),
            batch_size=None,
            sampler=self._order,
            # Other workers continue while one is busy with a deep alignment; `__iter__` restores the order.
            in_order=False,
            num_workers=workers,
            worker_init_fn=_set_up_worker,
            prefetch_factor=prefetch if workers else None,
            # A process forked from one with threads may hang on a lock that is never released.
            multiprocessing_context="spawn" if workers else None,
            pin_memory=self.device.type == "cuda",
        )

    def __iter__(self) -> Iterator[TrainingBatch]:
        with interruptions_postponed():
            batches = iter(self._loader)  # This starts the workers.
        _enlarge_pipe(batches)
        early: dict[tuple[int, int], PackedBatch | InputError] = {}  # batches that arrived before their turn
        for step_and_index in self._order:
            while step_and_index not in early:
                (step, index), packed = next(batches)
                early[step, index] = packed
            batch = early.pop(step_and_index)
            if isinstance(batch, InputError):
                raise batch
            # Workers keep the CPU busy, so a second thread would only wait.
            is_shared = self.device.type == "cpu" and self._loader.num_workers > 0
            with in_threads(1) if is_shared else nullcontext():
                batch_on_device = batch.on(self.device)
            yield batch_on_device
