"""Folding one target: its features, then every prediction that is not there yet, then what follows on all of them."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from tqdm import tqdm

from data_pipeline.features.schema import Features
from helixfold.execution.slabs import Slabs
from helixfold.execution.stages import Stages, peak_memory, reset_peak_memory
from helixfold.execution.whole import Whole
from helixfold.inference import fold
from helixfold.planning.executors import NotEnoughMemoryError, Plan, Room, release, stepping_down
from helixfold.predict import memory_plan
from helixfold.predict.jobs import Job, Method, Wanted
from helixfold.predict.memory_plan import Rows
from helixfold.predict.postprocess import Target, finish
from helixfold.predict.resume import Begun, begin
from helixfold.predict.search import FEATURES_FILE
from helixfold.prediction import Prediction
from helixfold.report.alignment import write_alignment
from helixfold.write.ranking import Finished
from helixfold.write.results import write_prediction, write_timings


def fold_target(
    job: Job, directory: Path, method: Method, stages: Stages, *, overwrite: bool = False
) -> list[Finished]:
    """Make what is missing of one target, in its directory; return, on the first rank, its predictions, best first.

    All ranks of a group call this, and the first one makes the features and writes; who fails, fails for all.
    """
    group, leads = method.crew.group, method.crew.leads
    begun = group.together(lambda: begin(job, directory, method, overwrite=overwrite) if leads else None)
    missing = _missing(begun, method)
    if begun is not None:
        stages.finished += begun.stages
    with stages.stage("features"):
        made = group.together(lambda: job.prepare(directory, method) if leads else None)
        features = group.together(lambda: Features.load(directory / FEATURES_FILE) if made is None else made)
        depth = group.together(lambda: write_alignment(directory, features) if leads else None)
    taken: dict[str, object] = {} if begun is None else begun.models
    facts = {**_facts(job, features, method), "models": taken}
    planned = _planned(missing, features, directory, method)
    for wanted, plan in tqdm(
        planned, desc="predictions", unit="prediction", leave=False, disable=len(planned) == 1 or method.no_bars
    ):
        spill = method.memory.spill_directory or directory
        if (remark := memory_plan.remark(plan, wanted.name, spill)) is not None:
            method.say(f"{job.name}: {remark}")
        prediction, taken[wanted.name] = _fold_with(wanted, plan, features, method=method, stages=stages, spill=spill)

        def write(prediction: Prediction = prediction) -> None:
            write_prediction(directory, prediction, depth)
            write_timings(directory, {**facts, "stages": stages.table()}, notes=prediction.notes)

        with stages.stage(f"{wanted.name}: writing"):
            group.together(write if leads else lambda: None)
        score = method.options.stop_at_score
        if group.exchange(score is not None and prediction.ranking_confidence >= score)[0]:
            break
    if begun is None:
        group.together(lambda: None)
        return []
    target = Target(
        directory=directory,
        names=tuple(begun.record.finished(directory, len(job.sequence))),
        method=method,
        facts=facts,
        stages=stages,
        say=lambda line: method.say(f"{job.name}: {line}"),
    )
    return group.together(lambda: finish(target))


def _missing(begun: Begun | None, method: Method) -> list[Wanted]:
    """Tell every rank of the group what is to be made; only the first one has begun the target, and knows."""
    told = [(each.name, each.model.preset.name, each.seed) for each in begun.missing] if begun is not None else None
    names = {(model, seed): name for name, model, seed in method.crew.group.exchange(told)[0]}
    places = [((each.model.preset.name, each.seed), each) for each in method.wanted]
    return [replace(each, name=names[place]) for place, each in places if place in names]


def _facts(job: Job, features: Features, method: Method) -> dict[str, object]:
    """Return what stands in timings.json beside the times."""
    return {
        "residues": len(job.sequence),
        "msa_rows": len(features.msa),
        "templates": len(features.template_domain_names),
        "device": str(method.device),
        "ranks": method.crew.group.size,
        "threads": torch.get_num_threads(),
        "dtype": method.options.dtype,
        "torch": torch.__version__,
    }


def _planned(
    missing: Sequence[Wanted], features: Features, directory: Path, method: Method
) -> list[tuple[Wanted, Plan]]:
    """Return the plan of each prediction; raise `NotEnoughMemoryError`, before any is made, if one cannot be."""
    found = method.memory.room(method.device, directory)
    rooms = method.crew.group.exchange([found.memory, found.spill])
    room = Room(memory=min(memory for memory, _ in rooms), spill=min(spill for _, spill in rooms))
    planned = [(wanted, method.plan(wanted.model, Rows.of(features), room)) for wanted in missing]
    for wanted, plan in planned:
        if not plan.fits and method.memory.executor == memory_plan.AUTOMATIC:
            raise NotEnoughMemoryError(f"{wanted.name}: {plan.problem}")
    return planned


def _fold_with(
    wanted: Wanted, plan: Plan, features: Features, *, method: Method, stages: Stages, spill: Path
) -> tuple[Prediction, dict[str, object]]:
    """Make a prediction, and return by which executor and in how much memory it was made, too."""
    model, device, crew = wanted.model, method.device, method.crew
    options = replace(method.options, seed=wanted.seed)

    def attempt(within: Whole | Slabs) -> tuple[Prediction, int]:
        release(device)
        reset_peak_memory(device)
        held, before = peak_memory(device), len(stages.finished)
        with _progress(wanted, method):
            prediction = crew.carried_out(
                within,
                lambda run: fold(
                    model.network,
                    run,
                    features,
                    model.preset,
                    options,
                    stages=stages,
                    notes=model.notes,
                    name=wanted.name,
                ),
            )
        return prediction, max(stage.peak_memory for stage in stages.finished[before:]) - held

    def say(line: str) -> None:
        method.say(f"{features.domain_name}: {wanted.name}: {line}")

    executor, (prediction, peak) = stepping_down(attempt, plan, device, spill, say)
    sizes = {"predicted_peak_gib": plan.forecast(executor).peak, "measured_peak_gib": peak}
    return prediction, {"executor": executor, **{name: round(size / 2**30, 3) for name, size in sizes.items()}}


@contextmanager
def _progress(wanted: Wanted, method: Method) -> Iterator[None]:
    """Show a bar of passes that moves with every block: on a CPU, one pass of a large model takes minutes."""
    network = wanted.model.network
    blocks = [*network.extra_msa_stack.blocks, *network.evoformer.blocks]
    share = 1 / (len(blocks) * method.options.num_ensemble)
    layout = "{desc}: {percentage:3.0f}%|{bar}| {n:.2f}/{total} [{elapsed}<{remaining}]"
    passes = method.options.recycles(wanted.model.preset) + 1
    with (
        tqdm(total=passes, desc=f"{wanted.name} passes", bar_format=layout, leave=False, disable=method.no_bars) as bar,
        ExitStack() as stack,
    ):

        def block_done(*_: object) -> None:
            bar.update(share)

        for block in blocks:
            stack.enter_context(block.register_forward_hook(block_done))
        yield
