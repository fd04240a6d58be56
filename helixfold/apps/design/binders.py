"""Design binders from end to end, as BindCraft does: design, redraw, check, measure, filter and rank."""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import torch

from data_pipeline.io.claims import Claims
from data_pipeline.io.errors import InputError
from data_pipeline.io.extras import require
from data_pipeline.io.files import remove_partial_files
from data_pipeline.parse.fasta import directory_name
from data_pipeline.protein import Protein
from helixfold.apps.design import files, losses
from helixfold.apps.design.designer import Design, Designer
from helixfold.apps.design.duration import estimated
from helixfold.apps.design.measures import (
    alpha_rmsd,
    clashes,
    interface,
    interface_ipsae,
    interface_residues,
    means,
    pose_rmsd,
    structure_shares,
)
from helixfold.apps.design.memory import check_memory
from helixfold.apps.design.options import MAX_STEPS, BinderCommand, DesignOptions, MpnnWeights
from helixfold.apps.design.redraw import Redrawn, RedrawOptions, redrawn
from helixfold.apps.design.run import checking_models, loss_weights, settings_record, task_digest
from helixfold.apps.design.settings import Threshold, applied, read_advanced, read_filters
from helixfold.apps.design.task import DesignTask, hallucination
from helixfold.apps.design.trajectory import Trajectory
from helixfold.execution.allocator import keeping_freed_memory
from helixfold.execution.device import cast_trunk, dtype_on, limit_threads, pick_device
from helixfold.folding.initial_guess import recycled_atoms
from helixfold.ops.device_properties import properties_of
from helixfold.parallel.shared_tasks import SharedTasks
from helixfold.planning.estimate import Device
from helixfold.planning.passes import KEPT_BLOCKS
from helixfold.relax import problem
from helixfold.relax.relaxation import relax
from helixfold.report.binders import BinderLine, TrajectoryLine, write_binders
from helixfold.report.page import counted, duration
from helixfold.results.driver import Run, driven
from helixfold.results.file_table import (
    CANDIDATE,
    CANDIDATE_STRUCTURE,
    DESIGN,
    DESIGN_SCORES,
    DESIGN_SETTINGS,
    DESIGN_STATE,
    REDRAW,
    TRAJECTORY,
)
from helixfold.results.json_object import JsonObject
from helixfold.results.pdb import to_pdb
from helixfold.results.record import require_same_settings
from helixfold.results.writing import to_json, write_file
from helixfold.runtime.options import values_of
from helixfold.runtime.screen import logged_screen
from helixfold.runtime.standard_streams import optional_output, print_note, print_summary
from helixfold.weights.find import ReadyModel, find_models

_SCREENING_STEPS: Final = 50  # steps of logits after which a trajectory is screened
_STAGE_PLDDT, _FINAL_PLDDT = 0.65, 0.7  # BindCraft's minimum mean pLDDT after a stage, and of a finished trajectory
_MIN_CONTACTS: Final = 3  # residues of the binder that touch the target
_HELICITY_RANGE: Final = (-3.0, 1.0)  # range of random weights of helices
_TRAJECTORY_STREAM: Final = MAX_STEPS + 1  # number of a trajectory's own random stream, after all streams of steps
_MIN_ESTIMATED_STEPS: Final = 20  # of a trajectory whose time is estimated, which itself takes a few steps
_MAX_FAILURES: Final = 3  # trajectories in a row that fail, after which a target is given up
# Values that decide whether a complex is relaxed and measured, and their thresholds.
_CONFIDENCE_METRICS: Final = ("pLDDT", "pTM", "i_pTM", "pAE", "i_pAE")


@dataclass(frozen=True, kw_only=True)
class BinderSource:
    """A target: a function that returns the task for a length, the range of lengths, and how many to accept.

    `lengths` is the inclusive range of binder lengths. `accepted` is the number of accepted binders after which the
    target ends. `hotspots` is text for the table.
    """

    name: str
    make: Callable[[int], DesignTask]
    lengths: tuple[int, int]
    accepted: int
    hotspots: str = ""


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """Settings, models and output directory of the binders for one target.

    `advanced` has BindCraft's advanced settings, `thresholds` the filters, `models` the models that design, and
    `checks` the models that check.
    """

    source: BinderSource
    directory: Path
    command: BinderCommand
    advanced: Mapping[str, Any]
    thresholds: Sequence[Threshold]
    models: Sequence[ReadyModel]
    checks: Sequence[ReadyModel]
    device: torch.device

    @cached_property
    def options(self) -> DesignOptions:
        """Return the options of trajectories (`design_options`)."""
        return design_options(self.command, self.advanced)

    def drawn(self, number: int) -> tuple[int, float]:
        """Return the random length of the trajectory `number`, and the weight of its helix loss.

        Both follow from the target's name and the seed. The weight is random only if the advanced settings ask for it.
        """
        name, seed = zlib.crc32(self.source.name.encode()), self.options.seed + number
        random = np.random.default_rng([name, seed, _TRAJECTORY_STREAM])
        length = int(random.integers(self.source.lengths[0], self.source.lengths[1] + 1))
        if self.advanced["random_helicity"]:
            return length, round(float(random.uniform(*_HELICITY_RANGE)), 2)
        return length, float(self.advanced["weights_helicity"])

    def task(self, length: int, helicity: float) -> DesignTask:
        """Return the task of a trajectory for a binder of `length` residues, with BindCraft's losses.

        Weights from the command's --loss replace others. `helicity` is the weight of the helix loss.
        """
        binder_task = replace(self.source.make(length), losses=binder_losses(self.advanced, helicity))
        return self._shown(binder_task, "rm_template_seq_design").weighted(loss_weights(self.command.loss))

    def title(self, number: int, length: int) -> str:
        """Return the name of the trajectory `number` in BindCraft's form: target, length and seed."""
        return f"{self.source.name}_l{length}_s{self.options.seed + number}"

    def designer(self, task: DesignTask) -> Designer:
        """Return the designer of a trajectory, with all design models or only the first one, as settings ask."""
        models = self.models if self.advanced["sample_models"] else self.models[:1]
        return Designer(task, models, self.options, device=self.device)

    def checkers(self, task: DesignTask, *, has_sheet: bool) -> list[Designer]:
        """Return a predictor for each checking model, for the chains of this task: a complex, or a binder alone.

        Hotspots are ignored. `has_sheet` is whether the design has so many strands that more recycling is used.
        """
        sheet = has_sheet and self.advanced["optimise_beta"]
        recycles = self.advanced["optimise_beta_recycles_valid" if sheet else "num_recycles_validation"]
        options = DesignOptions(num_recycles=recycles, dropout=False, seed=self.options.seed, dtype=self.options.dtype)
        without_hotspots = [replace(chain, hotspots=np.zeros_like(chain.hotspots)) for chain in task.chains]
        checked_task = self._shown(replace(task, chains=tuple(without_hotspots)), "rm_template_seq_predict")
        designers = []
        for model in self.checks:
            names = ["plddt"]
            if model.network.heads.aligned_error is not None:
                names += ["pae", "i_pae"] if len(task.chains) > 1 else ["pae"]
            reported_losses = {name: losses.WeightedLoss(loss=losses.LOSSES[name], weight=0.0) for name in names}
            designers.append(
                Designer(replace(checked_task, losses=reported_losses), [model], options, device=self.device)
            )
        return designers

    def _shown(self, task: DesignTask, setting: str) -> DesignTask:
        hides = bool(self.advanced[setting])
        return replace(task, chains=tuple(replace(each, hides_sequence=hides) for each in task.chains))


def design_options(command: BinderCommand, advanced: Mapping[str, Any]) -> DesignOptions:
    """Return the options of trajectories from BindCraft's advanced settings.

    Options of the command that differ from their defaults take precedence over the settings.
    """
    defaults, is_screened = DesignOptions(), advanced["design_algorithm"] == "4stage"
    settings = {
        "logits_steps": advanced["soft_iterations"],
        "soft_steps": advanced["temporary_iterations"],
        "hard_steps": advanced["hard_iterations"],
        "greedy_steps": advanced["greedy_iterations"] if is_screened else 0,
        "num_recycles": advanced["num_recycles_design"],
        "excluded": "".join((advanced["omit_AAs"] or "").replace(",", " ").split()),
    }
    command_values = values_of(command, DesignOptions)
    values = {
        name: command_values[name] if command_values[name] != getattr(defaults, name) else value
        for name, value in settings.items()
    }
    return replace(
        DesignOptions(**{**command_values, **values}),
        dropout=not command.no_dropout,
        greedy_share=advanced["greedy_percentage"] / 100,
        screen_steps=_SCREENING_STEPS if is_screened else 0,
        min_plddt=_STAGE_PLDDT if command.trajectory_plddt is None else command.trajectory_plddt,
        sheet_recycles=advanced["optimise_beta_recycles_design"] if advanced["optimise_beta"] else None,
        sheet_logits_steps=advanced["optimise_beta_extra_soft"],
        sheet_soft_steps=advanced["optimise_beta_extra_temp"],
    )


def binder_losses(advanced: Mapping[str, Any], helicity: float) -> dict[str, losses.WeightedLoss]:
    """Return BindCraft's losses of a trajectory by name; `helicity` is the weight of the helix loss.

    Losses of ipTM, radius of gyration and termini are included only if the settings switch them on.
    """
    within = losses.ContactLoss(
        contacts=advanced["intra_contact_number"], cutoff=float(advanced["intra_contact_distance"])
    )
    between = losses.InterfaceContactLoss(
        contacts=advanced["inter_contact_number"], cutoff=float(advanced["inter_contact_distance"])
    )
    weighted: dict[str, tuple[losses.Loss, float]] = {
        "con": (within, advanced["weights_con_intra"]),
        "i_con": (between, advanced["weights_con_inter"]),
        "plddt": (losses.plddt_loss, advanced["weights_plddt"]),
        "pae": (losses.pae_loss, advanced["weights_pae_intra"]),
        "i_pae": (losses.interface_pae_loss, advanced["weights_pae_inter"]),
        "helix": (losses.binder_helix_loss, helicity),
    }
    if advanced["use_i_ptm_loss"]:
        weighted["i_ptm"] = (losses.interface_ptm_loss, advanced["weights_iptm"])
    if advanced["use_rg_loss"]:
        weighted["rg"] = (losses.gyration_loss, advanced["weights_rg"])
    if advanced["use_termini_distance_loss"]:
        weighted["termini"] = (losses.termini_loss, advanced["weights_termini_loss"])
    return {name: losses.WeightedLoss(loss=loss, weight=float(weight)) for name, (loss, weight) in weighted.items()}


def run(sources: Sequence[BinderSource], command: BinderCommand) -> int:
    """Design binders for all targets from end to end; return 0, or 1 if a trajectory failed.

    Trajectories are made until enough binders of each target pass the filters, or a limit is reached. An earlier run
    with the same settings is continued. Tables and page are written after each trajectory. Raise `InputError`, before
    anything is written, for invalid options, without checking models, and without the packages of the extra binders.
    """
    with logged_screen(command.log_file), optional_output():
        return _run(sources, command)


def _run(sources: Sequence[BinderSource], command: BinderCommand) -> int:
    limit_threads()
    advanced, unused = read_advanced(command.advanced)
    if command.sequences is not None:
        advanced["num_seqs"] = command.sequences
    thresholds = read_filters(command.filters, command.threshold)
    device, output = pick_device(command.device), command.output
    models = find_models(command.models, command.weights, seed=command.seed, method="multimer")
    checks = checking_models(command, models, seed=command.seed, method="multimer")
    if not checks:
        raise InputError("binders are checked by models that did not design them; pass --check-weights")
    require("binders", "protein_interface", "protein_mpnn_utils", action="designing binders")
    for model in checks:
        cast_trunk(model.network.to(device), dtype_on("auto", properties_of(device)))
    thresholds, unapplied = applied(thresholds, len(checks))
    _print_notes(command, unused, unapplied, [*models, *checks])
    max_trajectories = min(command.max_trajectories, advanced["max_trajectories"] or command.max_trajectories)
    campaigns = [
        Campaign(
            source=source,
            directory=output / directory_name(source.name),
            command=command,
            advanced=advanced,
            thresholds=thresholds,
            models=models,
            checks=checks,
            device=device,
        )
        for source in sources
    ]
    total = len(sources) * max_trajectories
    with (
        driven(output, "trajectory", total, command.progress, is_shared=command.shared) as run,
        keeping_freed_memory(KEPT_BLOCKS),
        ExitStack() as stack,
    ):
        claims = stack.enter_context(closing(Claims.in_directory(output))) if command.shared else None
        for each in campaigns:
            with run.item(each.source.name, 0, continues=True):
                _begin(each, output)
                _work(each, max_trajectories, claims, run, campaigns)
        _write_tables(output, campaigns, run.failures)
    print_summary(f"{output / 'designs.html'}, {output / 'designs.tsv'}")
    return run.exit_code


def _print_notes(
    command: BinderCommand, unused: Sequence[str], unapplied: Sequence[Threshold], models: Sequence[ReadyModel]
) -> None:
    for note in dict.fromkeys(note for model in models for note in model.notes):
        print_note(note)
    if unused:
        print_note(f"{command.advanced}: not used: {', '.join(unused)}")
    if unapplied:
        print_note(f"thresholds that are not applied: {', '.join(dict.fromkeys(each.name for each in unapplied))}")
    if not command.no_relax and not problem.installed():
        print_note("structures are measured without relaxation; get it with pip install 'helixfold[relax]'")


def _begin(campaign: Campaign, output: Path) -> None:
    """Check the memory of a step, and write a target's settings.json after comparing it with an earlier run's.

    With --overwrite, the files of an earlier run are removed instead.
    """
    directory, command = campaign.directory, campaign.command
    task = campaign.task(campaign.source.lengths[1], float(campaign.advanced["weights_helicity"]))
    needed = max(campaign.options.num_recycles, campaign.options.sheet_recycles or 0)
    device = Device.at_hand(campaign.device, output, command.memory)
    check_memory(task, campaign.models, replace(campaign.options, num_recycles=needed), device)
    if not command.shared:
        remove_partial_files([output, directory])
    settings = {
        "target": campaign.source.name,
        "protocol": "binder",
        "chains": task_digest(task),
        "losses": {name: each.weight for name, each in task.losses.items()},
        "cyclic": None if task.cyclic is None else list(task.cyclic),
        "options": {
            **{name: each for name, each in values_of(campaign.options, DesignOptions).items() if name != "designs"},
            **{name: each for name, each in campaign.advanced.items() if name != "max_trajectories"},
            "lengths": list(campaign.source.lengths),
            "filters": [[each.name, each.limit, each.is_minimum] for each in campaign.thresholds],
            "relax": not command.no_relax and problem.installed(),
        },
        "models": [model.digest for model in (*campaign.models, *campaign.checks)],
    }
    path = DESIGN_SETTINGS.path(directory)
    if command.overwrite:
        for kind in (DESIGN, DESIGN_SCORES, DESIGN_STATE, REDRAW, CANDIDATE, CANDIDATE_STRUCTURE, TRAJECTORY):
            for old, _ in kind.files(directory):
                old.unlink()
    elif path.is_file():
        differences = settings_record(JsonObject.read(path).content).differences(settings_record(settings))
        require_same_settings(directory, differences)
    write_file(path, to_json(settings, indent=1))


def _work(
    campaign: Campaign, max_trajectories: int, claims: Claims | None, run: Run, campaigns: Sequence[Campaign]
) -> None:
    """Make trajectories until enough sequences are accepted, including sequences of other runs.

    Finished trajectories are skipped. With `claims`, other runs share the trajectories. Tables are written after each.
    """
    name, failed, is_estimated = campaign.source.name, 0, False

    def wanted() -> Iterator[list[int]]:
        for number in range(max_trajectories):
            if failed >= _MAX_FAILURES or _has_enough(campaign):
                return
            yield [number]

    numbers: Iterable[list[int]] = wanted()
    tasks: SharedTasks | None = None
    if claims is not None:
        tasks = SharedTasks(
            [f"{name} {number}" for number in range(max_trajectories)],
            claims,
            is_needed=lambda number: not TRAJECTORY.path(campaign.directory, index=number).is_file(),
            report=lambda number, failure: None,
        )
        numbers = tasks.claimed(wanted())
    for (number,) in numbers:
        title = f"{name} {number}"
        if TRAJECTORY.path(campaign.directory, index=number).is_file():
            run.skip()
            continue
        with run.item(title):
            if not is_estimated and campaign.options.steps >= _MIN_ESTIMATED_STEPS:
                _print_estimate(campaign, number)
            is_estimated = True
            _trajectory(campaign, number, run)
        failed = failed + 1 if title in run.failures else 0
        if tasks is not None:
            tasks.end(number, run.failures.get(title))
        _write_tables(campaign.directory.parent, campaigns, run.failures)


def _print_estimate(campaign: Campaign, number: int) -> None:
    """Time a few steps, and print how long a trajectory is estimated to take on this machine."""
    length, helicity = campaign.drawn(number)
    task = campaign.task(length, helicity)
    count = campaign.advanced["num_seqs"]
    alone = campaign.checkers(hallucination(length, name=task.name), has_sheet=False)
    time = estimated(campaign.designer(task), campaign.checkers(task, has_sheet=False), alone, count)
    print_note(
        f"{task.name}: a trajectory for a binder of {length} residues is estimated to take {duration(time.design)}, "
        f"and the predictions of its {count} sequences at most {duration(time.checks)}, without relaxation"
    )


def _has_enough(campaign: Campaign) -> bool:
    """Return whether enough binders of a target are accepted, or the acceptance rate is too low, which is printed."""
    counts = [JsonObject.read(path).get("accepted", int) for path, _ in TRAJECTORY.files(campaign.directory)]
    if sum(counts) >= campaign.source.accepted:
        return True
    watch, rate = campaign.advanced["start_monitoring"], campaign.advanced["acceptance_rate"]
    if campaign.advanced["enable_rejection_check"] and len(counts) >= watch and sum(counts) < rate * len(counts):
        print_note(
            f"{campaign.source.name}: {counted(sum(counts), 'binder')} accepted in {len(counts)} trajectories, fewer "
            f"than {rate:g} per trajectory; the run ends here. Change the hotspots, the lengths or the filters"
        )
        return True
    return False


def _trajectory(campaign: Campaign, number: int, run: Run) -> None:
    """Make a trajectory, draw sequences for its binder, check them, and write its result; resume an earlier run."""
    directory = campaign.directory
    length, helicity = campaign.drawn(number)
    task = campaign.task(length, helicity)
    designer = campaign.designer(task)
    state = DESIGN_STATE.path(directory, index=number)
    if not DESIGN_SCORES.path(directory, index=number).is_file():
        _design(campaign, designer, number, run)
    state.unlink(missing_ok=True)
    sequences, protein = files.read_design(directory, number)
    scores = JsonObject.read(DESIGN_SCORES.path(directory, index=number))
    ended, are_accepted = scores.get("ended", str, ""), list[bool]()
    if not ended:
        binder = designer.inputs[0].designed[0].cpu().numpy() > 0
        checkers = campaign.checkers(task, has_sheet=scores.get("has_sheet", bool))
        alone = campaign.checkers(hallucination(length, name=task.name), has_sheet=scores.get("has_sheet", bool))
        for index, each in enumerate(_redraw(campaign, number, protein, binder, sequences[task.chains[-1].name])):
            path = CANDIDATE.path(directory, index=number, number=index)
            if not path.is_file():
                letters = {**sequences, task.chains[-1].name: each.sequence}
                pose = _Pose(number=number, index=index, protein=protein, binder=binder, drawn=each, letters=letters)
                _check(campaign, pose, checkers, alone)
            are_accepted.append(JsonObject.read(path).get("accepted", bool))
            run.bar.set_postfix_str(
                f"{task.name} {number}, sequence {index}: {sum(are_accepted)} accepted", refresh=False
            )
            if sum(are_accepted) >= campaign.advanced["max_mpnn_sequences"]:
                break
    content = {
        "design": campaign.title(number, length),
        "length": length,
        "helicity": helicity,
        "ended": ended,
        "sequences": len(are_accepted),
        "accepted": sum(are_accepted),
    }
    write_file(TRAJECTORY.path(directory, index=number), to_json(content, indent=1))
    print_summary(f"{content['design']}: {ended or f'{sum(are_accepted)} of {len(are_accepted)} sequences accepted'}")


def _design(campaign: Campaign, designer: Designer, number: int, run: Run) -> None:
    """Compute the steps of a trajectory, from the state of an earlier run if it was saved, and write its design."""
    path, trajectory = DESIGN_STATE.path(campaign.directory, index=number), designer.begin(number)
    if path.is_file():
        trajectory = Trajectory.load(path, len(trajectory.numbers))
    while not designer.is_finished(trajectory):
        trajectory = designer.advance(trajectory, number)
        stage = designer.steps_of(trajectory)[trajectory.step - 1].stage
        run.bar.set_postfix_str(f"{designer.task.name} {number}, {stage} {trajectory.step}", refresh=False)
        trajectory.save(path)
    design = designer.finished(trajectory, number)
    min_plddt = _FINAL_PLDDT if campaign.command.trajectory_plddt is None else campaign.command.trajectory_plddt
    binder = designer.inputs[0].designed[0].cpu().numpy() > 0
    ended = designer.ended(trajectory) or end_of(design, binder, min_plddt)
    files.write_design(
        campaign.directory,
        designer.task,
        design,
        model=designer.models[0].preset.name,
        known_tm_score=None,
        notes=designer.models[0].notes,
        more={"ended": ended, "has_sheet": designer.has_sheet(trajectory)},
    )


def end_of(design: Design, binder: np.ndarray, min_plddt: float) -> str:
    """Return BindCraft's reason to reject a finished trajectory, or an empty string.

    Reasons are clashes of C-alpha atoms, a mean pLDDT of the binder below `min_plddt` (0 to 1), and too few contacts.
    `binder` is true for the binder's residues.
    """
    if clashes(design.protein, only_alpha=True):
        return "Trajectory_Clashes"
    if float(design.plddt[binder].mean()) / 100 < min_plddt:
        return "Trajectory_final_pLDDT"
    return "Trajectory_Contacts" if len(interface_residues(design.protein, binder)) < _MIN_CONTACTS else ""


def _redraw(campaign: Campaign, number: int, protein: Protein, binder: np.ndarray, sequence: str) -> Sequence[Redrawn]:
    """Return the sequences of a trajectory, the best score first: from an earlier run, or drawn now."""
    advanced, path = campaign.advanced, REDRAW.path(campaign.directory, index=number)
    if not path.is_file():
        drawn = [Redrawn(sequence=sequence, score=0.0, recovery=1.0)]
        if advanced["enable_mpnn"]:
            drawn = redrawn(
                protein,
                int(protein.chain_index[binder][0]),
                redraw_options(advanced, campaign.options, number),
                kept=interface_residues(protein, binder) if advanced["mpnn_fix_interface"] else (),
            )
        rejected = set(campaign.options.excluded if advanced["force_reject_AA"] else "")
        drawn = sorted({each.sequence: each for each in drawn}.values(), key=lambda each: each.score)
        content = [vars(each) for each in drawn if not rejected & set(each.sequence)]
        write_file(path, to_json({"sequences": content}, indent=1))
    return [
        Redrawn(
            sequence=each.get("sequence", str), score=each.get("score", float), recovery=each.get("recovery", float)
        )
        for each in JsonObject.read(path).children("sequences")
    ]


def redraw_options(advanced: Mapping[str, Any], options: DesignOptions, number: int) -> RedrawOptions:
    """Return the options of ProteinMPNN for the trajectory `number`, from BindCraft's advanced settings."""
    return RedrawOptions(
        count=advanced["num_seqs"],
        temperature=float(advanced["sampling_temp"]),
        excluded=options.excluded,
        weights=cast(MpnnWeights, advanced["mpnn_weights"]),
        model=advanced["model_path"],
        noise=float(advanced["backbone_noise"]),
        seed=options.seed + number,
    )


@dataclass(frozen=True, kw_only=True)
class _Pose:
    """A sequence drawn for the binder of a trajectory, to be checked.

    `number` is the trajectory's, and `index` the sequence's, from 0. `protein` is the designed complex, and `binder` is
    true for the binder's residues. `letters` has the sequences of all chains, with the drawn one.
    """

    number: int
    index: int
    protein: Protein
    binder: np.ndarray
    drawn: Redrawn
    letters: Mapping[str, str]  # by chain


def _check(campaign: Campaign, pose: _Pose, checkers: Sequence[Designer], alone: Sequence[Designer]) -> None:
    """Predict a sequence as a complex and alone by each model, measure it, and write whether it passes the filters."""
    directory, number, index = campaign.directory, pose.number, pose.index
    guess = recycled_atoms(pose.protein.atom_positions, pose.protein.atom_mask)
    values: dict[int, dict[str, Any]] = {}
    unmet, error = list[str](), None
    predictions = []
    for model, checker in enumerate(checkers, start=1):
        letters = "".join(pose.letters[name] for name in checker.inputs[0].given.chain_ids)
        start = guess if campaign.advanced["predict_initial_guess"] else None
        predictions.append(checker.evaluated(letters, checker.begin(0), 0, guess=start))
        values[model] = confidence_of(predictions[-1], pose.binder)
        labelled = {f"{model}_{name}": value for name, value in values[model].items()}
        early = [each for each in campaign.thresholds if each.model == model and each.metric in _CONFIDENCE_METRICS]
        unmet = [each.name for each in early if not each.passes(labelled)]
        if unmet:
            break
    if not unmet:
        for model, prediction in enumerate(predictions, start=1):
            try:
                values[model] |= _measured(campaign, pose, checkers[model - 1], prediction)
            except problem.RelaxationError as reason:
                error = str(reason)
                break
            values[model] |= _alone(pose, alone[model - 1])
    averages = means(values) if not unmet and error is None else {}
    if averages:
        unmet = [each.name for each in campaign.thresholds if not each.passes(labels_of(values, averages))]
    elif error is not None:
        unmet = ["Relaxation"]
    content = {
        "sequence": pose.drawn.sequence,
        "score": pose.drawn.score,
        "recovery": pose.drawn.recovery,
        "accepted": not unmet,
        "unmet": unmet,
        "error": error,
        "interface": interface_residues(pose.protein, pose.binder),
        "models": {str(model): each for model, each in values.items()},
        "means": averages,
        "pae": None if predictions[0].pae is None else np.rint(predictions[0].pae).astype(int).tolist(),
    }
    write_file(CANDIDATE.path(directory, index=number, number=index), to_json(content))


def labels_of(values: Mapping[int, Mapping[str, Any]], averages: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all models and their means by BindCraft's labels, such as 1_pLDDT and Average_pLDDT.

    `values` has the values of each model by its number, from 1, and `averages` the means.
    """
    labelled = {f"{model}_{name}": value for model, each in values.items() for name, value in each.items()}
    return {**labelled, **{f"Average_{name}": value for name, value in averages.items()}}


def confidence_of(prediction: Design, binder: np.ndarray) -> dict[str, Any]:
    """Return the confidence scores of a predicted complex: BindCraft's, 0 to 1, and ipSAE.

    Scores that the model does not predict are None. `binder` is true for the binder's residues.
    """
    return {
        "pLDDT": 1 - prediction.losses["plddt"],
        "pTM": prediction.ptm,
        "i_pTM": prediction.iptm,
        "pAE": prediction.losses.get("pae"),
        "i_pAE": prediction.losses.get("i_pae"),
        "ipSAE": None if prediction.pae is None else interface_ipsae(prediction.pae, binder),
    }


def _measured(campaign: Campaign, pose: _Pose, checker: Designer, prediction: Design) -> dict[str, Any]:
    """Relax a predicted complex if relaxation is possible and wanted, write it, and return its measurements."""
    protein, notes = prediction.protein, list(checker.models[0].notes)
    measured: dict[str, Any] = {"Unrelaxed_Clashes": clashes(protein), "Relaxed_Clashes": None}
    remark = "Predicted for a sequence of a binder. The B-factor column holds pLDDT, 0 to 100."
    if not campaign.command.no_relax and problem.installed():
        protein = relax(protein, device=campaign.device, threads=1).protein  # the same in every run
        measured["Relaxed_Clashes"] = clashes(protein)
        remark = f"{remark} Relaxed."
    path = CANDIDATE_STRUCTURE.path(
        campaign.directory, index=pose.number, number=pose.index, model=checker.models[0].preset.name
    )
    write_file(path, to_pdb(protein, [remark, *notes], chain_ids=prediction.chain_ids))
    chains = {chain.name: chain for chain in checker.task.chains}
    ordered = [chains[name] for name in prediction.chain_ids]
    known_alphas = np.concatenate(
        [np.where(each.mask[:, 1, None] > 0, each.positions[:, 1], np.nan) for each in ordered]
    )
    return {
        **measured,
        **structure_shares(protein, pose.binder),
        **interface(protein, pose.binder),
        "Hotspot_RMSD": pose_rmsd(protein, pose.protein, pose.binder),
        "Target_RMSD": alpha_rmsd(protein, ~pose.binder, known_alphas[~pose.binder].astype(np.float64)),
    }


def _alone(pose: _Pose, checker: Designer) -> dict[str, Any]:
    """Predict a binder alone, and return the model's confidence and the RMSD (Å) to the designed binder."""
    prediction = checker.evaluated(pose.drawn.sequence, checker.begin(0), 0)
    true = pose.protein.positions_of("CA")[pose.binder].astype(np.float64)
    return {
        "Binder_pLDDT": 1 - prediction.losses["plddt"],
        "Binder_pTM": prediction.ptm,
        "Binder_pAE": prediction.losses.get("pae"),
        "Binder_RMSD": alpha_rmsd(prediction.protein, np.ones(len(true), bool), true),
    }


def _write_tables(output: Path, campaigns: Sequence[Campaign], failures: Mapping[str, str]) -> None:
    """Write the tables, sequences and page of all binders from the files in the targets' directories."""
    lines, trajectories = [], []
    for campaign in campaigns:
        for path, fields in TRAJECTORY.files(campaign.directory):
            trajectory, number = JsonObject.read(path), int(fields["index"])
            title = trajectory.get("design", str)
            scores = JsonObject.read(DESIGN_SCORES.path(campaign.directory, index=number))
            trajectories.append(
                TrajectoryLine(
                    design=title,
                    directory=campaign.directory.name,
                    number=number,
                    length=trajectory.get("length", int),
                    helicity=trajectory.get("helicity", float),
                    ended=trajectory.get("ended", str, ""),
                    sequences=trajectory.get("sequences", int),
                    accepted=trajectory.get("accepted", int),
                    loss_by_step=scores.list_of("loss_by_step", float),
                )
            )
            lines += [_line(campaign, trajectories[-1], index) for index in range(trajectory.get("sequences", int))]
    notes = [note for campaign in campaigns for model in campaign.models for note in model.notes]
    write_binders(output, lines, trajectories, failures, rank_by=campaigns[0].command.rank_by, notes=notes)


def _line(campaign: Campaign, trajectory: TrajectoryLine, index: int) -> BinderLine:
    candidate = JsonObject.read(CANDIDATE.path(campaign.directory, index=trajectory.number, number=index))
    models = candidate.child("models").content
    values = labels_of({int(model): each for model, each in models.items()}, candidate.child("means").content)
    first = CANDIDATE_STRUCTURE.name(index=trajectory.number, number=index, model=campaign.checks[0].preset.name)
    return BinderLine(
        design=f"{trajectory.design}_mpnn{index + 1}",
        trajectory=trajectory,
        structure=first if (campaign.directory / first).is_file() else None,
        protocol=campaign.advanced["design_algorithm"],
        seed=campaign.options.seed + trajectory.number,
        hotspots=campaign.source.hotspots,
        sequence=candidate.get("sequence", str),
        interface=candidate.list_of("interface", int),
        score=candidate.get("score", float),
        recovery=candidate.get("recovery", float),
        accepted=candidate.get("accepted", bool),
        unmet=candidate.list_of("unmet", str),
        values=values,
        pae=candidate.content.get("pae"),
    )
