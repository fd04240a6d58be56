"""Read several fine-tunings of one model from a TOML file."""

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

# Keys of a job that are settings of `LowRankConfig`, and keys that are paths relative to the file.
_LOW_RANK_KEYS = ("rank", "alpha", "targets", "rank_stabilised", "decomposed")
_PATH_KEYS = ("training_set", "held_out")
# Keys of a job, and the types of their values.
_JOB_KEYS: dict[str, tuple[type, ...]] = {
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
    """Return the settings for fine-tuning a model: the defaults, changed by `values`.

    `values` has the keys of a job in the file; further keys are ignored. Without "alpha", it is twice a "rank" that is
    set. Raise `ConfigError` for a value that is not allowed.
    """
    low_rank = {name: values[name] for name in _LOW_RANK_KEYS if values.get(name) is not None}
    if "rank" in low_rank and "alpha" not in low_rank:
        low_rank["alpha"] = 2 * low_rank["rank"]
    low_rank = {**LowRankConfig().to_dict(), **low_rank}
    config = finetuning(preset, values.get("adapter") or "lora", LowRankConfig.from_dict(low_rank))
    changed = [*values.get("settings", ())]
    for name, setting in (("steps", "steps"), ("learning_rate", "optimizer.learning_rate"), ("seed", "seed")):
        if values.get(name) is not None:
            changed.append(f"{setting}={values[name]}")
    # All changes are applied at once, because some settings must agree with each other.
    return FinetuneConfig.from_dict({**config.to_dict(), "run": config.run.with_settings(changed).to_dict()})


def read_tasks(path: Path, preset: Preset, output: Path) -> list[Task]:
    """Read the fine-tunings in a TOML file; each gets a directory of its name in `output`.

    Each table `[[job]]` has a name, a training set and settings; `[defaults]` has settings of all jobs. Relative paths
    are relative to the file. `preset` is the model that is fine-tuned. Raise `InputError` for anything else.
    """
    content = read_toml(path, "TOML file of fine-tunings")
    require_keys(path, content, ("defaults", "job"))
    jobs, defaults = content.get("job"), content.get("defaults", {})
    if not isinstance(jobs, list) or not jobs or not all(isinstance(job, dict) for job in jobs):
        raise InputError.at(path, "has no fine-tunings; write a table [[job]] for each")
    if not isinstance(defaults, dict):
        raise InputError.at(path, "defaults must be a table")
    tasks: list[Task] = []
    for position, job in enumerate(jobs, start=1):
        task = _task(path, position, {**_checked(path, "[defaults]", defaults), **job}, preset, output)
        if task.name in {each.name for each in tasks}:
            raise InputError.at(path, f"two jobs have the name '{printable(task.name)}'; give each job its own name")
        tasks.append(task)
    return tasks


def _task(path: Path, position: int, job: dict[str, Any], preset: Preset, output: Path) -> Task:
    """Return the fine-tuning in the table of a job; `position` counts jobs from 1."""
    name = job.pop("name", None)
    problem = file_name_problem(name) if isinstance(name, str) else 'must have a name, such as name = "kinases"'
    if problem is not None:
        raise InputError.at(path, f"job {position}: {problem}")
    where = f"job '{name}'"
    values = _checked(path, where, job)
    if "training_set" not in values:
        raise InputError.at(path, f"{where} has no training_set; add training_set = PATH")
    paths = {key: path.parent / values[key] for key in _PATH_KEYS if key in values}
    deadline = values.get("deadline")
    if deadline is not None and not 0 < deadline < float("inf"):
        raise InputError.at(path, f"{where}: deadline must be a number of seconds greater than 0, got {deadline:g}")
    try:
        config = config_of(preset, values)
    except InputError as error:
        raise InputError.at(path, f"{where}: {error}") from error
    return Task(
        name=name,
        training_set=paths["training_set"],
        held_out=paths.get("held_out"),
        config=config,
        output=output / name,
        deadline=deadline,
    )


def _checked(path: Path, where: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a table, or raise `InputError` for an unknown key or a value of a wrong type."""
    require_keys(path, values, _JOB_KEYS, f"{where}: ")
    for key, value in values.items():
        is_valid = isinstance(value, _JOB_KEYS[key]) and (isinstance(value, bool) is (bool in _JOB_KEYS[key]))
        if key == "settings":
            is_valid = is_valid and all(isinstance(each, str) for each in value)
        if not is_valid:
            raise InputError.at(path, f"{where}: {key} cannot be {printable(repr(value), 60)}")
    if "adapter" in values and values["adapter"] not in LEARNING_RATES:
        raise InputError.at(path, f"{where}: adapter {choice_problem(values['adapter'], LEARNING_RATES)}")
    return dict(values)
