"""Load one model, and fold many targets with it: short ones of a length in the same passes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from data_pipeline.io.errors import InputError
from helixfold.apps.score.options import NetworkOptions
from helixfold.execution.device import (
    AUTO,
    DTYPES,
    cast_trunk,
    limit_threads,
    pick_device,
    settled_dtype,
    untested_warning,
)
from helixfold.execution.iteration_runner import LAUNCH_BOUND_RESIDUES, runner_for
from helixfold.execution.stages import Stages
from helixfold.folding.model_input import model_input
from helixfold.folding.options import FoldingOptions
from helixfold.folding.planned import fold_planned, fold_together
from helixfold.folding.prediction import Prediction
from helixfold.folding.recycling import FoldingTarget
from helixfold.model.config import Method
from helixfold.model.presets import PRESETS, Preset
from helixfold.ops.device_properties import properties_of
from helixfold.planning.estimate import PredictionEstimate
from helixfold.planning.memory import FeatureRows, MemoryOptions
from helixfold.runtime.standard_streams import print_note
from helixfold.weights.find import ReadyModel, find_models, find_parameters

# The most targets that share passes on a GPU.
_AT_ONCE = 64


def find_preset(options: NetworkOptions, method: Method) -> Preset:
    """Return the settings of the model that the options name, or of the first one that is there; nothing is loaded.

    Raise `InputError` if there is none, or if it predicts no aligned errors, of which scores are made.
    """
    names = () if options.model is None else (options.model,)
    found = [preset for preset, _ in find_parameters(names, options.weights, method=method)]
    fitting = [preset for preset in found if preset.model.heads.aligned_error]
    if not fitting:
        raise InputError(
            f"{found[0].name} predicts no aligned errors, which scores need; choose one that does, such as "
            f"{next(name for name in PRESETS if name.endswith('_ptm'))}, by --model"
        )
    return fitting[0]


class Network:
    """A model with its parameters on a device.

    `masks` says whether residues of the alignment are hidden at random, as in the model's preset.
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
        dtype = settled_dtype(folding.dtype, properties_of(self.device)) if folding.dtype == AUTO else folding.dtype
        self.folding = replace(folding, dtype=dtype)
        self.memory = MemoryOptions(
            executor=options.executor, memory=options.memory, spill_directory=options.spill_directory
        )
        self.model = _load(options, preset)
        # Whether the masked-residue head of the model was trained.
        self.has_likelihoods = self.model.preset.sampling.masked_msa_fraction > 0
        if not masks:
            sampling = replace(self.model.preset.sampling, masked_msa_fraction=0.0)
            self.model = replace(self.model, preset=replace(self.model.preset, sampling=sampling))
        cast_trunk(self.model.network.to(self.device), DTYPES[dtype])
        self._at_once, self._spill = options.batch_size, spill
        self._runner = runner_for(self.device, "auto", 1, print_note)

    def at_once(self, residues: int) -> int:
        """Return how many targets of a length are folded in the same passes, if they fit into memory."""
        # The place of a template that a target has not is averaged by a model of complexes, and padding would be too.
        if residues > LAUNCH_BOUND_RESIDUES or self.model.preset.model.method == "multimer":
            return 1
        usual = _AT_ONCE if properties_of(self.device).has_own_memory else 1
        return self._at_once or usual

    def fold(self, targets: Sequence[FoldingTarget]) -> list[Prediction]:
        """Return the predictions of targets of one size, in their order.

        Raise `NotEnoughMemoryError` if one alone does not fit into memory.
        """
        plans = [self._plan(targets[0])] * len(targets)
        lot = [replace(target, name=self.model.preset.name) for target in targets]
        stages = [Stages(self.device) for _ in lot]
        how: dict[str, Any] = {"spill": self._spill, "say": print_note, "runner": self._runner}
        found = fold_together(self.model, lot, plans, self.folding, stages=stages, **how)
        if found is not None:
            return found
        return [
            fold_planned(self.model, target, plan, self.folding, stages=stage, **how)
            for target, plan, stage in zip(lot, plans, stages, strict=True)
        ]

    def outcomes(self, targets: Sequence[FoldingTarget]) -> list[Prediction | Exception]:
        """Return predictions as `fold` does; if that fails, of targets one by one, or the error of one that fails."""
        try:
            return [*self.fold(targets)]
        except Exception as error:
            if len(targets) == 1:
                return [error]
        return [outcome for target in targets for outcome in self.outcomes([target])]

    def _plan(self, target: FoldingTarget) -> PredictionEstimate:
        rows = FeatureRows.of(model_input(target.features, self.model.preset).features)
        size = rows.size(self.model.preset, DTYPES[self.folding.dtype], self.folding.num_ensemble)
        available = self.memory.available(self.device, self._spill)
        plan = self.memory.plan(self.model.preset, size, available)
        self.memory.check(plan, target.name or self.model.preset.name)
        return plan


def _load(options: NetworkOptions, preset: Preset) -> ReadyModel:
    """Load the model of a preset that `find_preset` has found."""
    is_file = options.weights is not None and not options.weights.is_dir()
    names = ((options.model,) if options.model is not None else ()) if is_file else (preset.name,)
    return find_models(names, options.weights, seed=options.seed)[0]
