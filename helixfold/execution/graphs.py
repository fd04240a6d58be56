"""CUDA graphs: a pass without gradients is recorded once for its shapes, then launched as one instead of op by op."""

import copy
from collections.abc import Callable, Hashable
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from helixfold.execution.nested import tensors, with_tensors_changed
from helixfold.execution.stand_in import StandIn, replace_method
from helixfold.model.alphafold import AlphaFold

# Runs before a recording: in them kernels are compiled, libraries allocate memory and tables are copied to the device.
WARM_UPS = 2
# Recordings that a function keeps, for the kinds of arguments that were used last; each keeps its results in memory.
MOST_RECORDINGS = 4
_KIND_OF_DEVICE = "cuda"


class Replayed(StandIn):
    """A function of tensors that is recorded on its first call on a GPU, and replayed for arguments of the same kind.

    Two calls are of the same kind if they differ only in the values of tensors, which may be inside tuples, lists and
    dataclasses. Arguments are copied in and results copied out. Everything else that the function reads is read from
    the memory that it had at the recording: parameters may change in place, but not be replaced. The function must
    neither depend on values nor copy from the host. It may be a module, or a method of one; for the whole network,
    `Replayed(model)`.

    Calls for which `refusal` gives a reason run without a recording.
    """

    def __init__(self, method: Callable[..., Any]) -> None:
        super().__init__(method)
        self.recordings: dict[Hashable, _Recording] = {}

    def __call__(self, *arguments: Any) -> Any:
        if self.refusal(*arguments) is not None:
            return self.method(*arguments)
        # Modules compute something else in training, which their arguments do not show.
        module = getattr(self.method, "__self__", self.method)
        kind = getattr(module, "training", False), _kind(arguments)
        recording = self.recordings.pop(kind, None)
        if recording is None:
            while len(self.recordings) >= MOST_RECORDINGS:
                del self.recordings[next(iter(self.recordings))]
            # Results are copied out before the next replay, so all recordings can compute in the same memory.
            pool = next((each.graph.pool() for each in self.recordings.values()), None)
            recording = _Recording(self.method, arguments, pool)
        self.recordings[kind] = recording
        return recording.replay(arguments)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Replayed":
        # The copy's parameters are in other memory, so recordings cannot be copied.
        return Replayed(copy.deepcopy(self.method, memo))

    def refusal(self, *arguments: Any) -> str | None:
        """Return the reason why a call with these arguments is not recorded, or None if it is."""
        if torch.is_grad_enabled():
            return "gradients may be asked for"
        if _recording_now:
            return "it is part of what is being recorded"
        devices = {each.device for each in tensors(arguments)}
        if len(devices) != 1:
            return "its tensors are on several devices" if devices else "it is given no tensor"
        kind = devices.pop().type
        return None if kind == _KIND_OF_DEVICE else f"graphs are for {_KIND_OF_DEVICE}, not {kind}"


def replay_structure_module(model: AlphaFold) -> None:
    """Replace the structure module's forward by a CUDA graph in passes without gradients.

    It has about 800 launches that each compute little.
    """
    structure = model.structure_module
    if not isinstance(structure.forward, Replayed):
        replace_method(structure, "forward", Replayed)


# True while a function is recorded, so that functions inside it are not recorded on their own.
_recording_now = False


class _Recording:
    """Recorded launches of a function for arguments of one kind."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...], pool: Any) -> None:
        global _recording_now  # noqa: PLW0603 (one recording at a time in a process)
        self.inputs = with_tensors_changed(Tensor.clone, arguments)
        _recording_now = True
        try:
            self.graph, self.outputs = _record(lambda: function(*self.inputs), next(tensors(arguments)).device, pool)
        finally:
            _recording_now = False

    def replay(self, arguments: tuple[Any, ...]) -> Any:
        for room, given in zip(tensors(self.inputs), tensors(arguments), strict=True):
            room.copy_(given)
        self.graph.replay()
        return with_tensors_changed(Tensor.clone, self.outputs)


def _record(run: Callable[[], Any], device: torch.device, pool: Any) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Return the graph of the launches of `run`, and its result, whose memory every replay writes anew."""
    with torch.cuda.device(device):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            outputs = run()
    return graph, outputs


def _kind(value: Any) -> Hashable:
    """Return a key that is equal for arguments which differ only in the values of tensors."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype, value.device
    if isinstance(value, list | tuple):
        return type(value), *(_kind(part) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), *(_kind(getattr(value, field.name)) for field in fields(value))
    return value
