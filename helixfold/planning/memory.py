"""Plan the memory of predictions: the memory options of a run, and the executor for the size of a target."""

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

# Name of the executor for "the first one that fits".
AUTOMATIC = "auto"


@dataclass(frozen=True, kw_only=True)
class MemoryOptions:
    """Memory options of a prediction run: available memory, executor, and limits of the MSA depth.

    Raise `InputError` for an unknown executor, or for a spill directory that is full, in memory, or not writable.
    """

    executor: str = AUTOMATIC  # "auto", or one of `EXECUTORS` for all targets
    memory: int | None = None  # bytes that each process may use; None: all free memory
    spill_directory: Path | None = None  # None: each target's output directory
    max_msa_rows: int | None = None  # None: the limit in the model's preset
    max_extra_rows: int | None = None
    processes: int = 1  # processes of the run that share this machine's memory and disks

    def __post_init__(self) -> None:
        if self.executor not in (AUTOMATIC, *EXECUTORS):
            raise InputError(f"executor {choice_problem(self.executor, (AUTOMATIC, *EXECUTORS))}")
        directory = self.spill_directory
        if directory is None:
            return
        if not directory.is_dir() or not os.access(directory, os.W_OK):
            raise InputError.at(directory, "is not a writable directory; choose another --spill-directory")
        if not free_disk(directory):
            raise InputError.at(directory, "is full or in memory (tmpfs); choose a --spill-directory on a disk")

    def limited(self, model: ReadyModel) -> ReadyModel:
        """Return the model with its preset's maximum MSA rows and extra rows reduced to these options, if set."""
        return replace(model, preset=self.limited_preset(model.preset))

    def limited_preset(self, preset: Preset) -> Preset:
        """Return the preset with its maximum MSA rows and extra rows reduced to these options, if set."""
        sampling = preset.sampling
        limited = replace(
            sampling,
            max_msa_clusters=min(self.max_msa_rows or sampling.max_msa_clusters, sampling.max_msa_clusters),
            max_extra_msa=min(self.max_extra_rows or sampling.max_extra_msa, sampling.max_extra_msa),
        )
        return replace(preset, sampling=limited)

    def divided(self, processes: int, device: torch.device) -> "MemoryOptions":
        """Return the options for each of several processes on this machine.

        The free memory of a CPU is divided equally, unless `memory` is set; call this before any process uses memory.
        GPU memory is not divided, because each process has its own GPU.
        """
        if processes == 1:
            return self
        memory = self.memory
        if memory is None and device.type == "cpu":
            memory = available_memory(device) // processes
        return replace(self, memory=memory, processes=processes)

    def available(self, device: torch.device, output: Path) -> Device:
        """Return the device with its available memory and the disk space for spilled streams.

        Streams are spilled to the spill directory, by default to `output`. Each process counts on an equal share of
        that space.
        """
        at_hand = Device.at_hand(device, self.spill_directory or output, self.memory)
        return replace(at_hand, spill=at_hand.spill // self.processes)

    def plan(self, preset: Preset, size: PassSize, device: Device, iterations: int = 1) -> PredictionEstimate:
        """Estimate a prediction with this input size; with "auto", the first suitable executor that fits is chosen.

        The result is also printed as a detail. `iterations` is the number of recycling iterations.
        """
        forced = None if self.executor == AUTOMATIC else self.executor
        work = Prediction(model=preset.model, size=size, executor=forced, recycling_iterations=iterations)
        plan = estimate(work, device)
        summary = f"executor {plan.executor}, estimated at {gib(plan.memory.peak)} of {gib(device.memory)}"
        print_detail(f"{preset.name}, {size.residues} residues: {summary}")
        return plan

    def is_tried(self, plan: PredictionEstimate) -> bool:
        """Return whether a target is folded: if it fits, or if the user chose the executor and set no memory limit."""
        return plan.fits or (self.executor != AUTOMATIC and self.memory is None)

    def problem(self, plan: PredictionEstimate) -> str:
        """Return a sentence on why a target does not fit into memory, and what would fit or what option to change."""
        if self.executor == AUTOMATIC or plan.needed <= plan.device.memory:
            return plan.problem
        return (
            f"{plan.size.residues:,} residues need {gib(plan.needed)} of memory (a tenth of reserve included) with "
            f"--executor {plan.executor}; there are {gib(plan.device.memory)}; leave out --executor, or provide more "
            "memory"
        )

    def check(self, plan: PredictionEstimate, name: str) -> None:
        """Raise `NotEnoughMemoryError` if the target `name` does not fit, unless `is_tried` allows it."""
        if not self.is_tried(plan):
            raise NotEnoughMemoryError(f"{name}: {self.problem(plan)}")


@dataclass(frozen=True, kw_only=True)
class FeatureRows:
    """Numbers of residues, alignment rows and templates of a target, which determine the size of a model's input.

    `alignment` counts all rows before a model samples some of them as MSA rows and extra rows.
    """

    residues: int
    alignment: int
    templates: int
    is_bound: bool = False  # whether this is an upper bound, because the searches have not run yet

    @classmethod
    def of(cls, features: Features | ComplexFeatures) -> "FeatureRows":
        """Return the counts in a target's features: residues, rows of the alignment, and templates."""
        return cls(residues=len(features.aatype), alignment=len(features.msa), templates=len(features.template_aatype))

    @classmethod
    def at_most(cls, residues: int, sampling: SamplingConfig, *, templates: bool = True) -> "FeatureRows":
        """Return the maximum numbers that a model reads, for a target whose features do not exist yet.

        `templates` is whether the target may have templates. The result has `is_bound`.
        """
        return cls(
            residues=residues,
            alignment=sampling.max_msa_clusters + sampling.max_extra_msa,
            templates=sampling.max_templates if templates else 0,
            is_bound=True,
        )

    def size(self, preset: Preset, dtype: torch.dtype, ensemble: int = 1, ranks: int = 1) -> PassSize:
        """Return the size of a model's input, with `ensemble` samples of the MSA, shared by `ranks` ranks.

        Rows of the alignment become MSA rows up to the preset's limit, and further rows become extra rows.
        """
        sampling = preset.sampling
        clusters = min(self.alignment, sampling.max_msa_clusters)
        # A multimer model reads all template slots, including empty ones.
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
