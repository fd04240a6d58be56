"""Run `helixfold design`: every design of every target, with files from which a killed run resumes."""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.files import remove_partial_files
from data_pipeline.parse.fasta import directory_name
from helixfold.apps.design import files
from helixfold.apps.design.check import agreement, checked, control_designs, known_tm_score, refolded, short_digest
from helixfold.apps.design.designer import Designer
from helixfold.apps.design.memory import check_memory
from helixfold.apps.design.options import DesignCommand, DesignOptions
from helixfold.apps.design.task import DesignTask
from helixfold.apps.design.trajectory import Trajectory
from helixfold.execution.allocator import keeping_freed_memory
from helixfold.execution.device import cast_trunk, dtype_on, limit_threads, pick_device
from helixfold.model.config import Method
from helixfold.ops.device_properties import properties_of
from helixfold.planning.estimate import Device
from helixfold.planning.passes import KEPT_BLOCKS
from helixfold.results.driver import Run, driven
from helixfold.results.file_table import (
    DESIGN,
    DESIGN_CHECK,
    DESIGN_CHECK_STRUCTURE,
    DESIGN_SCORES,
    DESIGN_SETTINGS,
    DESIGN_STATE,
)
from helixfold.results.json_object import JsonObject
from helixfold.results.pdb import to_pdb
from helixfold.results.record import RunRecord, require_same_settings
from helixfold.results.writing import to_json, write_file
from helixfold.runtime.options import values_of
from helixfold.runtime.screen import logged_screen
from helixfold.runtime.standard_streams import optional_output, print_note, print_summary
from helixfold.weights.find import ReadyModel, find_models

# Seconds between two states of a design that are written.
_SAVE_EVERY = 5.0
# The name of a target, and a function that reads it and returns its task.
Source = tuple[str, Callable[[], DesignTask]]


def run(sources: Sequence[Source], command: DesignCommand) -> int:
    """Run `helixfold design` for all targets, except binders from end to end; return 0, or 1 if any item failed.

    Finished designs are checked by other models if the options name any, and the tables and page of designs are
    written. An earlier run with the same settings is continued. Raise `InputError`, before anything is written, for
    invalid options, and if no target can be read.
    """
    with logged_screen(command.log_file), optional_output():
        return _run(sources, command)


def _run(sources: Sequence[Source], command: DesignCommand) -> int:
    limit_threads()
    options, weights = replace(command, dropout=not command.no_dropout), loss_weights(command.loss)
    tasks, unreadable = _read(sources, weights)
    device = pick_device(command.device)
    method: Method = "multimer" if all(len(task.chains) > 1 for task in tasks) else "monomer"
    models = find_models(command.models, command.weights, seed=options.seed, method=method)
    checks = checking_models(command, models, seed=options.seed, method=method)
    for model in checks:
        cast_trunk(model.network.to(device), dtype_on("auto", properties_of(device)))
    for note in dict.fromkeys(note for model in (*models, *checks) for note in model.notes):
        print_note(note)
    _check_names([task.name for task in tasks])
    output, steps = command.output, options.designs * options.steps
    with driven(output, "step", len(sources) * steps, command.progress) as run, keeping_freed_memory(KEPT_BLOCKS):
        for name, reason in unreadable.items():
            run.fail(name, reason, steps)
        for task in tasks:
            directory, designer = output / directory_name(task.name), None
            with run.item(task.name, steps, continues=True):
                check_memory(task, models, options, Device.at_hand(device, output, command.memory))
                designer = Designer(task, models, options, device=device)
                _begin(directory, task, options, models, overwrite=command.overwrite)
            for number in range(options.designs) if designer is not None else ():
                with run.item(f"{task.name} {number}", options.steps):
                    _design(directory, designer, number, run)
                    _check(directory, designer, number, checks)
            files.write_tables(output, tasks, run.failures, options.designs)
    print_summary(f"{output / 'designs.html'}, {output / 'designs.tsv'}")
    return run.exit_code


def loss_weights(words: Sequence[str]) -> dict[str, float]:
    """Return the weights of losses by name from words such as con=1; raise `InputError` for other words."""
    weights = {}
    for word in words:
        name, equals, value = word.partition("=")
        try:
            weights[name] = float(value)
        except ValueError:
            weights[name] = float("nan")
        if not equals or not abs(weights[name]) < 1e9:
            raise InputError(f"--loss takes a name and a weight, such as con=1, got {printable(word)!r}")
    return weights


def _read(sources: Sequence[Source], weights: Mapping[str, float]) -> tuple[list[DesignTask], dict[str, str]]:
    """Read the tasks, with these weights of losses; return them, and reasons by name for targets that cannot be read.

    Raise `InputError` if none can be read.
    """
    tasks, failures, problem = [], {}, None
    for name, read in sources:
        try:
            tasks.append(read().weighted(dict(weights)))
        except InputError as error:
            failures[name], problem = str(error), error
    if problem is not None and not tasks:
        raise problem
    return tasks, failures


def _check_names(names: Sequence[str]) -> None:
    directories = [directory_name(name) for name in names]
    for number, directory in enumerate(directories):
        if directory in directories[:number]:
            raise InputError(f"two targets are called {directory}; design them with two commands and outputs")


def checking_models(
    command: DesignCommand, models: Sequence[ReadyModel], *, seed: int, method: Method
) -> list[ReadyModel]:
    """Load the models that check designs, as the options name them; empty if the options name none.

    `models` are the models that design. Raise `InputError` if one of them has the same parameters as a checking model.
    """
    if command.check_weights is None and not command.check_models:
        return []
    checks = find_models(command.check_models, command.check_weights, seed=seed, method=method)
    designing = {model.digest for model in models}
    if same := [model.preset.name for model in checks if model.digest in designing]:
        raise InputError(f"{same[0]} also designs, so that its check would prove nothing; give other --check-weights")
    return checks


def _begin(
    directory: Path,
    task: DesignTask,
    options: DesignOptions,
    models: Sequence[ReadyModel],
    *,
    overwrite: bool,
) -> None:
    """Write a target's settings.json after comparing it with an earlier run's, and remove incomplete files.

    With `overwrite`, the files of an earlier run are removed instead. Raise `InputError` for other settings.
    """
    remove_partial_files([directory.parent, directory])
    path = DESIGN_SETTINGS.path(directory)
    settings = {
        "target": task.name,
        "protocol": task.protocol,
        "chains": task_digest(task),
        "losses": {name: each.weight for name, each in task.losses.items()},
        "cyclic": None if task.cyclic is None else list(task.cyclic),
        "options": {name: value for name, value in values_of(options, DesignOptions).items() if name != "designs"},
        "models": [model.digest for model in models],
    }
    if overwrite:
        for kind in (DESIGN, DESIGN_SCORES, DESIGN_STATE, DESIGN_CHECK, DESIGN_CHECK_STRUCTURE):
            for old, _ in kind.files(directory):
                old.unlink()
    elif path.is_file():
        require_same_settings(
            directory, settings_record(JsonObject.read(path).content).differences(settings_record(settings))
        )
    write_file(path, to_json(settings, indent=1))


def settings_record(settings: Mapping[str, Any]) -> RunRecord:
    """Return the content of a settings.json of designs as a record, to report differences from another run."""
    inputs = {name: value for name, value in settings.items() if name in ("target", "chains", "models")}
    return RunRecord(inputs=inputs, options={name: each for name, each in settings.items() if name not in inputs})


def task_digest(task: DesignTask) -> str:
    """Return a SHA-256 digest of a task's chains: names, residue types, known atoms, designed residues and hotspots."""
    digest = hashlib.sha256()
    for chain in task.chains:
        digest.update(json.dumps([chain.name, chain.is_shown]).encode())
        for array in (chain.aatype, chain.positions, chain.mask, chain.designed, chain.hotspots):
            digest.update(array.tobytes())
    return digest.hexdigest()


def _design(directory: Path, designer: Designer, number: int, run: Run) -> None:
    """Make and write one design, from the saved state of an earlier run if it exists; skip a finished design."""
    path, steps = DESIGN_STATE.path(directory, index=number), designer.options.steps
    if DESIGN_SCORES.path(directory, index=number).is_file():
        path.unlink(missing_ok=True)  # of a run that was killed before it did
        run.skip(steps)
        return
    trajectory = designer.begin(number)
    if path.is_file():
        trajectory = Trajectory.load(path, len(trajectory.numbers))
        run.skip(trajectory.step)
    saved = time.monotonic()
    while not designer.is_finished(trajectory):
        trajectory = designer.advance(trajectory, number)
        run.bar.set_postfix_str(f"{directory.name} {number}, loss {trajectory.losses[-1]['loss']:.3f}", refresh=False)
        run.report(f"{designer.task.name} {number}", f"step {trajectory.step}")
        if time.monotonic() - saved > _SAVE_EVERY or designer.is_finished(trajectory):
            trajectory.save(path)
            saved = time.monotonic()
    task, model = designer.task, designer.models[0]
    design = designer.finished(trajectory, number)
    files.write_design(
        directory,
        task,
        design,
        model=model.preset.name,
        known_tm_score=known_tm_score(task, design.protein),
        notes=model.notes,
    )
    path.unlink(missing_ok=True)
    print_summary(f"{task.name} {number}: loss {design.loss:.3f}, mean pLDDT {design.plddt.mean():.1f}")


def _check(directory: Path, designer: Designer, number: int, checks: Sequence[ReadyModel]) -> None:
    """Check a finished design and its controls with each checking model that has not checked it yet; write results."""
    checks_so_far = files.read_checks(directory, number)
    digests = {each.digest for each in checks_so_far}
    missing = [model for model in checks if short_digest(model) not in digests]
    if not missing:
        return
    task, options = designer.task, designer.options
    sequences, protein = files.read_design(directory, number)
    controls = control_designs(designer, sequences, number)
    for model in missing:
        prediction = refolded(task, sequences, model, num_recycles=None, seed=options.seed)
        control_predictions = {
            kind: refolded(task, control.sequences, model, num_recycles=None, seed=options.seed)
            for kind, control in controls.items()
        }
        remark = "Predicted from the sequence of a design alone. The B-factor column holds pLDDT, 0 to 100."
        text = to_pdb(prediction.protein, [remark, *prediction.notes], chain_ids=prediction.chain_ids)
        write_file(DESIGN_CHECK_STRUCTURE.path(directory, index=number, model=model.preset.name), text)
        agreed = {kind: agreement(control.protein, control_predictions[kind]) for kind, control in controls.items()}
        checks_so_far.append(checked(task, protein, prediction, model, agreed))
        print_summary(
            f"{task.name} {number}: {model.preset.name} finds pLDDT {checks_so_far[-1].agreement.plddt:.1f}, TM-score "
            f"{checks_so_far[-1].agreement.tm_score:.2f} to the design"
        )
    files.write_check(directory, number, checks_so_far)
