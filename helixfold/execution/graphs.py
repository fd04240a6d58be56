"""Capture a computation as a CUDA graph and replay it, so that the host does not launch each kernel again.

A captured graph reads and writes the same memory at every replay. It cannot wait for the GPU, values read from the host
stay as they were, and no Python code runs again. PyTorch's notes on CUDA graphs list the other conditions. A graph is
captured on a stream of its own, on which the same computation has run before. Graphs may share a memory pool if no two
of them are replayed at once, and no result is read after the next replay.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from helixfold.execution.available import is_out_of_memory
from helixfold.execution.nested import tensors, with_tensors_changed
from helixfold.ops.dispatch import add_recorded_backends, recorded_backends

Result = TypeVar("Result")
Inputs = TypeVar("Inputs")
Value = TypeVar("Value")
# Maximum number of graphs in a cache. Each has memory for its inputs and results; they share the rest.
MAX_GRAPHS = 8


@dataclass(frozen=True, kw_only=True)
class CapturedGraph(Generic[Result]):
    """A captured computation: `replay()` runs it again and overwrites the tensors in `result`."""

    result: Result
    replay: Callable[[], object]


@runtime_checkable
class Capturer(Protocol):
    """Interface for capturing computations: as CUDA graphs, or as lists of PyTorch operators in tests."""

    def launch(self, action: Callable[[], Result]) -> Result:
        """Return `action()`, run eagerly on the stream on which it would be captured, as preparation for `capture`."""

    def capture(self, action: Callable[[], Result]) -> CapturedGraph[Result]:
        """Capture an action that `launch` has run before. Nothing is computed, and random generators do not advance.

        Raise RuntimeError if the action cannot be captured or memory is too small.
        """

    def clear(self) -> None:
        """Wait for replays and use a new memory pool from now on; the caller drops all graphs after this."""


class GraphCapturer:
    """Capture of CUDA graphs on one device."""

    def __init__(self, device: torch.device) -> None:
        """Create the stream and the memory pool for all graphs of a device."""
        self._device = device
        # One stream for all graphs, so that libraries have allocated their workspaces for it before the first capture.
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def launch(self, action: Callable[[], Result]) -> Result:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            result = action()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        return result

    def capture(self, action: Callable[[], Result]) -> CapturedGraph[Result]:
        graph = torch.cuda.CUDAGraph()
        # The outer context restores the stream even if the inner one cannot end its capture. Other threads may use CUDA
        # during the capture, such as a data loader's thread that pins memory.
        try:
            with (
                torch.cuda.stream(self._stream),
                torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"),
            ):
                result = action()
        except RuntimeError:
            # Otherwise PyTorch treats the random generator as still being captured.
            generator = torch.cuda.default_generators[self._stream.device.index]
            generator.graphsafe_set_state(generator.clone_state())
            raise
        return CapturedGraph(result=result, replay=graph.replay)

    def clear(self) -> None:
        # A graph may still be running. A pool whose graphs were dropped cannot be used again.
        torch.cuda.synchronize(self._device)
        self._pool = torch.cuda.graph_pool_handle()


class GraphCache:
    """Cache of captured computations, by the shapes of their inputs.

    At most `max_count` are in memory; the least recently used one is dropped. If something cannot be captured, `say` is
    called with a sentence and computations run eagerly from then on. Results never depend on whether a graph is
    replayed.
    """

    def __init__(
        self, capturer: Capturer, *, max_count: int = MAX_GRAPHS, say: Callable[[str], object] = lambda _: None
    ) -> None:
        """Start with an empty cache."""
        self._capturer, self._max_count, self._say = capturer, max_count, say
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._eager_keys: OrderedDict[Hashable, None] = OrderedDict()  # keys of the last eager computations
        self._too_large: set[Hashable] = set()
        self._is_unsupported = False
        self.replays = 0  # replays so far; the first one, right after the capture, does not count

    def __len__(self) -> int:
        """Return the number of captured computations in memory."""
        return len(self._entries)

    @property
    def has_failed(self) -> bool:
        """Return whether a capture has ever failed, for any inputs."""
        return self._is_unsupported or bool(self._too_large)

    def run(self, name: Hashable, action: Callable[[Inputs], Result], inputs: Inputs) -> Result:
        """Return `action(inputs)`: eagerly the first time, captured the second time, and replayed from then on.

        `name` identifies everything else that the action depends on, such as a network, whose parameters may change
        only in place. The action may change other memory in place, and its inputs too. The tensors of the result are
        copies.
        """
        key = name, signature(inputs)
        if self._is_unsupported or key in self._too_large:
            return action(inputs)
        entry = self._entries.get(key)
        if entry is not None:
            self.replays += 1
        elif key not in self._eager_keys:
            eager = self._capturer.launch(lambda: action(inputs))
            _put_last(self._eager_keys, key, None, self._max_count)
            return eager
        else:
            entry = self._capture(key, action, inputs)
            if entry is None:
                return action(inputs)
        _put_last(self._entries, key, entry, self._max_count)
        for static, value in zip(tensors(entry.inputs), tensors(inputs), strict=True):
            static.copy_(value)
        entry.graph.replay()
        add_recorded_backends(entry.backends)
        result: Result = with_tensors_changed(Tensor.clone, entry.graph.result)
        return result

    def clear(self) -> bool:
        """Drop all captured computations and free their memory; return whether any existed.

        Computations are then run eagerly once more before they are captured again.
        """
        had_any = len(self) > 0
        if had_any:
            self._capturer.clear()
        self._entries.clear()
        self._eager_keys.clear()
        return had_any

    def _capture(self, key: Hashable, action: Callable[[Inputs], Result], inputs: Inputs) -> "_Entry | None":
        """Capture an action. Return None if this failed; all captured computations are dropped then."""
        try:
            static = with_tensors_changed(Tensor.clone, inputs)
            with recorded_backends() as backends:
                graph = self._capturer.capture(lambda: action(static))
            return _Entry(inputs=static, graph=graph, backends=backends)
        except RuntimeError as error:
            is_too_large = any(is_out_of_memory(each) for each in (error, error.__context__) if each is not None)
            problem = f"{type(error).__name__}: {str(error).strip()}"
        # After the `except` block, because the exception keeps the frames alive, and with them the tensors.
        self._capturer.clear()
        self._entries.clear()
        if is_too_large:
            self._too_large.add(key)
            self._say("too little memory to capture CUDA graphs of this size; the network runs without them")
        else:
            self._is_unsupported = True
            self._say(f"the network runs without CUDA graphs, because capturing one failed ({problem})")
        return None


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """A captured computation with the memory of its inputs."""

    inputs: Any  # in the memory that the graph reads
    graph: CapturedGraph[Any]
    backends: Mapping[str, Collection[str]]  # backends used during the capture, by operator


def _put_last(entries: OrderedDict[Hashable, Value], key: Hashable, value: Value, max_count: int) -> None:
    """Add a value as the most recently used one, and drop the least recently used one if there are too many."""
    entries[key] = value
    entries.move_to_end(key)
    if len(entries) > max_count:
        entries.popitem(last=False)


def signature(value: Any) -> Hashable:
    """Return a hashable key of the shapes, dtypes and devices of the tensors in a nested value.

    Two keys are equal only if everything else in the values, such as numbers and the types of dataclasses, is equal
    too. The elements of tensors do not matter. Raise TypeError for a value that is not hashable.
    """
    if isinstance(value, Tensor):
        return value.shape, value.dtype, value.device
    if isinstance(value, list | tuple):
        return type(value), *map(signature, value)
    if isinstance(value, dict):
        return type(value), *((name, signature(each)) for name, each in value.items())
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), *(signature(getattr(value, field.name)) for field in fields(value))
    if not isinstance(value, Hashable):
        raise TypeError(f"inputs of a CUDA graph must be tensors or hashable, got a {type(value).__name__}")
    return value
