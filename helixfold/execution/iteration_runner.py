"""Recycling iterations at inference, run eagerly or as CUDA graphs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from helixfold.execution.graphs import GraphCache, GraphCapturer
from helixfold.execution.whole import Whole
from helixfold.model.alphafold import AlphaFold
from helixfold.model.batch import Batch
from helixfold.model.outputs import Folded, Recycled, nothing_recycled
from helixfold.model.update import Executor
from helixfold.ops.device_properties import DeviceProperties, properties_of
from helixfold.ops.dispatch import first_reason, is_intercepted

# Up to this many residues of one chain, or the same number of pairs in a batch, every GPU waits for the host to launch
# kernels.
LAUNCH_BOUND_RESIDUES = 256
# Longest chain whose iterations are captured, and elements of the MSA and pair streams that a multiprocessor of an H100
# updates while the host launches an Evoformer block: measured, 12 million a millisecond on all 132, and 5.8 ms.
_MAX_CAPTURED_RESIDUES, _ELEMENTS_PER_MULTIPROCESSOR = 1024, 530_000
# Channels of the pair and MSA streams.
_C_Z, _C_M = 128, 256


class IterationRunner:
    """Function that runs a recycling iteration: eagerly, or with `graphs` as a CUDA graph where shapes repeat.

    Only short chains on the executor `Whole` use graphs: slabs are for long chains, and several ranks exchange data
    within an iteration. A chain of over 256 residues is short if its streams have at most `max_elements`. Results are
    the same either way, in memory of their own.
    """

    def __init__(self, graphs: GraphCache | None = None, max_elements: int = 0) -> None:
        """Run eagerly without `graphs`; `max_elements` is the maximum size of the streams of a captured iteration."""
        self._graphs, self._max_elements = graphs, max_elements
        self._listeners: list[Callable[[], object]] = []

    @property
    def replays(self) -> int:
        """Number of iterations that were replayed so far."""
        return 0 if self._graphs is None else self._graphs.replays

    def captures(self, run: Executor, samples: int, residues: int, msa_rows: int = 0) -> bool:
        """Return whether iterations on batches of this size are captured, or replayed, instead of run eagerly.

        The batch has `samples` samples of `residues` residues. The number of MSA rows matters for single samples only.
        Return False without graphs, or if `run` is not a `Whole` executor.
        """
        is_short = samples * residues**2 <= LAUNCH_BOUND_RESIDUES**2
        if samples == 1 and residues <= _MAX_CAPTURED_RESIDUES:
            is_short = is_short or residues * (_C_Z * residues + _C_M * msa_rows) <= self._max_elements
        return self._graphs is not None and is_short and type(run) is Whole

    def __call__(
        self, model: AlphaFold, run: Executor, ensemble: Sequence[Batch], previous: Recycled | None, dtype: torch.dtype
    ) -> Folded:
        """Return the result of `model.fold`, run eagerly or as a CUDA graph.

        An iteration that is not captured may need all memory, so all graphs are dropped before it.
        """
        # A graph would apply the same dropout in every replay, and operators are not called in one.
        is_plain = not model.training and not is_intercepted()
        if self._graphs is None or not is_plain or not self.captures(run, *_size(ensemble[0])):
            self.clear()
            return model.fold(run, ensemble, previous, dtype)

        def action(inputs: tuple[tuple[Batch, ...], Recycled]) -> Folded:
            return model.fold(run, *inputs, dtype)

        before = self.replays
        # The first iteration recycles zeros, so that one graph serves all iterations.
        inputs = tuple(ensemble), previous or nothing_recycled(run, model.config, ensemble[0].seq_mask, dtype)
        folded = self._graphs.run((model, dtype), action, inputs)
        if self.replays > before:
            for listener in self._listeners:
                listener()
        return folded

    @contextmanager
    def reporting(self, replayed: Callable[[], object]) -> Iterator[None]:
        """Call `replayed` after each replayed iteration. Hooks of modules do not run in a replay."""
        self._listeners.append(replayed)
        try:
            yield
        finally:
            self._listeners.remove(replayed)

    def clear(self) -> bool:
        """Free the memory of all graphs; return whether any existed."""
        return self._graphs is not None and self._graphs.clear()


def _size(batch: Batch) -> tuple[int, int, int]:
    """Return the numbers of samples, residues and MSA rows of a batch."""
    return *batch.aatype.shape, batch.msa_feat.shape[1]


# Runner without graphs: all iterations run eagerly.
EAGER = IterationRunner()


def graphs_unsupported_reason(properties: DeviceProperties, option: str = "auto", ranks: int = 1) -> str | None:
    """Return why CUDA graphs are not used on a device; None if they are.

    `option` is the value of `--cuda-graphs`, and `ranks` the number of ranks that share a target.
    """
    return first_reason(
        (option == "off", "--cuda-graphs is off"),
        (properties.kind != "cuda", "only NVIDIA GPUs have them"),
        (ranks > 1, "ranks that share a sample exchange data within an iteration"),
    )


def runner_for(
    device: torch.device, option: str = "auto", ranks: int = 1, say: Callable[[str], object] = lambda _: None
) -> IterationRunner:
    """Return a function that runs recycling iterations on a device, with CUDA graphs if the device and option allow it.

    `say` is called with the reason if a capture fails.
    """
    if graphs_unsupported_reason(properties_of(device), option, ranks) is not None:
        return EAGER
    return IterationRunner(GraphCache(GraphCapturer(device), say=say), launch_bound_elements(properties_of(device)))


def launch_bound_elements(properties: DeviceProperties) -> int:
    """Return how many elements the streams of an iteration have at most for which a GPU waits for the host.

    Only an H100 was measured; other GPUs follow from their memory's rate per multiprocessor, by data sheets.
    """
    capability = properties.capability or (0, 0)
    rate = 1.0 if capability[0] in (9, 10) else 0.6 if capability == (8, 0) else 0.3
    return int(rate * _ELEMENTS_PER_MULTIPROCESSOR * properties.multiprocessors)


def bucket_size(count: int) -> int:
    """Round a number of residues or rows up: to a multiple of 16 up to 128, then to one of four sizes per power of two.

    Sizes after 128 are 160, 192, 224, 256, 320 and so on. 0 stays 0. Fewer different sizes are then captured and
    estimated.
    """
    step = max(16, 1 << max(0, count.bit_length() - 3))
    return -(-count // step) * step
