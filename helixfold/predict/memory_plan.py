"""The part of the commands on memory: what a target will take, said before it is folded."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from data_pipeline.errors import InputError
from data_pipeline.features.schema import Features
from data_pipeline.transforms.sample import SamplingConfig
from helixfold.execution.available import available_memory, free_disk
from helixfold.ops.card import Card, card_of
from helixfold.planning.executors import Plan, Room, longest, plan, room_of
from helixfold.planning.prediction import EXECUTORS
from helixfold.planning.size import PassSize, gib
from helixfold.presets import Preset
from helixfold.weights.find import ReadyModel

AUTOMATIC = "auto"


@dataclass(frozen=True, kw_only=True)
class MemoryOptions:
    """What a run may take.

    An executor for all targets, bytes to plan for (None: what is free), a directory to spill to (None: each target's
    own), and the most rows of the MSA and extra rows (None: as many as the model's preset says). A machine's `sharers`
    are the processes that have its memory and disks between them; `memory` is what each of them may take.
    """

    executor: str = AUTOMATIC
    memory: int | None = None
    spill_directory: Path | None = None
    max_msa_rows: int | None = None
    max_extra_rows: int | None = None
    sharers: int = 1

    def __post_init__(self) -> None:
        if self.executor not in (AUTOMATIC, *EXECUTORS):
            allowed = ", ".join((AUTOMATIC, *EXECUTORS))
            raise InputError(f"executor must be one of {allowed}, got {self.executor!r}")
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
        """The model as this run feeds it."""
        sampling = model.preset.sampling
        fed = replace(
            sampling,
            max_msa_clusters=min(self.max_msa_rows or sampling.max_msa_clusters, sampling.max_msa_clusters),
            max_extra_msa=min(self.max_extra_rows or sampling.max_extra_msa, sampling.max_extra_msa),
        )
        return replace(model, preset=replace(model.preset, sampling=fed))

    def shared(self, sharers: int, device: torch.device) -> "MemoryOptions":
        """For one of so many processes of a machine, before any of them has begun; each GPU's memory is its own."""
        if sharers == 1:
            return self
        memory = self.memory
        if memory is None and device.type == "cpu":
            memory = available_memory(device) // sharers
        return replace(self, memory=memory, sharers=sharers)

    def room(self, device: torch.device, output: Path) -> Room:
        """What one target gets; without a directory of its own it spills into its output."""
        room = room_of(device, self.spill_directory or output, self.memory)
        return replace(room, spill=room.spill // self.sharers)

    def plan(self, preset: Preset, size: PassSize, device: torch.device, room: Room) -> Plan:
        """How a model folds it there."""
        forced = None if self.executor == AUTOMATIC else self.executor
        return plan(preset.model, size, room, card_of(device), forced)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """What a target's features give the model to choose from; `bound` says that a search may still find fewer."""

    residues: int
    alignment: int
    templates: int
    bound: bool = False

    @classmethod
    def of(cls, features: Features) -> "Rows":
        return cls(
            residues=len(features.sequence),
            alignment=len(features.msa),
            templates=len(features.template_domain_names),
        )

    @classmethod
    def at_most(cls, residues: int, sampling: SamplingConfig, *, templates: bool = True) -> "Rows":
        return cls(
            residues=residues,
            alignment=sampling.max_msa_clusters + sampling.max_extra_msa,
            templates=sampling.max_templates if templates else 0,
            bound=True,
        )

    def size(self, preset: Preset, dtype: torch.dtype, ensemble: int = 1, ranks: int = 1) -> PassSize:
        """What a pass with a model reads of it, where so many ranks fold it together."""
        sampling = preset.sampling
        clusters = min(self.alignment, sampling.max_msa_clusters)
        return PassSize(
            residues=self.residues,
            msa_rows=clusters,
            # There is always one, as the model is fed.
            extra_rows=max(1, min(self.alignment - clusters, sampling.max_extra_msa)),
            templates=0 if preset.model.template is None else min(self.templates, sampling.max_templates),
            dtype=dtype,
            ensemble=ensemble,
            ranks=ranks,
        )


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What folding one target with one model will take."""

    target: str
    model: str
    rows: Rows
    plan: Plan


def remark(chosen: Plan, model: str, directory: Path) -> str | None:
    """What to say of a plan before its target is folded; None if there is nothing unusual about it."""
    peak, there = gib(chosen.estimate.peak), gib(chosen.room.memory)
    if not chosen.fits:
        return f"{model} is predicted to take {peak}, and there are {there}; tried, for --executor {chosen.executor}"
    if chosen.executor != "spilled":
        return None
    place = str(directory) if chosen.card.kind == "cpu" else "the host's memory"
    return f"{model} spills {gib(chosen.estimate.spilled)} to {place} and takes {peak} of the {there} that there are"


def table(forecasts: Sequence[Forecast]) -> Iterator[str]:
    """The lines of a dry run, and under them why targets will not fit and what would."""
    if not forecasts:
        return
    if (ranks := forecasts[0].plan.size.ranks) > 1:
        yield f"of each of the {ranks} processes that fold a target together:"
    width = max([6, *(len(each.target) for each in forecasts)])
    models = max([5, *(len(each.model) for each in forecasts)])
    yield (
        f"{'target':{width}}  {'model':{models}} {'residues':>8} {'MSA rows':>9} {'extra rows':>10} {'templates':>9}  "
        f"{'executor':8} {'peak GiB':>8} {'room GiB':>8} {'spilled GiB':>11}"
    )
    for each in forecasts:
        size, chosen = each.plan.size, each.plan
        bound = "<= " if each.rows.bound else ""
        counts = f"{bound + format(size.msa_rows, ','):>9} {bound + format(size.extra_rows, ','):>10}"
        templates = f"{bound}{size.templates}" if size.templates else "0"
        spilled = _number(chosen.estimate.spilled) if chosen.executor == "spilled" else "-"
        yield (
            f"{each.target:{width}}  {each.model:{models}} {size.residues:8,} {counts} {templates:>9}  "
            f"{chosen.executor if chosen.fits else 'none':8} {_number(chosen.estimate.peak):>8} "
            f"{_number(chosen.room.memory):>8} {spilled:>11}"
        )
    for each in forecasts:
        if not each.plan.fits:
            yield f"{each.target}: {each.model}: {each.plan.problem}"


def machine(presets: Iterable[Preset], residues: int, card: Card, room: Room) -> Iterator[str]:
    """Yield the part of `helixfold doctor` on memory: of each model every executor's peak, and the longest chain that
    slabs and spilled streams have room for.
    """
    yield (
        f"memory of {card.name}, {gib(room.memory)} free, for {residues:,} residues and all rows that a model reads: "
        "GiB at the peak (residues of the longest chain)"
    )
    yield f"  {'':24}{''.join(f'{name:>18}' for name in EXECUTORS)}   chosen"
    for preset in presets:
        for dtype in (torch.float32, torch.bfloat16):
            size = Rows.at_most(residues, preset.sampling).size(preset, dtype)
            found = plan(preset.model, size, room, card)
            cells = ""
            for name in EXECUTORS:
                peak = _number(found.forecast(name).peak)
                # Whole streams are for short chains.
                most = "" if name == "whole" else f" ({longest(preset.model, size, room, card, name):,})"
                cells += f"{peak + most:>18}"
            kind = str(dtype).removeprefix("torch.")
            yield f"  {preset.name:13}{kind:11}{cells}   {found.executor if found.fits else 'none'}"


def _number(size: int) -> str:
    return f"{size / 2**30:,.1f}"
