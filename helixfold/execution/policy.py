"""Which executor a pass gets: what it will take is known before it begins, and what to do if that was wrong."""

import errno
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch

from helixfold.config import ModelConfig
from helixfold.execution import allocator
from helixfold.execution.available import available_memory, free_disk, held_to
from helixfold.execution.memory import EXECUTORS, Estimate, PassSize, predicted
from helixfold.execution.slabs import Slabs
from helixfold.execution.spilled import Spilled
from helixfold.execution.whole import Whole

# Predictions are right within a tenth.
RESERVE = 1.1
# A pass of a short chain is carried out whole: on a CPU that saves up to 7 % of its time; from 256 residues on slabs
# take no longer. Only where it takes no more than this share of the memory: what others use hardly ever decides then.
WHOLE_RESIDUES, WHOLE_SHARE = 256, 0.5
_MOST_RESIDUES = 1_000_000
_OUT_OF_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "alloc_failed",
    "bad_alloc",
    "could not create a primitive",  # oneDNN has no room for a kernel's code
)
Result = TypeVar("Result")


class NotEnoughMemoryError(RuntimeError):
    """A target that cannot be folded here; the text says what it needs, what there is, and what would fit."""


@dataclass(frozen=True, kw_only=True)
class Room:
    """Bytes that a pass may take: of the device's memory, and where spilled streams go (a disk; a GPU's host)."""

    memory: int
    spill: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How passes of one size are carried out."""

    config: ModelConfig
    size: PassSize
    room: Room
    device: str
    executor: str
    estimates: Mapping[str, Estimate]

    @property
    def estimate(self) -> Estimate:
        return self.estimates[self.executor]

    @property
    def fits(self) -> bool:
        return _fits(self.estimate, self.room)

    @property
    def problem(self) -> str:
        """Why nothing fits, and what would, in one sentence."""
        least = min(self.estimates.values(), key=lambda each: each.peak)
        each = f", on each of {self.size.ranks} ranks" if self.size.ranks > 1 else ""
        needs = f"{self.size.residues:,} residues need {_needed(least)} of memory (a tenth of reserve included{each})"
        has = f"there are {gib(self.room.memory)}"
        if least.spilled > self.room.spill:
            needs += f" and {gib(least.spilled)} to spill to"
            has += f" and {gib(self.room.spill)}"
        return f"{needs}; {has}; what would fit: {', or '.join(self._remedies())}"

    def _remedies(self) -> Iterator[str]:
        size = self.size
        short = replace(size, dtype=torch.bfloat16)
        if short != size and self._has_room(short):
            yield "--dtype bfloat16"
        for each, option in ((size, ""), (short, "--dtype bfloat16 ")):
            if rows := self._most_extra_rows(each):
                yield f"{option}--max-extra-rows {rows}"
                break
        residues = longest(self.config, size, self.room, self.device)
        if residues:
            yield f"at most {residues:,} residues"
        slabs, spilled = self.estimates["slabs"], self.estimates["spilled"]
        if spilled.spilled <= self.room.spill:
            yield f"{_needed(spilled)} of memory"
        else:
            yield f"{_needed(slabs)} of memory"
            memory = "" if spilled.peak * RESERVE <= self.room.memory else f"{_needed(spilled)} of memory and "
            yield f"{memory}{gib(spilled.spilled)} to spill to"

    def _most_extra_rows(self, size: PassSize) -> int:
        return _largest(size.extra_rows - 1, lambda rows: self._has_room(replace(size, extra_rows=rows)))

    def _has_room(self, size: PassSize) -> bool:
        return _some_fits(self.config, size, self.room, self.device, EXECUTORS)


def room_of(device: torch.device, directory: Path, memory: int | None = None) -> Room:
    """What there is now on a device and in the directory to spill to; or `memory`, what to plan for."""
    free = available_memory(device) if memory is None else memory
    spill = free_disk(directory) if device.type == "cpu" else available_memory(torch.device("cpu"))
    return Room(memory=free, spill=spill)


def plan(config: ModelConfig, size: PassSize, room: Room, device: str = "cpu", forced: str | None = None) -> Plan:
    """The first of whole, slabs and spilled that there is room for (see `Plan.fits`), unless one is `forced`."""
    estimates = {name: predicted(config, size, name, device) for name in EXECUTORS}
    candidates = (name for name in EXECUTORS if _is_chosen(name, estimates[name], size, room))
    chosen = forced or next(candidates, EXECUTORS[-1])
    return Plan(config=config, size=size, room=room, device=device, executor=chosen, estimates=estimates)


def longest(
    config: ModelConfig, size: PassSize, room: Room, device: str = "cpu", executors: Sequence[str] = EXECUTORS
) -> int:
    """Residues of the longest chain, all else being equal, that one of these executors has room for."""
    return _largest(
        _MOST_RESIDUES, lambda residues: _some_fits(config, replace(size, residues=residues), room, device, executors)
    )


def executor(name: str, directory: Path, device: torch.device | str = "cpu") -> Whole | Slabs:
    """A new executor of that name; what it spills beside a CPU goes to `directory`."""
    if name == "spilled":
        return Spilled(directory, device=device)
    return Slabs() if name == "slabs" else Whole()


def memory_kept(name: str, ranks: int = 1) -> AbstractContextManager[None]:
    """What an executor needs of a CPU's allocator: see there."""
    if name == "whole":
        return allocator.freed_memory_kept(allocator.OF_WHOLE)
    # Each of several ranks has a smaller part of a stream, and smaller slabs of that: what lies idle counts for more.
    return allocator.freed_memory_kept(allocator.OF_SLABS // ranks**2, allocator.AHEAD // ranks**2)


def stepping_down(
    attempt: Callable[[Whole | Slabs], Result],
    chosen: Plan,
    device: torch.device,
    directory: Path,
    say: Callable[[str], None],
) -> tuple[str, Result]:
    """What `attempt` returns with the plan's executor, or with the next if that is out of memory; and which it was.

    Each attempt is a new beginning and must not depend on those before. When the last executor is out of memory too,
    `NotEnoughMemoryError` is raised.
    """
    rungs = EXECUTORS[EXECUTORS.index(chosen.executor) :]
    for name, below in zip(rungs, [*rungs[1:], None], strict=True):
        try:
            with memory_kept(name, chosen.size.ranks), _bounded(device, chosen.room):
                return name, attempt(executor(name, directory, device))
        except (RuntimeError, MemoryError, OSError) as error:
            if not is_out_of_memory(error):
                raise
        # Not before here: the exception holds the frames that hold the tensors.
        release(device)
        if below is None or chosen.estimates[below].spilled > chosen.room.spill:
            break
        say(f"out of memory with the executor '{name}'; starting again with '{below}'")
    # The room turned out to be less than what was predicted to fit into it.
    proved = replace(chosen.room, memory=min(chosen.room.memory, chosen.estimates[name].peak))
    raise NotEnoughMemoryError(f"out of memory with the executor '{name}'; {replace(chosen, room=proved).problem}")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory was refused: by CUDA, PyTorch's allocator on a CPU, NumPy or the system."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _OUT_OF_MEMORY)


def release(device: torch.device) -> None:
    """Give back all memory that nothing holds any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    allocator.give_back()


def gib(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"


def _needed(estimate: Estimate) -> str:
    return gib(int(estimate.peak * RESERVE))


def _is_chosen(name: str, estimate: Estimate, size: PassSize, room: Room) -> bool:
    short = size.residues <= WHOLE_RESIDUES and estimate.peak <= WHOLE_SHARE * room.memory
    return _fits(estimate, room) and (name != "whole" or short)


def _fits(estimate: Estimate, room: Room) -> bool:
    return estimate.peak * RESERVE <= room.memory and estimate.spilled <= room.spill


def _some_fits(config: ModelConfig, size: PassSize, room: Room, device: str, executors: Sequence[str]) -> bool:
    return any(_fits(predicted(config, size, name, device), room) for name in executors)


def _largest(most: int, is_possible: Callable[[int], bool]) -> int:
    """The largest number up to `most` that is possible, where all below it are; 0 if none is."""
    least = 0
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if is_possible(middle) else (least, middle - 1)
    return least


def _bounded(device: torch.device, room: Room) -> AbstractContextManager[None]:
    """Nothing on a GPU, whose allocator fails by itself. Where more was planned for than is free, that is tried."""
    return held_to(max(room.memory, available_memory(device))) if device.type == "cpu" else nullcontext()
