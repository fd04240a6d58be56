"""Fold a lot of targets: make their features, then the predictions that are missing of each, and finish each target.

On a GPU, passes of short chains wait for the host to launch their operators, and take as long for many chains as for
one: targets of a lot that need the same model share passes. Each keeps its own files, its own end of recycling and its
own failure.
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
from helixfold.apps.predict import memory_plan
from helixfold.apps.predict.jobs import Job
from helixfold.apps.predict.packing import restore
from helixfold.apps.predict.postprocess import PredictedTarget, postprocess
from helixfold.apps.predict.record import model_origin
from helixfold.apps.predict.resume import resume_target
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
from helixfold.report.plot_files import write_alignment, write_coverage
from helixfold.report.plots import import_matplotlib
from helixfold.results.file_table import FEATURES
from helixfold.results.prediction import write_prediction, write_timings

# The most targets of a lot on a GPU.
AT_ONCE = 64
# Lengths of targets that are folded together round up to the same multiple of this.
_LENGTH_STEP = 32
# Predictions of a target up to which timings.json is written for each, and the seconds between for more of them.
_FEW, _SECONDS_BETWEEN_TIMES = 50, 10
# Residues of a target from which on the plot of its alignment is written before the first prediction.
_LONG = 256
# The predictions of a target, best first, or the error by which it failed.
Outcome = list[Prediction] | Exception


def sizes_of_lots(lengths: Sequence[int | None], settings: RunSettings) -> list[int]:
    """Return how many of the targets with these numbers of residues, in their order, are folded together each time.

    None stands for a target that is folded alone, as complexes are. Models of complexes and groups of ranks that share
    targets fold one at a time, and every process gets some of the targets.
    """
    most = settings.options.targets_at_once
    if most is None:
        most = AT_ONCE if properties_of(settings.device).has_own_memory else 1
    # A model of complexes averages over all template slots, empty ones included; padding would count as well.
    has_multimer = any(model.preset.model.method == "multimer" for model in settings.models)
    if settings.workers.group.size > 1 or has_multimer or settings.folding.dropout or settings.folding.save_passes:
        most = 1
    most = min(most, ceil(len(lengths) / settings.workers.mesh.layout.dp))
    sizes: list[int] = []
    before = 0
    # A target that is to be alone counts as one that is too long to be folded with others.
    for length in (LAUNCH_BOUND_RESIDUES + 1 if length is None else length for length in lengths):
        step = ceil(length / _LENGTH_STEP)
        if sizes and step == before and length <= LAUNCH_BOUND_RESIDUES and sizes[-1] < most:
            sizes[-1] += 1
        else:
            sizes.append(1)
        before = step
    return sizes


def fold_lot(targets: Sequence[tuple[Job, Stages]], settings: RunSettings) -> list[Outcome]:
    """Make what is missing of each target in its directory, and return how each ended; several share passes.

    The first rank of a group calls this, and the others `serve_folds`. The failure of one target concerns no other.
    """
    lot = [TargetUnderWay(job, settings, stages) for job, stages in targets]
    for target in lot:
        with target.failing_alone():
            target.begin()
    count = sum(len(target.missing) for target in lot)
    hides_bar = len(lot) > 1 or count == 1 or settings.no_bars
    with tqdm(total=count, desc="predictions", unit="prediction", leave=False, disable=hides_bar) as bar:
        while alike := _alike(lot):
            together = _fold_together(alike, settings) if len(alike) > 1 else None
            for place, target in enumerate(alike):
                with target.failing_alone():
                    prediction = target.known_prediction() if together is None else together[place]
                    if prediction is None:
                        requested, plan = target.missing[0]
                        prediction = fold_planned(
                            requested.model,
                            target.announced(),
                            plan,
                            replace(settings.folding, seed=requested.seed),
                            stages=target.stages,
                            spill=target.spill,
                            say=target.say_of_next,
                            runner=settings.iteration_runner,
                            workers=settings.workers,
                            hides_bar=settings.no_bars,
                        )
                    target.write(prediction)
                bar.update()
    for target in lot:
        if not isinstance(target.outcome, Exception):
            with target.failing_alone():
                target.outcome = target.finish()
    return [target.outcome for target in lot]


class TargetUnderWay:
    """A target under way in its directory, with the predictions that are `missing`, the next one first."""

    def __init__(self, job: Job, settings: RunSettings, stages: Stages) -> None:
        self.job, self.settings, self.stages = job, settings, stages
        self.directory = directory = settings.options.output / job.name
        self.spill = settings.memory.spill_directory or directory
        self.missing: deque[tuple[PredictionRequest, PredictionEstimate]] = deque()
        self.outcome: Outcome = []
        self._same: dict[tuple[str, str], Prediction] = {}  # by model and alignment, where seeds make no difference
        self._next_times = 0.0

    @contextmanager
    def failing_alone(self) -> Iterator[None]:
        """End the target if the block fails."""
        try:
            yield
        except Exception as error:  # a mistake of ours in one target must not end a night's batch either
            self.outcome = error
            self.missing.clear()

    def begin(self) -> None:
        """Make the features, and plan the predictions that are missing.

        Raise `NotEnoughMemoryError`, before any is made, if one does not fit.
        """
        job, directory, settings, stages = self.job, self.directory, self.settings, self.stages
        restore(directory)
        self._resumed = resumed = resume_target(job, directory, settings)
        with stages.stage("features"):
            self.features = features = job.prepare(directory, settings, resumed.templates_read)
            self._depth = write_alignment(directory, alignment_of(features))
            found = find_variants(settings.variants, job, features, directory)
        resumed.request(directory, settings, found)
        stages.finished[:0] = resumed.stages
        self._models = resumed.models
        self._facts = {**_facts(job, features, settings), "models": resumed.models}
        self._digest = features_digest(features)
        settings.workers.group.send({"target": job.name})
        with settings.workers.group.together():
            self._guess = job.guessed_positions(features)
        plans = _plans(resumed.missing, features, directory, settings)
        for requested, plan in zip(resumed.missing, plans, strict=True):
            settings.memory.check(plan, requested.name)
        self.missing += zip(resumed.missing, plans, strict=True)
        self._seconds_between_times = 0 if len(plans) <= _FEW else _SECONDS_BETWEEN_TIMES
        if job.residues > _LONG:  # a prediction may take hours
            self._draw_coverage()
        elif self.missing and not settings.options.slim:
            threading.Thread(target=import_matplotlib).start()  # while the network runs

    @property
    def folding_target(self) -> FoldingTarget:
        """Return what the next prediction is made from."""
        requested, _ = self.missing[0]
        features = requested.alignment.of(self.features)
        return self.job.folding_target(features, requested.name, self._guess)

    @property
    def kind(self) -> tuple[object, ...]:
        """Return a key that is equal for targets whose next predictions can share passes."""
        requested, plan = self.missing[0]
        size, model = plan.size, requested.model.preset
        if (model.name, requested.alignment.name) in self._same:
            return (id(self),)
        # Padding takes as much time as what it stands beside: rows are at most doubled.
        rows = size.msa_rows.bit_length(), size.extra_rows.bit_length(), size.templates > 0
        return model.name, model.sampling, requested.seed, plan.executor, ceil(size.residues / _LENGTH_STEP), rows

    def known_prediction(self) -> Prediction | None:
        """Return the next prediction if an earlier one is the same, as its input does not depend on the seed."""
        requested, _ = self.missing[0]
        known = self._same.get((requested.model.preset.name, requested.alignment.name))
        if known is not None:
            self.say_of_next("its input does not depend on the seed; not folded again")
        return known

    def announced(self) -> FoldingTarget:
        """Announce the next prediction, to other ranks and, if it spills, to the user; return its target."""
        (requested, plan), settings = self.missing[0], self.settings
        if (remark := memory_plan.remark(plan, requested.name, self.spill)) is not None:
            settings.say(f"{self.job.name}: {remark}")
        settings.workers.group.send({"prediction": requested.key, "name": requested.name})
        with settings.workers.group.together():
            return self.folding_target

    def say_of_next(self, line: str) -> None:
        """Print a line about the next prediction."""
        self.settings.say(f"{self.job.name}: {self.missing[0][0].name}: {line}")

    def write(self, prediction: Prediction) -> None:
        """Write the next prediction.

        Its record is written before its files, because a prediction whose files exist is not made again.
        """
        (requested, _), settings, resumed = self.missing.popleft(), self.settings, self._resumed
        preset, alignment = requested.model.preset, requested.alignment
        if (preset.name, alignment.name) not in self._same:
            read = _rows_read(preset, alignment.of(self.features))
            self._models[requested.name] = {**prediction.measurements, "msa_rows_read": read}
            dropout = settings.folding.dropout
            if settings.num_seeds > 1 and not depends_on_seed(alignment.of(self.features), preset, dropout=dropout):
                self._same[preset.name, alignment.name] = prediction
        prediction = replace(
            prediction,
            name=requested.name,
            identity=requested.identity,
            provenance=self._provenance(prediction, preset),
        )
        with self.stages.stage(f"{requested.name}: writing"):
            resumed.add(self.directory, prediction)
            self._write_times(prediction)
            depth = self._depth
            if alignment.rows is not None:
                depth = alignment_depth(alignment_of(alignment.of(self.features)).msa)
            no_pdb_file = write_prediction(
                self.directory,
                prediction,
                depth,
                name=self.job.title,
                origin=model_origin(resumed.record, requested.name, self.features),
                representations_format=settings.options.representations_format,
            )
            if no_pdb_file is not None:
                settings.say(f"{self.job.name}: {requested.name}: there is no PDB file: {no_pdb_file}")
            self._write_times(prediction)
        score = settings.folding.stop_at_score
        if score is not None and prediction.plddt.mean() >= score:
            self.missing.clear()

    def finish(self) -> list[Prediction]:
        """Do what follows on all predictions, and return them, best first."""
        if self.job.residues <= _LONG:
            self._draw_coverage()
        return postprocess(
            PredictedTarget(
                directory=self.directory,
                title=self.job.title,
                names=tuple(self._resumed.record.finished(self.directory, self.job.residues)),
                settings=self.settings,
                facts=self._facts,
                stages=self.stages,
                say=lambda line: self.settings.say(f"{self.job.name}: {line}"),
            )
        )

    def _draw_coverage(self) -> None:
        if not self.settings.options.slim:
            write_coverage(self.directory, alignment_of(self.features), self._depth)

    def _write_times(self, prediction: Prediction) -> None:
        # The file has lines for every prediction: it is not written again for each of thousands.
        if time.monotonic() >= self._next_times:
            timings = {**self._facts, "stages": self.stages.table(running=True)}
            write_timings(self.directory, timings, notes=prediction.notes)
            self._next_times = time.monotonic() + self._seconds_between_times

    def _provenance(self, prediction: Prediction, preset: Preset) -> Provenance:
        """Return what made a prediction of the target by the model of a preset."""
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


def _alike(lot: Sequence[TargetUnderWay]) -> list[TargetUnderWay]:
    """Return the first target with a missing prediction, and those whose next one can be made in the same passes.

    They need the same model and seed and have about as many residues and rows. As many are returned as fit into memory.
    """
    waiting = [target for target in lot if target.missing]
    found, plans = waiting[:1], [target.missing[0][1] for target in waiting[:1]]
    for target in waiting[1:]:
        if target.kind == found[0].kind:
            plans.append(target.missing[0][1])
            if not fit_together(plans):
                break
            found.append(target)
    return found


def _fold_together(alike: Sequence[TargetUnderWay], settings: RunSettings) -> list[Prediction] | None:
    """Return the next predictions of targets that are alike, made in the same passes; None if that failed."""
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
        hides_bar=settings.no_bars,
    )


def serve_folds(jobs: Sequence[Job], settings: RunSettings) -> None:
    """Take part in the predictions that the first rank of this group makes, until it ends."""
    group, by_name = settings.workers.group, {job.name: job for job in jobs}
    while (asked := group.receive()) is not None:
        with suppress(Exception):  # the first rank fails as well, and reports it
            if "target" in asked:
                job, directory = by_name[asked["target"]], settings.options.output / asked["target"]
                with group.together():
                    features = load_features(FEATURES.path(directory))
                    guess = job.guessed_positions(features)
                    found = find_variants(settings.variants, job, features, None)
                    predictions = {each.key: each for each in settings.predictions(found.variants)}
                plans = _plans([*predictions.values()], features, directory, settings)
                continue
            with group.together():
                requested = predictions[tuple(asked["prediction"])]
                plan = plans[list(predictions).index(requested.key)]
                varied = requested.alignment.of(features)
                target = job.folding_target(varied, asked["name"], guess)
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
    """Return how predictions are made in the memory that every rank of the group has; all of them call this."""
    group = settings.workers.group
    own = settings.memory.available(settings.device, directory)
    everyone = group.all_gather([own.memory, own.spill])
    memory, spill = (min(each) for each in zip(*everyone, strict=True))
    available = replace(own, memory=memory, spill=spill)
    # No variant of the alignment has more rows than the whole.
    plans: dict[tuple[str, SamplingConfig], PredictionEstimate] = {}
    for each in requested:
        preset = each.model.preset
        if (preset.name, preset.sampling) not in plans:
            rows = FeatureRows.of(model_input(features, preset).features)
            plans[preset.name, preset.sampling] = settings.plan(each.model, rows, available)
    return [plans[each.model.preset.name, each.model.preset.sampling] for each in requested]


def _facts(job: Job, features: TargetFeatures, settings: RunSettings) -> dict[str, object]:
    """Return the facts that timings.json holds next to the times."""
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
    """Return the number of template slots that a model reads; in a slot, each chain can have its own template."""
    if preset.model.template is None:
        return 0
    masks = model_input(features, preset).features.template_all_atom_masks[: preset.sampling.max_templates]
    return int(masks.any((1, 2)).sum())


def _rows_read(model: Preset, features: TargetFeatures) -> int:
    """Return how many MSA rows a model reads in each recycling iteration."""
    most = model.sampling.max_msa_clusters + model.sampling.max_extra_msa
    return min(len(model_input(features, model).features.msa), most)
