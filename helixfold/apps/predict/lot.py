"""Fold a lot, which is a few targets of similar length: compute features, fold missing predictions, finish targets.

On a GPU, the network takes as long for several short chains as for one, because it waits for the host to launch
operators. Targets of a lot that need the same model are therefore folded as one batch. Each target has its own files,
its own end of recycling and its own failure.
"""

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from math import ceil
from pathlib import Path

import torch
from tqdm import tqdm

from data_pipeline.features.alignment_depth import alignment_depth
from data_pipeline.features.assembly import ComplexFeatures
from data_pipeline.features.complexes.feature_file import features_digest, load_features
from data_pipeline.features.complexes.feature_set import TargetFeatures, alignment_of
from data_pipeline.sampling.sample import SamplingConfig
from helixfold.apps.predict.jobs import Job
from helixfold.apps.predict.postprocess import TargetOutput, postprocess
from helixfold.apps.predict.record import model_origin
from helixfold.apps.predict.resume import request_predictions, resume_target
from helixfold.apps.predict.settings import PredictionRequest, RunSettings
from helixfold.apps.predict.variants import find_variants
from helixfold.apps.search_plan import recorded_searches
from helixfold.execution.environment import device_capability, device_name, software_versions
from helixfold.execution.iteration_runner import LAUNCH_BOUND_RESIDUES
from helixfold.execution.stages import Stages
from helixfold.folding.model_input import depends_on_seed, model_input
from helixfold.folding.planned import fold_planned, fold_together
from helixfold.folding.prediction import Prediction
from helixfold.folding.provenance import Provenance, recorded_command
from helixfold.folding.recycling import FoldingTarget
from helixfold.folding.templates import templates_read
from helixfold.model.presets import Preset
from helixfold.ops.device_properties import properties_of
from helixfold.planning.estimate import PredictionEstimate, fit_together
from helixfold.planning.memory import FeatureRows
from helixfold.planning.size import gib
from helixfold.report.plot_files import write_alignment, write_coverage
from helixfold.report.plots import import_matplotlib
from helixfold.results.archive import write_archive
from helixfold.results.file_table import FEATURES
from helixfold.results.prediction import write_prediction

# Default maximum number of targets in a lot on a GPU.
MAX_LOT = 64
# Lengths of targets that are folded together round up to the same multiple of this.
_LENGTH_STEP = 32
# For targets with at most this many predictions, timings.json is written after each; otherwise, after so many seconds.
_FEW_PREDICTIONS, _SECONDS_BETWEEN_WRITES = 50, 10
# For targets with more residues, the plot of the alignment is written before the first prediction.
_LONG_RESIDUES = 256
# Result of a target: its predictions, best first, or the error that stopped it.
Outcome = list[Prediction] | Exception


def sizes_of_lots(lengths: Sequence[int | None], settings: RunSettings) -> list[int]:
    """Divide targets into lots of consecutive targets, and return the numbers of targets in each lot.

    `lengths` are the numbers of residues; None is a target that is folded alone, such as a complex. Neighbors whose
    lengths round up to the same multiple of 32 share a lot, up to the option `targets_at_once`. All lots have one
    target on a CPU by default, with multimer models, dropout or saved recycles, and where ranks share a target. Lots
    are small enough that every process gets some of the targets.
    """
    max_size = settings.options.targets_at_once
    if max_size is None:
        max_size = MAX_LOT if properties_of(settings.device).has_own_memory else 1
    # A multimer model averages over all template slots, including empty ones, so padding would change its results.
    has_multimer = any(model.preset.model.method == "multimer" for model in settings.models)
    if settings.workers.group.size > 1 or has_multimer or settings.folding.dropout or settings.folding.save_passes:
        max_size = 1
    max_size = min(max_size, ceil(len(lengths) / settings.workers.mesh.layout.dp))
    sizes: list[int] = []
    previous_step = 0
    # A target that is folded alone is treated as one that is too long for a lot.
    for length in (LAUNCH_BOUND_RESIDUES + 1 if length is None else length for length in lengths):
        length_step = ceil(length / _LENGTH_STEP)
        if sizes and length_step == previous_step and length <= LAUNCH_BOUND_RESIDUES and sizes[-1] < max_size:
            sizes[-1] += 1
        else:
            sizes.append(1)
        previous_step = length_step
    return sizes


def fold_lot(targets: Sequence[tuple[Job, Stages]], settings: RunSettings) -> list[Outcome]:
    """Fold the missing predictions of each target and write its files; return the outcome of each target.

    `targets` has each job with the stages in which its times are recorded. The first rank of a group calls this, and
    the other ranks call `serve_folds`. A target that fails does not stop the others.
    """
    lot = [TargetRun(job, settings, stages) for job, stages in targets]
    for target in lot:
        with target.failing_alone():
            target.begin()
    count = sum(len(target.missing) for target in lot)
    hides_bar = len(lot) > 1 or count == 1 or settings.no_bars
    with tqdm(total=count, desc="predictions", unit="prediction", leave=False, disable=hides_bar) as bar:
        while alike := _alike(lot):
            batch_predictions = _fold_together(alike, settings) if len(alike) > 1 else None
            for index, target in enumerate(alike):
                with target.failing_alone():
                    prediction = target.same_prediction() if batch_predictions is None else batch_predictions[index]
                    if prediction is None:
                        requested, plan = target.missing[0]
                        prediction = fold_planned(
                            requested.model,
                            target.announce(),
                            plan,
                            replace(settings.folding, seed=requested.seed),
                            stages=target.stages,
                            spill=target.spill,
                            say=target.say_of_next,
                            runner=settings.iteration_runner,
                            workers=settings.workers,
                            hides_bar=settings.hides_iterations,
                        )
                    target.write(prediction)
                bar.update()
    for target in lot:
        if not isinstance(target.outcome, Exception):
            with target.failing_alone():
                target.outcome = target.finish()
    return [target.outcome for target in lot]


class TargetRun(TargetOutput):
    """The run of one target in its directory; `missing` has the predictions to fold, the next one first.

    `outcome` is empty until the target is finished or fails. `spill` is the directory for spilled streams.
    """

    def __init__(self, job: Job, settings: RunSettings, stages: Stages) -> None:
        super().__init__(job, settings, stages)
        self.spill = settings.memory.spill_directory or self.directory
        self.missing: deque[tuple[PredictionRequest, PredictionEstimate]] = deque()
        self.outcome: Outcome = []
        # By model and alignment, if they do not depend on the seed.
        self._predictions_of_any_seed: dict[tuple[str, str], Prediction] = {}
        self._next_timings_write = 0.0

    @contextmanager
    def failing_alone(self) -> Iterator[None]:
        """Context that records an error as the target's outcome, so that other targets continue.

        An error also removes the target's missing predictions.
        """
        try:
            yield
        except Exception as error:  # even a bug must not end a whole batch
            self.outcome = error
            self.missing.clear()

    def begin(self) -> None:
        """Prepare the directory, compute the features, and plan the missing predictions.

        Results of an earlier run with the same settings are kept, others are removed. The features, the alignment and
        the record are written. Raise `NotEnoughMemoryError` if a prediction does not fit, before any is folded.
        """
        job, directory, settings, stages = self.job, self.directory, self.settings, self.stages
        record, models, earlier_stages = resume_target(job, directory, settings)
        with stages.stage("features"):
            labels = {label for provenance in record.provenance.values() for label in provenance.templates}
            self.features = features = job.prepare(directory, settings, labels)
            self._alignment_depth = write_alignment(directory, alignment_of(features))
            variants = find_variants(settings.variants, job, features, directory)
        self._record, missing = request_predictions(record, job, directory, settings, variants)
        self._write_record()
        # The timings of predictions that are made again are dropped.
        names = {requested.name for requested in missing}
        stages.finished[:0] = [stage for stage in earlier_stages if stage.name.partition(": ")[0] not in names]
        self.facts = {**_facts(job, features, settings), "models": models}
        self._digest = features_digest(features)
        settings.workers.group.send({"target": job.name})
        with settings.workers.group.together():
            self._guessed_positions = job.guessed_positions(features)
        plans = _plans(missing, features, directory, settings)
        for requested, plan in zip(missing, plans, strict=True):
            settings.memory.check(plan, requested.name)
        self.missing += zip(missing, plans, strict=True)
        self._seconds_between_writes = 0 if len(plans) <= _FEW_PREDICTIONS else _SECONDS_BETWEEN_WRITES
        if job.residues > _LONG_RESIDUES:  # a prediction may take hours
            self._draw_coverage()
        elif self.missing and not settings.options.slim:
            threading.Thread(target=import_matplotlib).start()  # while the network runs

    @property
    def folding_target(self) -> FoldingTarget:
        """Return the input of the next prediction."""
        requested, _ = self.missing[0]
        features = requested.alignment.of(self.features)
        return self.job.folding_target(features, requested.name, self._guessed_positions)

    @property
    def batch_key(self) -> tuple[object, ...]:
        """Return a key that is equal for targets whose next predictions can be computed as one batch.

        The model, seed and executor are the same, and the numbers of residues and rows are similar.
        """
        requested, plan = self.missing[0]
        size, model = plan.size, requested.model.preset
        if (model.name, requested.alignment.name) in self._predictions_of_any_seed:
            return (id(self),)
        # Padding takes time, so the number of rows is at most doubled.
        rows = size.msa_rows.bit_length(), size.extra_rows.bit_length(), size.templates > 0
        return model.name, model.sampling, requested.seed, plan.executor, ceil(size.residues / _LENGTH_STEP), rows

    def same_prediction(self) -> Prediction | None:
        """Return an earlier prediction with the same input as the next one, whose seed has no effect; else None.

        Print a line if there is one.
        """
        requested, _ = self.missing[0]
        same = self._predictions_of_any_seed.get((requested.model.preset.name, requested.alignment.name))
        if same is not None:
            self.say_of_next("its input does not depend on the seed; not folded again")
        return same

    def announce(self) -> FoldingTarget:
        """Send the next prediction to the other ranks, and return its input.

        Print a note if it spills streams or does not fit into the memory.
        """
        requested, plan = self.missing[0]
        if (remark := _memory_remark(plan, self.spill)) is not None:
            self.say(f"{requested.name} {remark}")
        group = self.settings.workers.group
        group.send({"prediction": requested.identity.key, "name": requested.name})
        with group.together():
            return self.folding_target

    def say_of_next(self, line: str) -> None:
        """Print a line about the next prediction."""
        self.say(f"{self.missing[0][0].name}: {line}")

    def write(self, prediction: Prediction) -> None:
        """Write `prediction`, which is the next one, to files, and remove it from `missing`.

        Its record is written before its files, because a prediction whose files exist is not folded again. If it has
        the score of --stop-at-score, all missing predictions are removed. Print a line if it has no PDB file.
        """
        (requested, _), settings = self.missing.popleft(), self.settings
        preset, alignment = requested.model.preset, requested.alignment
        features = alignment.of(self.features)
        if (preset.name, alignment.name) not in self._predictions_of_any_seed:
            max_rows = preset.sampling.max_msa_clusters + preset.sampling.max_extra_msa
            rows = min(len(model_input(features, preset).features.msa), max_rows)
            self.facts["models"][requested.name] = {**prediction.measurements, "msa_rows_read": rows}
            dropout = settings.folding.dropout
            if settings.options.num_seeds > 1 and not depends_on_seed(features, preset, dropout=dropout):
                self._predictions_of_any_seed[preset.name, alignment.name] = prediction
        provenance = self._provenance(prediction, preset)
        prediction = replace(prediction, name=requested.name, identity=requested.identity, provenance=provenance)
        with self.stages.stage(f"{requested.name}: writing"):
            self._record = replace(self._record, provenance={**self._record.provenance, requested.name: provenance})
            self._write_record()
            self._write_timings_if_due(prediction)
            depth = self._alignment_depth
            if alignment.rows is not None:
                depth = alignment_depth(alignment_of(features).msa)
            no_pdb_file = write_prediction(
                self.directory,
                prediction,
                depth,
                name=self.job.title,
                origin=model_origin(self._record, requested.name, self.features),
                representations_format=settings.options.representations_format,
            )
            if no_pdb_file is not None:
                self.say(f"{requested.name}: no PDB file: {no_pdb_file}")
            self._write_timings_if_due(prediction)
        if settings.folding.stops_at(prediction.plddt.mean()):
            self.missing.clear()

    def finish(self) -> list[Prediction]:
        """Relax, rank, plot, report on and archive all predictions of the target, and return them, best first."""
        if self.job.residues <= _LONG_RESIDUES:
            self._draw_coverage()
        order = postprocess(self, [*self._record.finished(self.directory, self.job.residues).values()])
        if self.settings.options.zip:
            write_archive(self.directory)
        return order

    def _draw_coverage(self) -> None:
        """Write the plot of the alignment's depth, unless the output is slim."""
        if not self.settings.options.slim:
            write_coverage(self.directory, alignment_of(self.features), self._alignment_depth)

    def _write_record(self) -> None:
        """Write settings.json, with notes for all readers of the results."""
        self._record.write(self.directory, self.job.notes(self.settings.models))

    def _write_timings_if_due(self, prediction: Prediction) -> None:
        """Write timings.json; with many predictions, only every few seconds."""
        # The file has entries for all predictions, so it is not rewritten for each of thousands.
        if time.monotonic() >= self._next_timings_write:
            self.write_timings(prediction.notes, running=True)
            self._next_timings_write = time.monotonic() + self._seconds_between_writes

    def _provenance(self, prediction: Prediction, preset: Preset) -> Provenance:
        """Return the complete provenance of a prediction by the model of a preset."""
        settings, target = self.settings, self.job.target
        assert prediction.provenance is not None
        device = settings.device
        return replace(
            prediction.provenance,
            software=software_versions(device.type),
            device={"kind": device.type, "name": device_name(device), "capability": device_capability(device)},
            ranks=settings.workers.group.size,
            features=self._digest,
            searches=() if target is None else recorded_searches(target, settings.searches),
            templates=tuple(each.label for each in templates_read(self.features, preset)),
            command=recorded_command(settings.options.command),
        )


def _alike(lot: Sequence[TargetRun]) -> list[TargetRun]:
    """Return the first target with a missing prediction, and others whose next prediction can be in the same batch.

    These need the same model and seed, and have similar numbers of residues and rows. All of them fit into memory.
    """
    unfinished = [target for target in lot if target.missing]
    batch = unfinished[:1]
    for target in unfinished[1:]:
        if target.batch_key == batch[0].batch_key:
            if not fit_together([each.missing[0][1] for each in (*batch, target)]):
                break
            batch.append(target)
    return batch


def _fold_together(alike: Sequence[TargetRun], settings: RunSettings) -> list[Prediction] | None:
    """Fold the next predictions of several targets as one batch; return None if that fails."""
    first, _ = alike[0].missing[0]
    return fold_together(
        first.model,
        [target.folding_target for target in alike],
        [target.missing[0][1] for target in alike],
        replace(settings.folding, seed=first.seed),
        stages=[target.stages for target in alike],
        spill=alike[0].spill,
        say=settings.say,
        runner=settings.iteration_runner,
        hides_bar=settings.hides_iterations,
    )


def serve_folds(jobs: Sequence[Job], settings: RunSettings) -> None:
    """Take part in the predictions of the first rank of this group until it ends, without writing files.

    All other ranks call this while the first one folds. `jobs` are all targets of the run.
    """
    group, by_name = settings.workers.group, {job.name: job for job in jobs}
    while (message := group.receive()) is not None:
        with suppress(Exception):  # the first rank fails as well, and reports it
            if "target" in message:
                job, directory = by_name[message["target"]], settings.options.output / message["target"]
                with group.together():
                    features = load_features(FEATURES.path(directory))
                    guess = job.guessed_positions(features)
                    variants = find_variants(settings.variants, job, features, None).variants
                    predictions = {each.identity.key: each for each in settings.predictions(variants)}
                plans = _plans([*predictions.values()], features, directory, settings)
                continue
            with group.together():
                requested = predictions[tuple(message["prediction"])]
                plan = plans[list(predictions).index(requested.identity.key)]
                variant_features = requested.alignment.of(features)
                target = job.folding_target(variant_features, message["name"], guess)
            fold_planned(
                requested.model,
                target,
                plan,
                replace(settings.folding, seed=requested.seed),
                stages=Stages(settings.device),
                spill=settings.memory.spill_directory or directory,
                runner=settings.iteration_runner,
                workers=settings.workers,
            )


def _plans(
    requested: Sequence[PredictionRequest], features: TargetFeatures, directory: Path, settings: RunSettings
) -> list[PredictionEstimate]:
    """Return the plan of each prediction within the memory that every rank of the group has; all ranks call this."""
    group = settings.workers.group
    own_device = settings.memory.available(settings.device, directory)
    memory_by_rank = group.all_gather([own_device.memory, own_device.spill])
    memory, spill = (min(each) for each in zip(*memory_by_rank, strict=True))
    available = replace(own_device, memory=memory, spill=spill)
    # Plans are for the whole alignment, because its variants do not have more rows.
    plans: dict[tuple[str, SamplingConfig], PredictionEstimate] = {}
    for each in requested:
        preset = each.model.preset
        if (preset.name, preset.sampling) not in plans:
            rows = FeatureRows.of(model_input(features, preset).features)
            plans[preset.name, preset.sampling] = settings.plan(each.model, rows, available)
    return [plans[each.model.preset.name, each.model.preset.sampling] for each in requested]


def _memory_remark(plan: PredictionEstimate, directory: Path) -> str | None:
    """Return a note about a plan that spills streams, or that does not fit and is tried; None for other plans.

    `directory` is the place of streams that a CPU spills.
    """
    peak, available = gib(plan.memory.peak), gib(plan.device.memory)
    if not plan.fits:
        return f"needs an estimated {peak} of the available {available}; tried because of --executor {plan.executor}"
    if plan.executor != "spilled":
        return None
    spill_place = str(directory) if plan.device.properties.kind == "cpu" else "the host's memory"
    return f"spills {gib(plan.memory.spilled)} to {spill_place} and needs {peak} of the available {available}"


def _facts(job: Job, features: TargetFeatures, settings: RunSettings) -> dict[str, object]:
    """Return the facts in timings.json besides the times, such as sizes, device and threads."""
    alignment = alignment_of(features)
    chains = {"chains": len(alignment.chain_names)} if isinstance(alignment, ComplexFeatures) else {}
    return {
        "residues": job.residues,
        **chains,
        "msa_rows": len(alignment.msa),
        "templates": max(_template_count(features, model.preset) for model in settings.models),
        "device": str(settings.device),
        "ranks": settings.workers.group.size,
        "threads": torch.get_num_threads(),
        "dtype": settings.folding.dtype,
        "torch": torch.__version__,
    }


def _template_count(features: TargetFeatures, preset: Preset) -> int:
    """Return the number of template slots that a model reads; each chain can have its own template in a slot."""
    if preset.model.template is None:
        return 0
    masks = model_input(features, preset).features.template_all_atom_masks[: preset.sampling.max_templates]
    return int(masks.any((1, 2)).sum())
