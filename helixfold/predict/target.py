"""Fold one target: make its features, then each missing prediction, then what follows on all of them."""

import threading
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from tqdm import tqdm

from data_pipeline.complexes.feature_file import load_features
from data_pipeline.complexes.feature_set import TargetFeatures, alignment_of
from data_pipeline.features.alignment_depth import AlignmentDepth, alignment_depth
from data_pipeline.features.assembly import ComplexFeatures
from data_pipeline.transforms.sample import SamplingConfig
from helixfold.execution.environment import device_capability, device_name, software_versions
from helixfold.execution.stages import Stages
from helixfold.folding.model_input import model_input
from helixfold.folding.planned import fold_planned
from helixfold.folding.prediction import Prediction
from helixfold.folding.recycling import FoldingTarget
from helixfold.folding.templates import templates_read
from helixfold.planning.executors import AvailableMemory, Plan
from helixfold.planning.memory import FeatureRows
from helixfold.predict import memory_plan
from helixfold.predict.jobs import Job, RequestedPrediction, RunSettings, features_digest
from helixfold.predict.postprocess import PredictedTarget, postprocess
from helixfold.predict.record import model_origin
from helixfold.predict.resume import ResumedTarget, resume_target
from helixfold.predict.search import FEATURES_FILE
from helixfold.predict.search_plan import recorded_searches
from helixfold.predict.variants import TargetVariants, find_variants
from helixfold.presets import Preset
from helixfold.report.plot_files import write_alignment, write_coverage
from helixfold.report.plots import import_matplotlib
from helixfold.write.provenance import PredictionProvenance
from helixfold.write.results import FinishedPrediction, write_prediction, write_timings


@dataclass(frozen=True, kw_only=True)
class FoldRequest:
    """A prediction that a target needs next, and all that it is made from."""

    requested: RequestedPrediction
    target: FoldingTarget
    plan: Plan
    stages: Stages
    spill: Path


TargetSteps = Generator[FoldRequest, Prediction, list[FinishedPrediction]]
# Predictions of a target up to which timings.json is written for each, and the seconds between for more of them.
_FEW, _SECONDS_BETWEEN_TIMES = 50, 10
# Residues of a target from which on the plot of its alignment is written before the first prediction.
_LONG = 256


def target_steps(
    job: Job,
    directory: Path,
    settings: RunSettings,
    stages: Stages,
    *,
    overwrite: bool = False,
    shows_bar: bool = True,
) -> TargetSteps:
    """Do everything for a target in its directory, and yield each prediction that is to be made.

    All ranks of a group call this. The first one makes the features and writes all files; an error on any rank is
    raised on all.

    The prediction that a request asks for is sent. The target's predictions are returned.
    """
    group, is_leader = settings.workers.group, settings.workers.is_leader
    resumed = group.run_together(
        lambda: resume_target(job, directory, settings, overwrite=overwrite) if is_leader else None
    )
    with stages.stage("features"):
        made = group.run_together(
            lambda: None if resumed is None else job.prepare(directory, settings, resumed.templates_read)
        )
        features = group.run_together(lambda: load_features(directory / FEATURES_FILE) if made is None else made)
        depth = group.run_together(lambda: write_alignment(directory, alignment_of(features)) if is_leader else None)
        found = group.run_together(
            lambda: find_variants(settings.variants, job, features, directory if is_leader else None)
        )
    group.run_together(lambda: resumed.request(directory, settings, found) if resumed is not None else None)
    missing = _missing(resumed, settings, found)
    if resumed is not None:
        stages.finished[:0] = resumed.stages
    models: dict[str, object] = {} if resumed is None else resumed.models
    facts = {**_facts(job, features, settings), "models": models}
    same: dict[tuple[str, str], Prediction] = {}  # by model and alignment, where the input is the same with every seed

    planned = _planned(missing, features, directory, settings)
    writer = None
    if resumed is not None:
        writer = PredictionWriter(
            resumed, directory, settings, features=features, depth=depth, stages=stages, facts=facts, count=len(planned)
        )
    guess = job.guessed_positions(features) if planned else None
    draw_coverage = partial(_draw_coverage, directory, features, depth, settings)
    if job.residues > _LONG:  # a prediction may take hours
        group.run_together(draw_coverage)
    elif planned and depth is not None and not settings.is_slim:
        threading.Thread(target=import_matplotlib).start()  # while the network runs
    hides_bar = not shows_bar or len(planned) == 1 or settings.no_bars
    for requested, plan in tqdm(planned, desc="predictions", unit="prediction", leave=False, disable=hides_bar):
        spill = settings.memory.spill_directory or directory
        if (remark := memory_plan.remark(plan, requested.name, spill)) is not None:
            settings.say(f"{job.name}: {remark}")
        model, alignment = requested.model.preset, requested.alignment
        if (model.name, alignment.name) in same:
            settings.say(f"{job.name}: {requested.name}: its input does not depend on the seed; not folded again")
            prediction = same[model.name, alignment.name]
        else:
            varied = alignment.of(features)
            folded = FoldingTarget(features=varied, name=requested.name, initial_guess=guess)
            prediction = yield FoldRequest(requested=requested, target=folded, plan=plan, stages=stages, spill=spill)
            assert prediction.computation is not None
            computation = prediction.computation
            models[requested.name] = {"executor": computation.executor, **computation.measurements}
            if settings.num_seeds > 1 and not _depends_on_seed(model, varied, settings):
                same[model.name, alignment.name] = prediction
            del varied, folded
        prediction = replace(prediction, model=requested.name, seed=requested.seed)

        with stages.stage(f"{requested.name}: writing"):
            group.run_together(partial(writer.write, requested, prediction) if writer else lambda: None)
        if group.all_gather(_is_enough(prediction, settings))[0]:
            break
    if job.residues <= _LONG:
        group.run_together(draw_coverage)
    return group.run_together(partial(_postprocess, resumed, directory, settings, facts, stages))


def _draw_coverage(
    directory: Path, features: TargetFeatures, depth: AlignmentDepth | None, settings: RunSettings
) -> None:
    """Write the plot of the alignment's coverage, whose `depth` only the first rank of a group knows."""
    if depth is not None and not settings.is_slim:
        write_coverage(directory, alignment_of(features), depth)


def _postprocess(
    resumed: ResumedTarget | None,
    directory: Path,
    settings: RunSettings,
    facts: Mapping[str, object],
    stages: Stages,
) -> list[FinishedPrediction]:
    """Do what follows on all predictions of a target, and return them; only the first rank of a group does it."""
    if resumed is None:
        return []
    job = resumed.job
    return postprocess(
        PredictedTarget(
            directory=directory,
            title=job.title,
            names=tuple(resumed.record.finished(directory, job.residues)),
            settings=settings,
            facts=facts,
            stages=stages,
            say=lambda line: settings.say(f"{job.name}: {line}"),
        )
    )


def _is_enough(prediction: Prediction, settings: RunSettings) -> bool:
    score = settings.options.stop_at_score
    return score is not None and bool(prediction.plddt.mean() >= score)


class PredictionWriter:
    """Writes the files of each prediction of a target into its directory, and before them what made it.

    `depth` is that of the whole alignment, `facts` are what timings.json says beside the times, and `count` is the
    number of predictions that are to be made.
    """

    def __init__(
        self,
        resumed: ResumedTarget,
        directory: Path,
        settings: RunSettings,
        *,
        features: TargetFeatures,
        depth: AlignmentDepth | None,
        stages: Stages,
        facts: Mapping[str, object],
        count: int,
    ) -> None:
        self._resumed, self._directory, self._settings = resumed, directory, settings
        self._features, self._depth, self._stages, self._facts = features, depth, stages, facts
        self._digest = features_digest(features)
        self._seconds_between = 0 if count <= _FEW else _SECONDS_BETWEEN_TIMES
        self._next_times = 0.0

    def write(self, requested: RequestedPrediction, prediction: Prediction) -> None:
        """Write a prediction that was requested.

        A prediction whose files are there is not made again: what is said of it comes first, and then the time of
        writing it.
        """
        resumed, settings, features = self._resumed, self._settings, self._features
        resumed.add_provenance(self._directory, prediction.model, self._provenance(prediction, requested.model.preset))
        self._write_times(prediction)
        depth = self._depth
        if requested.alignment.rows is not None:
            depth = alignment_depth(alignment_of(requested.alignment.of(features)).msa)
        no_pdb_file = write_prediction(
            self._directory,
            prediction,
            depth,
            name=resumed.job.title,
            origin=model_origin(resumed.record, prediction.model, features),
            representations_format=settings.representations_format,
        )
        if no_pdb_file is not None:
            settings.say(f"{resumed.job.name}: {prediction.model}: there is no PDB file: {no_pdb_file}")
        self._write_times(prediction)

    def _write_times(self, prediction: Prediction) -> None:
        # The file has lines for every prediction: it is not written again for each of thousands.
        if time.monotonic() >= self._next_times:
            timings = {**self._facts, "stages": self._stages.table(running=True)}
            write_timings(self._directory, timings, notes=prediction.notes)
            self._next_times = time.monotonic() + self._seconds_between

    def _provenance(self, prediction: Prediction, preset: Preset) -> PredictionProvenance:
        """Return what made a prediction of the target by the model of a preset."""
        settings, target, computation = self._settings, self._resumed.job.target, prediction.computation
        assert computation is not None
        device = settings.device
        return PredictionProvenance(
            software=software_versions(device.type),
            device={"kind": device.type, "name": device_name(device), "capability": device_capability(device)},
            threads=computation.threads or torch.get_num_threads(),
            ranks=settings.workers.group.size,
            targets_at_once=computation.targets_at_once,
            executor=computation.executor,
            slab_budget=computation.slab_budget,
            backends=computation.backends,
            features=self._digest,
            searches=() if target is None else recorded_searches(target, settings.searches),
            templates=tuple(each.label for each in templates_read(self._features, preset)),
            command=settings.command,
        )


def _missing(resumed: ResumedTarget | None, settings: RunSettings, found: TargetVariants) -> list[RequestedPrediction]:
    """Return the predictions to make on every rank of the group, from what its first rank knows."""
    own = None if resumed is None else [(prediction.name, *prediction.key) for prediction in resumed.missing]
    names = {tuple(key): name for name, *key in settings.workers.group.all_gather(own)[0]}
    requested = settings.predictions(found.variants)
    return [replace(each, name=names[each.key]) for each in requested if each.key in names]


def _facts(job: Job, features: TargetFeatures, settings: RunSettings) -> dict[str, object]:
    """Return what timings.json says beside the times."""
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
        "dtype": settings.options.dtype,
        "torch": torch.__version__,
    }


def _template_count(features: TargetFeatures, preset: Preset) -> int:
    """Return the number of template slots that a model reads; in a slot, each chain can have its own template."""
    if preset.model.template is None:
        return 0
    masks = model_input(features, preset).features.template_all_atom_masks[: preset.sampling.max_templates]
    return int(masks.any((1, 2)).sum())


def _depends_on_seed(model: Preset, features: TargetFeatures, settings: RunSettings) -> bool:
    """Return whether a model predicts something else with another seed."""
    rows = len(model_input(features, model).features.msa)
    return settings.options.dropout or model.sampling.depends_on_chance(rows)


def _planned(
    missing: Sequence[RequestedPrediction], features: TargetFeatures, directory: Path, settings: RunSettings
) -> list[tuple[RequestedPrediction, Plan]]:
    """Return the plan of each prediction; raise `NotEnoughMemoryError`, before any is made, if one does not fit."""
    own = settings.memory.available(settings.device, directory)
    everyone = settings.workers.group.all_gather([own.memory, own.spill])
    available = AvailableMemory(memory=min(memory for memory, _ in everyone), spill=min(spill for _, spill in everyone))
    plans: dict[tuple[str, SamplingConfig], Plan] = {}  # no variant of the alignment has more rows than the whole
    for requested in missing:
        preset = requested.model.preset
        if (preset.name, preset.sampling) not in plans:
            rows = FeatureRows.of(model_input(features, preset).features)
            plans[preset.name, preset.sampling] = plan = settings.plan(requested.model, rows, available)
            settings.memory.check(plan, requested.name)
    return [(each, plans[each.model.preset.name, each.model.preset.sampling]) for each in missing]


def fold_request(request: FoldRequest, settings: RunSettings) -> Prediction:
    """Make a prediction that a target needs."""
    requested = request.requested
    return fold_planned(
        requested.model,
        request.target,
        request.plan,
        replace(settings.options, seed=requested.seed),
        stages=request.stages,
        spill=request.spill,
        say=lambda line: settings.say(f"{request.target.features.domain_name}: {requested.name}: {line}"),
        passes=settings.passes,
        workers=settings.workers,
        hides_bar=settings.no_bars,
    )
