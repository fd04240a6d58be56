"""Memory of predictions: the options of a run, and the plan for each target from the size of its features."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from data_pipeline.features.assembly import ComplexFeatures
from data_pipeline.features.schema import Features
from data_pipeline.io.errors import InputError, choice_problem
from data_pipeline.sampling.sample import SamplingConfig
from helixfold.execution.available import available_memory, free_disk
from helixfold.model.presets import Preset
from helixfold.planning.estimate import Device, NotEnoughMemoryError, Prediction, PredictionEstimate, estimate
from helixfold.planning.executors import EXECUTORS
from helixfold.planning.size import PassSize, gib
from helixfold.runtime.standard_streams import print_detail
from helixfold.weights.find import ReadyModel

AUTOMATIC = "auto"


@dataclass(frozen=True, kw_only=True)
class MemoryOptions:
    """Options of a prediction run on memory: how much it may use, and limits by which it needs less.

    Raise `InputError` for an unknown executor, or for a spill directory that is full, in memory, or not writable.
    """

    executor: str = AUTOMATIC  # "auto", or one of `EXECUTORS` for all targets
    memory: int | None = None  # bytes that each process may use; None: what is free
    spill_directory: Path | None = None  # None: each target's output directory
    max_msa_rows: int | None = None  # None: as in the model's preset
    max_extra_rows: int | None = None
    processes: int = 1  # processes of the run on this machine, which share its memory and disks

    def __post_init__(self) -> None:
        if self.executor not in (AUTOMATIC, *EXECUTORS):
            raise InputError(f"executor {choice_problem(self.executor, (AUTOMATIC, *EXECUTORS))}")
        directory = self.spill_directory
        if directory is None:
            return
        if not directory.is_dir() or not os.access(directory, os.W_OK):
            raise InputError.at(directory, "is no directory that can be written; choose another --spill-directory")
        if not free_disk(directory):
            raise InputError.at(
                directory, "is full, or held in memory itself (tmpfs); choose a --spill-directory on a disk"
            )

    def limited(self, model: ReadyModel) -> ReadyModel:
        """Return the model with no more MSA rows and extra rows than these options allow."""
        return replace(model, preset=self.limited_preset(model.preset))

    def limited_preset(self, preset: Preset) -> Preset:
        """Return the settings of a model with no more MSA rows and extra rows than these options allow."""
        sampling = preset.sampling
        limited = replace(
            sampling,
            max_msa_clusters=min(self.max_msa_rows or sampling.max_msa_clusters, sampling.max_msa_clusters),
            max_extra_msa=min(self.max_extra_rows or sampling.max_extra_msa, sampling.max_extra_msa),
        )
        return replace(preset, sampling=limited)

    def divided(self, processes: int, device: torch.device) -> "MemoryOptions":
        """Return the options of each of several processes on a machine, among which a CPU's memory is divided.

        Call this before any of the processes uses memory. GPUs are not divided: each process has its own.
        """
        if processes == 1:
            return self
        memory = self.memory
        if memory is None and device.type == "cpu":
            memory = available_memory(device) // processes
        return replace(self, memory=memory, processes=processes)

    def available(self, device: torch.device, output: Path) -> Device:
        """Return the device with its available memory, and disk space in the spill directory, by default `output`."""
        found = Device.at_hand(device, self.spill_directory or output, self.memory)
        return replace(found, spill=found.spill // self.processes)

    def plan(self, preset: Preset, size: PassSize, device: Device, passes: int = 1) -> PredictionEstimate:
        """Return the estimate for an input of this size, with the executor of these options or the one that fits."""
        forced = None if self.executor == AUTOMATIC else self.executor
        made = estimate(Prediction(model=preset.model, size=size, executor=forced, passes=passes), device)
        shown = f"executor {made.executor}, estimated at {gib(made.memory.peak)} of {gib(device.memory)}"
        print_detail(f"{preset.name}, {size.residues} residues: {shown}")
        return made

    def is_tried(self, found: PredictionEstimate) -> bool:
        """Return whether a target is folded: if it fits, or if the executor is named and the memory is not limited."""
        return found.fits or (self.executor != AUTOMATIC and self.memory is None)

    def problem(self, found: PredictionEstimate) -> str:
        """Return why a target does not fit into memory, and what would."""
        if self.executor == AUTOMATIC or found.needed <= found.device.memory:
            return found.problem
        return (
            f"{found.size.residues:,} residues need {gib(found.needed)} of memory (a tenth of reserve included) with "
            f"--executor {found.executor}; there are {gib(found.device.memory)}; leave out --executor, or give more "
            "memory"
        )

    def check(self, found: PredictionEstimate, name: str) -> None:
        """Raise `NotEnoughMemoryError` if the target `name` does not fit and is not tried all the same."""
        if not self.is_tried(found):
            raise NotEnoughMemoryError(f"{name}: {self.problem(found)}")


@dataclass(frozen=True, kw_only=True)
class FeatureRows:
    """Numbers of residues, alignment rows and templates of a target, which determine the size of a model's input."""

    residues: int
    alignment: int
    templates: int
    is_bound: bool = False  # an upper bound: the search for rows and templates is not done and may find fewer

    @classmethod
    def of(cls, features: Features | ComplexFeatures) -> "FeatureRows":
        """Return the numbers in a target's features."""
        return cls(residues=len(features.aatype), alignment=len(features.msa), templates=len(features.template_aatype))

    @classmethod
    def at_most(cls, residues: int, sampling: SamplingConfig, *, templates: bool = True) -> "FeatureRows":
        """Return the largest numbers that a model samples from a target whose features do not exist yet."""
        return cls(
            residues=residues,
            alignment=sampling.max_msa_clusters + sampling.max_extra_msa,
            templates=sampling.max_templates if templates else 0,
            is_bound=True,
        )

    def size(self, preset: Preset, dtype: torch.dtype, ensemble: int = 1, ranks: int = 1) -> PassSize:
        """Return the size of a model's input, with `ensemble` samples of the MSA, shared by `ranks` ranks."""
        sampling = preset.sampling
        clusters = min(self.alignment, sampling.max_msa_clusters)
        # A model of complexes reads all slots for templates, whether they hold one or not.
        templates = sampling.max_templates if preset.model.method == "multimer" else self.templates
        return PassSize(
            residues=self.residues,
            msa_rows=clusters,
            # The model's input always has at least one extra row.
            extra_rows=max(1, min(self.alignment - clusters, sampling.max_extra_msa)),
            templates=0 if preset.model.template is None else min(templates, sampling.max_templates),
            dtype=dtype,
            ensemble=ensemble,
            ranks=ranks,
        )
