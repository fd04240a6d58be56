"""Read several fine-tunings of one model from a file (TOML)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data_pipeline.io.errors import InputError, choice_problem, printable
from data_pipeline.io.toml_files import read_toml, require_keys
from data_pipeline.parse.fasta import file_name_problem
from helixfold.model.presets import Preset
from helixfold.training.finetune.finetuning import Task
from helixfold.training.finetune.settings import LEARNING_RATES, FinetuneConfig, finetuning
from helixfold.weights.low_rank import LowRankConfig

_LOW_RANK = ("rank", "alpha", "targets", "rank_stabilised", "decomposed")
_PATHS = ("training_set", "held_out")
# What a job may say, and the types of it.
_KEYS: dict[str, tuple[type, ...]] = {
    "training_set": (str,),
    "held_out": (str,),
    "adapter": (str,),
    "rank": (int,),
    "alpha": (int, float),
    "targets": (str,),
    "rank_stabilised": (bool,),
    "decomposed": (bool,),
    "steps": (int,),
    "learning_rate": (int, float),
    "seed": (int,),
    "deadline": (int, float),
    "settings": (list,),
}


def config_of(preset: Preset, values: Mapping[str, Any]) -> FinetuneConfig:
    """Return the settings of a fine-tuning of a model, in which `values` change what is usual.

    They are those that a job in the file may have. Raise `ConfigError` for a value that is not allowed.
    """
    low_rank = {name: values[name] for name in _LOW_RANK if values.get(name) is not None}
    if "rank" in low_rank and "alpha" not in low_rank:
        low_rank["alpha"] = 2 * low_rank["rank"]
    low_rank = {**LowRankConfig().to_dict(), **low_rank}
    config = finetuning(preset, values.get("adapter") or "lora", LowRankConfig.from_dict(low_rank))
    changed = [*values.get("settings", ())]
    for name, setting in (("steps", "steps"), ("learning_rate", "optimizer.learning_rate"), ("seed", "seed")):
        if values.get(name) is not None:
            changed.append(f"{setting}={values[name]}")
    # Read as one: settings that must agree may be changed together.
    return FinetuneConfig.from_dict({**config.to_dict(), "run": config.run.with_settings(changed).to_dict()})


def read_tasks(path: Path, preset: Preset, output: Path) -> list[Task]:
    """Read the fine-tunings in a file; each has a directory of its name in `output`.

    Tables `[[job]]` have a name, a training set, and what differs from the usual settings; `[defaults]` holds for all.
    Relative paths begin at the file. Raise `InputError` for anything else.
    """
    content = read_toml(path, "TOML file of fine-tunings")
    require_keys(path, content, ("defaults", "job"))
    jobs, defaults = content.get("job"), content.get("defaults", {})
    if not isinstance(jobs, list) or not jobs or not all(isinstance(job, dict) for job in jobs):
        raise InputError.at(path, "names no fine-tuning; write a table [[job]] for each")
    if not isinstance(defaults, dict):
        raise InputError.at(path, "defaults must be a table")
    tasks: list[Task] = []
    for number, job in enumerate(jobs, start=1):
        task = _task(path, number, {**_checked(path, "[defaults]", defaults), **job}, preset, output)
        if task.name in {each.name for each in tasks}:
            raise InputError.at(path, f"two jobs have the name '{printable(task.name)}'; give each its own")
        tasks.append(task)
    return tasks


def _task(path: Path, number: int, job: dict[str, Any], preset: Preset, output: Path) -> Task:
    name = job.pop("name", None)
    problem = file_name_problem(name) if isinstance(name, str) else 'must have a name, such as name = "kinases"'
    if problem is not None:
        raise InputError.at(path, f"job {number}: {problem}")
    where = f"job '{name}'"
    values = _checked(path, where, job)
    if "training_set" not in values:
        raise InputError.at(path, f"{where} must name its training_set")
    found = {key: path.parent / values[key] for key in _PATHS if key in values}
    deadline = values.get("deadline")
    if deadline is not None and not 0 < deadline < float("inf"):
        raise InputError.at(path, f"{where}: deadline is a number of seconds greater than 0, got {deadline:g}")
    try:
        config = config_of(preset, values)
    except InputError as error:
        raise InputError.at(path, f"{where}: {error}") from error
    return Task(
        name=name,
        training_set=found["training_set"],
        held_out=found.get("held_out"),
        config=config,
        output=output / name,
        deadline=deadline,
    )


def _checked(path: Path, where: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a table, or raise `InputError` for an unknown key or a value of a wrong type."""
    require_keys(path, values, _KEYS, f"{where}: ")
    for key, value in values.items():
        right = isinstance(value, _KEYS[key]) and (isinstance(value, bool) is (bool in _KEYS[key]))
        if key == "settings":
            right = right and all(isinstance(each, str) for each in value)
        if not right:
            raise InputError.at(path, f"{where}: {key} cannot be {printable(repr(value), 60)}")
    if "adapter" in values and values["adapter"] not in LEARNING_RATES:
        raise InputError.at(path, f"{where}: adapter {choice_problem(values['adapter'], LEARNING_RATES)}")
    return dict(values)
