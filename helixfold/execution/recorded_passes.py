"""Passes of a network without gradients, launched kernel by kernel or replayed as recorded before."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from helixfold.execution.graphs import GraphRecorder, Recordings
from helixfold.execution.whole import Whole
from helixfold.model.alphafold import AlphaFold
from helixfold.model.batch import Batch
from helixfold.model.outputs import Folded, Recycled, nothing_recycled
from helixfold.model.update import Executor
from helixfold.ops.device_properties import DeviceProperties, properties_of
from helixfold.ops.dispatch import first_reason

# Residues of one chain up to which a GPU waits for the host to launch kernels. Longer passes gain nothing from being
# replayed, and their recordings would hold much memory.
LAUNCH_BOUND_RESIDUES = 256


class Passes:
    """Passes of networks in recycling: always launched, or with `recordings` replayed where shapes repeat.

    Passes are recorded if they are short, and whole: slabs are for long chains, and several ranks exchange data within
    a pass. A recorded pass returns the same as a launched one, in memory of its own.
    """

    def __init__(self, recordings: Recordings | None = None) -> None:
        self._recordings = recordings
        self._listeners: list[Callable[[], object]] = []

    @property
    def replays(self) -> int:
        """Return the number of passes that were replayed so far."""
        return 0 if self._recordings is None else self._recordings.replays

    def records(self, run: Executor, samples: int, residues: int) -> bool:
        """Return whether passes of batches of this many samples and residues are recorded."""
        is_short = samples * residues**2 <= LAUNCH_BOUND_RESIDUES**2
        return self._recordings is not None and is_short and type(run) is Whole

    def __call__(
        self, model: AlphaFold, run: Executor, ensemble: Sequence[Batch], previous: Recycled | None, dtype: torch.dtype
    ) -> Folded:
        """Return what `model.fold` returns, without gradients.

        A pass that is too long to be recorded may need all memory, so that recordings are dropped before it.
        """
        # A recording would drop out the same in every replay.
        if self._recordings is None or model.training or not self.records(run, *ensemble[0].aatype.shape):
            self.clear()
            return model.fold(run, ensemble, previous, dtype)

        def action(inputs: tuple[tuple[Batch, ...], Recycled]) -> Folded:
            return model.fold(run, *inputs, dtype)

        before = self.replays
        # The first iteration recycles zeros, as the later ones recycle results: one recording serves all.
        given = tuple(ensemble), previous or nothing_recycled(run, model.config, ensemble[0].seq_mask, dtype)
        folded = self._recordings.run((model, dtype), action, given)
        if self.replays > before:
            for listener in self._listeners:
                listener()
        return folded

    @contextmanager
    def reporting(self, replayed: Callable[[], object]) -> Iterator[None]:
        """Call `replayed` after each pass that is replayed, in which no hook of a module runs."""
        self._listeners.append(replayed)
        try:
            yield
        finally:
            self._listeners.remove(replayed)

    def clear(self) -> bool:
        """Give the memory of all recordings back; return whether there were any."""
        return self._recordings is not None and self._recordings.clear()


# Passes of which none is recorded.
LAUNCHED = Passes()


def refusal_of_graphs(properties: DeviceProperties, wanted: str = "auto", ranks: int = 1) -> str | None:
    """Return why passes are not recorded on a card, as the option `--cuda-graphs` and the ranks of a target say."""
    return first_reason(
        (wanted == "off", "--cuda-graphs is off"),
        (properties.kind != "cuda", "only NVIDIA GPUs have them"),
        (ranks > 1, "ranks that share a sample exchange data within a pass"),
    )


def passes_on(
    device: torch.device, wanted: str = "auto", ranks: int = 1, say: Callable[[str], object] = lambda _: None
) -> Passes:
    """Return passes that are recorded on this device where nothing refuses; `say` prints why if recording fails."""
    if refusal_of_graphs(properties_of(device), wanted, ranks) is not None:
        return LAUNCHED
    return Passes(Recordings(GraphRecorder(device), say=say))


def bucket_size(count: int) -> int:
    """Round a number of residues or rows up to one of four numbers for each power of two, and at least to 16.

    Few sizes are then recorded, or forecast, in place of many.
    """
    step = max(16, 1 << max(0, count.bit_length() - 3))
    return -(-count // step) * step
