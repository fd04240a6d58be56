"""Fold one target: make its features, then each missing prediction, then what follows on all of them."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from tqdm import tqdm

from data_pipeline.complexes.chain_sequences import CHAIN_SEPARATOR
from data_pipeline.complexes.feature_file import load_features
from data_pipeline.complexes.feature_set import TargetFeatures, alignment_of
from data_pipeline.features.assembly import ComplexFeatures
from helixfold.execution.environment import device_capability, device_name, software_versions
from helixfold.execution.slabs import Slabs
from helixfold.execution.stages import Stages
from helixfold.execution.whole import Whole
from helixfold.inference import fold_planned
from helixfold.model.update import Executor
from helixfold.model_input import model_input
from helixfold.planning.executors import AvailableMemory, Plan
from helixfold.planning.memory import FeatureRows
from helixfold.predict import memory_plan
from helixfold.predict.jobs import Job, RequestedPrediction, RunSettings, features_digest
from helixfold.predict.postprocess import PredictedTarget, postprocess
from helixfold.predict.record import model_origin
from helixfold.predict.resume import ResumedTarget, resume_target
from helixfold.predict.search import FEATURES_FILE
from helixfold.predict.search_plan import recorded_searches
from helixfold.prediction import Prediction
from helixfold.presets import Preset
from helixfold.report.plots import write_alignment
from helixfold.write.origin import templates_in
from helixfold.write.provenance import PredictionProvenance
from helixfold.write.ranking import FinishedPrediction
from helixfold.write.results import write_prediction, write_timings


@dataclass(frozen=True, kw_only=True)
class FoldRequest:
    """A prediction that a target needs next, and all that it is made from."""

    requested: RequestedPrediction
    plan: Plan
    features: TargetFeatures
    stages: Stages
    spill: Path
    initial_guess: Float[np.ndarray, "r 37 3"] | None = None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A prediction that was requested, how it was computed, and what was measured meanwhile."""

    prediction: Prediction
    executor: str
    slab_budget: int | None = None  # bytes that temporaries of a slab might take; None: the executor's own choice
    backends: Mapping[str, tuple[str, ...]]  # by operator
    targets_at_once: int = 1
    measurements: Mapping[str, object] = field(default_factory=dict)  # for timings.json


TargetSteps = Generator[FoldRequest, Answer, list[FinishedPrediction]]


def fold_target(
    job: Job, directory: Path, settings: RunSettings, stages: Stages, *, overwrite: bool = False
) -> list[FinishedPrediction]:
    """Make what is missing of one target in its directory; return its predictions on the first rank, best first.

    All ranks of a group call this. The first one makes the features and writes all files; an error on any rank is
    raised on all.
    """
    steps = target_steps(job, directory, settings, stages, overwrite=overwrite)
    answer: Answer | None = None
    while True:
        try:
            request = next(steps) if answer is None else steps.send(answer)
        except StopIteration as end:
            return list(end.value)
        answer = fold_request(request, settings)


def target_steps(
    job: Job,
    directory: Path,
    settings: RunSettings,
    stages: Stages,
    *,
    overwrite: bool = False,
    shows_bar: bool = True,
) -> TargetSteps:
    """Do everything for a target as `fold_target` does, but yield each prediction that is to be made.

    The answer to a request is sent, and the last one is followed by the return of the target's predictions.
    """
    group, is_leader = settings.workers.group, settings.workers.is_leader
    resumed = group.run_together(
        lambda: resume_target(job, directory, settings, overwrite=overwrite) if is_leader else None
    )
    missing = _missing(resumed, settings)
    if resumed is not None:
        stages.finished += resumed.stages
    with stages.stage("features"):
        made = group.run_together(lambda: job.prepare(directory, settings) if is_leader else None)
        features = group.run_together(lambda: load_features(directory / FEATURES_FILE) if made is None else made)
        depth = group.run_together(lambda: write_alignment(directory, alignment_of(features)) if is_leader else None)
    models: dict[str, object] = {} if resumed is None else resumed.models
    facts = {**_facts(job, features, settings), "models": models}
    digest = features_digest(features) if is_leader else ""
    same: dict[str, Answer] = {}  # of models whose input is the same with every seed

    def write_times(prediction: Prediction) -> None:
        write_timings(directory, {**facts, "stages": stages.table(running=True)}, notes=prediction.notes)

    planned = _planned(missing, features, directory, settings)
    hides_bar = not shows_bar or len(planned) == 1 or settings.no_bars
    for requested, plan in tqdm(planned, desc="predictions", unit="prediction", leave=False, disable=hides_bar):
        spill = settings.memory.spill_directory or directory
        if (remark := memory_plan.remark(plan, requested.name, spill)) is not None:
            settings.say(f"{job.name}: {remark}")
        model = requested.model.preset
        if model.name in same:
            settings.say(f"{job.name}: {requested.name}: its input does not depend on the seed; not folded again")
            answer = same[model.name]
        else:
            answer = yield FoldRequest(
                requested=requested,
                plan=plan,
                features=features,
                stages=stages,
                spill=spill,
                initial_guess=job.guessed_positions(features),
            )
            models[requested.name] = {"executor": answer.executor, **answer.measurements}
            if not _depends_on_seed(model, features, settings):
                same[model.name] = answer
        prediction = replace(answer.prediction, model=requested.name, seed=requested.seed)

        def write(answer: Answer = answer, prediction: Prediction = prediction, model: Preset = model) -> None:
            # A prediction whose files are there is not made again: what is said of it comes first, and then the time
            # of writing it.
            assert resumed is not None
            templates = _templates_read(model, features)
            made = _provenance(answer, job, settings, features=digest, templates=templates)
            resumed.add_provenance(directory, prediction.model, made)
            write_times(prediction)
            origin = model_origin(resumed.record, prediction.model, features)
            no_pdb_file = write_prediction(directory, prediction, depth, name=job.title, origin=origin)
            if no_pdb_file is not None:
                settings.say(f"{job.name}: {prediction.model}: there is no PDB file: {no_pdb_file}")
            write_times(prediction)

        with stages.stage(f"{requested.name}: writing"):
            group.run_together(write if is_leader else lambda: None)
        score = settings.options.stop_at_score
        if group.all_gather(score is not None and bool(prediction.plddt.mean() >= score))[0]:
            break
    if resumed is None:
        group.run_together(lambda: None)
        return []
    target = PredictedTarget(
        directory=directory,
        title=job.title,
        names=tuple(resumed.record.finished(directory, job.residues)),
        settings=settings,
        facts=facts,
        stages=stages,
        say=lambda line: settings.say(f"{job.name}: {line}"),
    )
    return group.run_together(lambda: postprocess(target))


def _missing(resumed: ResumedTarget | None, settings: RunSettings) -> list[RequestedPrediction]:
    """Return the predictions to make on every rank of the group, from what its first rank knows."""
    own = None
    if resumed is not None:
        own = [(prediction.name, prediction.model.preset.name, prediction.seed) for prediction in resumed.missing]
    names = {(model, seed): name for name, model, seed in settings.workers.group.all_gather(own)[0]}
    keys = [((prediction.model.preset.name, prediction.seed), prediction) for prediction in settings.predictions]
    return [replace(prediction, name=names[key]) for key, prediction in keys if key in names]


def _facts(job: Job, features: TargetFeatures, settings: RunSettings) -> dict[str, object]:
    """Return what timings.json says beside the times."""
    alignment = alignment_of(features)
    templates, chains = len(alignment.template_aatype), dict[str, object]()
    if isinstance(alignment, ComplexFeatures):
        # Slots that hold a template of any chain.
        templates = int(alignment.template_all_atom_masks.any((1, 2)).sum())
        chains["chains"] = len(alignment.chain_names)
    return {
        "residues": job.residues,
        **chains,
        "msa_rows": len(alignment.msa),
        "templates": templates if settings.reads_templates else 0,
        "device": str(settings.device),
        "ranks": settings.workers.group.size,
        "threads": torch.get_num_threads(),
        "dtype": settings.options.dtype,
        "torch": torch.__version__,
    }


def _depends_on_seed(model: Preset, features: TargetFeatures, settings: RunSettings) -> bool:
    """Return whether a model predicts something else with another seed."""
    rows = len(model_input(features, model).features.msa)
    return settings.options.dropout or model.sampling.depends_on_chance(rows)


def _templates_read(model: Preset, features: TargetFeatures) -> tuple[str, ...]:
    """Return the labels of the templates that a model reads; one of single chains reads none of several chains."""
    by_gap = model.model.method == "monomer" and CHAIN_SEPARATOR in features.sequence
    if model.model.template is None or by_gap:
        return ()
    return tuple(each.label for each in templates_in(alignment_of(features), model.sampling.max_templates))


def _provenance(
    answer: Answer, job: Job, settings: RunSettings, *, features: str, templates: tuple[str, ...]
) -> PredictionProvenance:
    """Return what made a prediction of a target from features of the given digest."""
    device = settings.device
    return PredictionProvenance(
        software=software_versions(device.type),
        device={"kind": device.type, "name": device_name(device), "capability": device_capability(device)},
        threads=torch.get_num_threads(),
        ranks=settings.workers.group.size,
        targets_at_once=answer.targets_at_once,
        executor=answer.executor,
        slab_budget=answer.slab_budget,
        backends=answer.backends,
        features=features,
        searches=() if job.target is None else recorded_searches(job.target, settings.searches),
        templates=templates,
        command=settings.command,
    )


def _planned(
    missing: Sequence[RequestedPrediction], features: TargetFeatures, directory: Path, settings: RunSettings
) -> list[tuple[RequestedPrediction, Plan]]:
    """Return the plan of each prediction; raise `NotEnoughMemoryError`, before any is made, if one does not fit."""
    own = settings.memory.available(settings.device, directory)
    everyone = settings.workers.group.all_gather([own.memory, own.spill])
    available = AvailableMemory(memory=min(memory for memory, _ in everyone), spill=min(spill for _, spill in everyone))
    planned = []
    for requested in missing:
        rows = FeatureRows.of(model_input(features, requested.model.preset).features)
        planned.append((requested, settings.plan(requested.model, rows, available)))
    for requested, plan in planned:
        settings.memory.check(plan, requested.name)
    return planned


def fold_request(request: FoldRequest, settings: RunSettings) -> Answer:
    """Make a prediction that a target needs."""
    requested = request.requested

    def carry_out(within: Whole | Slabs, action: Callable[[Executor], Prediction]) -> Prediction:
        with shown_progress(requested, settings):
            return settings.workers.run_on_group(within, action)

    made = fold_planned(
        requested.model,
        request.plan,
        request.features,
        replace(settings.options, seed=requested.seed),
        stages=request.stages,
        spill=request.spill,
        name=requested.name,
        say=lambda line: settings.say(f"{request.features.domain_name}: {requested.name}: {line}"),
        carry_out=carry_out,
        passes=settings.passes,
        initial_guess=request.initial_guess,
    )
    return Answer(
        prediction=made.prediction,
        executor=made.executor,
        slab_budget=made.slab_budget,
        backends=made.backends,
        measurements={
            "replayed_passes": made.replayed_passes,
            "predicted_peak_gib": round(made.predicted_peak / 2**30, 3),
            "measured_peak_gib": round(made.measured_peak / 2**30, 3),
        },
    )


@contextmanager
def shown_progress(requested: RequestedPrediction, settings: RunSettings) -> Iterator[None]:
    """Show a bar of passes that moves with every block: on a CPU, one pass of a large model takes minutes."""
    network = requested.model.network
    blocks = [*network.extra_msa_stack.blocks, *network.evoformer.blocks]
    block_share = 1 / (len(blocks) * settings.options.num_ensemble)
    layout = "{desc}: {percentage:3.0f}%|{bar}| {n:.2f}/{total} [{elapsed}<{remaining}]"
    passes = settings.options.recycles(requested.model.preset) + 1
    description, disable = f"{requested.name} passes", settings.no_bars
    with (
        tqdm(total=passes, desc=description, bar_format=layout, leave=False, disable=disable) as bar,
        ExitStack() as stack,
    ):

        def block_done(*_: object) -> None:
            bar.update(block_share)

        for block in blocks:
            stack.enter_context(block.register_forward_hook(block_done))
        stack.enter_context(settings.passes.reporting(bar.update))
        yield
