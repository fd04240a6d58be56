"""Record what a computation launches on a GPU as a CUDA graph, and replay it: that takes no time of the host.

A recording reads and writes the same memory at every replay. It never waits for a GPU, whatever it reads from the host
is as it was, and no line of Python runs again. PyTorch's notes on CUDA graphs say what else holds: a stream beside the
current one is captured, everything has run there once before, and recordings may share a pool of memory if none is
replayed while another one is, and no result is read after the next replay.
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
# Recordings that are kept. Each holds its inputs and results; the rest of their memory they share.
MOST_RECORDINGS = 8


@dataclass(frozen=True, kw_only=True)
class Recording(Generic[Result]):
    """A recorded computation: `replay()` computes it again, and overwrites the tensors in `result`."""

    result: Result
    replay: Callable[[], object]


@runtime_checkable
class Recorder(Protocol):
    """The interface of recorders: of CUDA graphs, and of PyTorch's operators in tests."""

    def launch(self, action: Callable[[], Result]) -> Result:
        """Return `action()`, computed where it would be recorded; a later recording finds all that it needs there."""

    def record(self, action: Callable[[], Result]) -> Recording[Result]:
        """Record an action that `launch` has computed before. Nothing is computed, and nothing drawn at random.

        Raise RuntimeError if the action cannot be recorded, or if there is too little memory.
        """

    def clear(self) -> None:
        """Wait for replays, and take other memory from now on: all recordings are dropped after this call."""


class GraphRecorder:
    """Recorder of CUDA graphs on one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # The same for all, so that libraries have their workspace for this stream before anything is recorded.
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def launch(self, action: Callable[[], Result]) -> Result:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            result = action()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        return result

    def record(self, action: Callable[[], Result]) -> Recording[Result]:
        graph = torch.cuda.CUDAGraph()
        # The outer context restores the stream even if the inner one cannot end its capture. Other threads, such as a
        # loader's that pins memory, may go on meanwhile.
        try:
            with (
                torch.cuda.stream(self._stream),
                torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"),
            ):
                result = action()
        except RuntimeError:
            # PyTorch would still take the random stream for one that is recorded.
            generator = torch.cuda.default_generators[self._stream.device.index]
            generator.graphsafe_set_state(generator.clone_state())
            raise
        return Recording(result=result, replay=graph.replay)

    def clear(self) -> None:
        # What is dropped may still be replayed. A pool that was given up cannot be used again.
        torch.cuda.synchronize(self._device)
        self._pool = torch.cuda.graph_pool_handle()


class Recordings:
    """Recordings of computations whose inputs have the same shapes again and again.

    At most `most` are kept; the least recently used one is dropped. `say` is called with a sentence when something
    cannot be recorded; everything is launched from then on, so that results never depend on recordings.
    """

    def __init__(
        self, recorder: Recorder, *, most: int = MOST_RECORDINGS, say: Callable[[str], object] = lambda _: None
    ) -> None:
        self._recorder, self._most, self._say = recorder, most, say
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._launched: OrderedDict[Hashable, None] = OrderedDict()  # the last ones that were launched, by their keys
        self._too_large: set[Hashable] = set()
        self._is_refused = False
        self.replays = 0  # computations that were replayed so far, without those that were recorded just before

    def __len__(self) -> int:
        """Return the number of recordings."""
        return len(self._kept)

    @property
    def has_failed(self) -> bool:
        """Return whether anything could not be recorded."""
        return self._is_refused or bool(self._too_large)

    def run(self, name: Hashable, action: Callable[[Inputs], Result], inputs: Inputs) -> Result:
        """Return `action(inputs)`: launched the first time, then recorded, and replayed from then on.

        `name` stands for all that the action depends on beside the tensors in `inputs`, such as a network, whose
        parameters may change in place only. The action may change other memory in place, and the inputs too. The
        result's tensors are copies in memory of their own.
        """
        key = name, signature(inputs)
        if self._is_refused or key in self._too_large:
            return action(inputs)
        kept = self._kept.get(key)
        if kept is not None:
            self.replays += 1
        elif key not in self._launched:
            launched = self._recorder.launch(lambda: action(inputs))
            _put_last(self._launched, key, None, self._most)
            return launched
        else:
            kept = self._recorded(key, action, inputs)
            if kept is None:
                return action(inputs)
        _put_last(self._kept, key, kept, self._most)
        for static, given in zip(tensors(kept.inputs), tensors(inputs), strict=True):
            static.copy_(given)
        kept.recording.replay()
        add_recorded_backends(kept.backends)
        result: Result = with_tensors_changed(Tensor.clone, kept.recording.result)
        return result

    def clear(self) -> bool:
        """Drop all recordings and give their memory back; return whether there were any."""
        held = len(self) > 0
        if held:
            self._recorder.clear()
        self._kept.clear()
        self._launched.clear()
        return held

    def _recorded(self, key: Hashable, action: Callable[[Inputs], Result], inputs: Inputs) -> "_Kept | None":
        """Record an action; return None if that failed, after which no recording is left."""
        try:
            static = with_tensors_changed(Tensor.clone, inputs)
            with recorded_backends() as backends:
                recording = self._recorder.record(lambda: action(static))
            return _Kept(inputs=static, recording=recording, backends=backends)
        except RuntimeError as error:
            is_too_large = any(is_out_of_memory(each) for each in (error, error.__context__) if each is not None)
            problem = f"{type(error).__name__}: {str(error).strip()}"
        # After the `except` block, since the exception holds the frames that hold the tensors.
        self._recorder.clear()
        self._kept.clear()
        if is_too_large:
            self._too_large.add(key)
            self._say("there is too little memory to record passes of this size; they are launched")
        else:
            self._is_refused = True
            self._say(f"passes are launched instead of replayed as CUDA graphs, for recording failed ({problem})")
        return None


@dataclass(frozen=True, kw_only=True)
class _Kept:
    inputs: Any  # in the memory that the recording reads
    recording: Recording[Any]
    backends: Mapping[str, Collection[str]]  # that computed while it was recorded, by operator


def _put_last(kept: OrderedDict[Hashable, Value], key: Hashable, value: Value, most: int) -> None:
    """Put a value at the end, where the one that was used last is, and drop the first one if there are too many."""
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > most:
        kept.popitem(last=False)


def signature(value: Any) -> Hashable:
    """Return a key that is equal for nested values whose tensors have the same shapes and dtypes on the same device.

    Everything else in the values, such as numbers and the types of dataclasses, must be equal too.
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
        raise TypeError(f"a {type(value).__name__} cannot be compared with that of a recording")
    return value
