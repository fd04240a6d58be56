"""Load one model, and fold many targets with it; short targets of equal length are folded as one batch."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from data_pipeline.io.errors import InputError
from helixfold.apps.score.options import NetworkOptions
from helixfold.execution.device import (
    DTYPES,
    cast_trunk,
    limit_threads,
    pick_device,
    settled_dtype,
    untested_warning,
)
from helixfold.execution.iteration_runner import LAUNCH_BOUND_RESIDUES, runner_for
from helixfold.execution.stages import Stages
from helixfold.folding.options import FoldingOptions
from helixfold.folding.planned import fold_all, plan_prediction
from helixfold.folding.prediction import Prediction
from helixfold.folding.recycling import FoldingTarget
from helixfold.model.config import Method
from helixfold.model.presets import PRESETS, Preset
from helixfold.ops.device_properties import properties_of
from helixfold.planning.memory import MemoryOptions
from helixfold.runtime.standard_streams import print_note
from helixfold.weights.find import ReadyModel, find_models, find_parameters

# Default maximum number of targets in a batch on a GPU.
_MAX_BATCH_ON_GPU = 64


def find_preset(options: NetworkOptions, method: Method) -> Preset:
    """Return the preset of the model that the options name, or of the first available one, without loading it.

    `method`, monomer or multimer, selects the default models. Models that do not predict aligned errors are passed
    over, because scores need them. Raise `InputError` if no model is left.
    """
    names = () if options.model is None else (options.model,)
    available = [preset for preset, _ in find_parameters(names, options.weights, method=method)]
    suitable = [preset for preset in available if preset.model.heads.aligned_error]
    if not suitable:
        raise InputError(
            f"{available[0].name} predicts no aligned errors, which scores need; pass a --model that does, such as "
            f"{next(name for name in PRESETS if name.endswith('_ptm'))}"
        )
    return suitable[0]


class Network:
    """A loaded model on a device, with the options for folding.

    `masks` is whether MSA residues are masked at random, as in the model's preset. `spill` is the default directory
    for spilled streams.
    """

    def __init__(
        self,
        options: NetworkOptions,
        preset: Preset,
        folding: FoldingOptions,
        *,
        spill: Path,
        masks: bool = True,
    ) -> None:
        limit_threads()
        self.device = pick_device(options.device)
        if (warning := untested_warning(properties_of(self.device))) is not None:
            print_note(warning)
        dtype = settled_dtype(folding.dtype, properties_of(self.device))
        self.folding = replace(folding, dtype=dtype)
        self.memory = MemoryOptions(
            executor=options.executor, memory=options.memory, spill_directory=options.spill_directory
        )
        self.model = _load(options, preset)
        # Whether the masked-MSA head of the model was trained.
        self.has_likelihoods = self.model.preset.sampling.masked_msa_fraction > 0
        if not masks:
            sampling = replace(self.model.preset.sampling, masked_msa_fraction=0.0)
            self.model = replace(self.model, preset=replace(self.model.preset, sampling=sampling))
        cast_trunk(self.model.network.to(self.device), DTYPES[dtype])
        self._requested_batch_size, self._spill_directory = options.batch_size, spill
        self._runner = runner_for(self.device, "auto", 1, print_note)

    def at_once(self, residues: int) -> int:
        """Return the maximum number of targets of a length in one batch, if they fit into memory.

        It is 1 for long targets and for multimer models, else the option `batch_size`.
        """
        # A multimer model averages over template slots, so padding would count as an empty template.
        if residues > LAUNCH_BOUND_RESIDUES or self.model.preset.model.method == "multimer":
            return 1
        default = _MAX_BATCH_ON_GPU if properties_of(self.device).has_own_memory else 1
        return self._requested_batch_size or default

    def fold(self, targets: Sequence[FoldingTarget]) -> list[Prediction]:
        """Return the predictions of targets of equal size, in order, folded as one batch if that is possible.

        The predictions are named after the model. Raise `NotEnoughMemoryError` if a single target does not fit into
        memory.
        """
        available = self.memory.available(self.device, self._spill_directory)
        name = self.model.preset.name
        first = targets[0]
        plan = plan_prediction(
            self.model, first.features, self.folding, self.memory, available, name=first.name or name
        )
        return fold_all(
            self.model,
            [replace(target, name=name) for target in targets],
            [plan] * len(targets),
            self.folding,
            stages=[Stages(self.device) for _ in targets],
            spill=self._spill_directory,
            say=print_note,
            runner=self._runner,
        )

    def outcomes(self, targets: Sequence[FoldingTarget]) -> list[Prediction | Exception]:
        """Return the prediction of each target, or the error of each target that fails alone."""
        try:
            return [*self.fold(targets)]
        except Exception as error:
            if len(targets) == 1:
                return [error]
        return [outcome for target in targets for outcome in self.outcomes([target])]


def _load(options: NetworkOptions, preset: Preset) -> ReadyModel:
    """Load the model of a preset that `find_preset` has found."""
    is_file = options.weights is not None and not options.weights.is_dir()
    names = ((options.model,) if options.model is not None else ()) if is_file else (preset.name,)
    return find_models(names, options.weights, seed=options.seed)[0]
