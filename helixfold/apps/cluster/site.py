"""Read the TOML file that describes a cluster: pools of nodes, and how to request them."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from data_pipeline.io.errors import InputError, printable
from data_pipeline.io.toml_files import read_toml, require_keys
from helixfold.ops.device_properties import DEVICE_MODELS
from helixfold.runtime.options import memory_size

Provider = Literal["local", "slurm", "pbs", "lsf", "kubernetes"]
_MAX_NODES = 10_000
_POOL_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,30}")
_GPU_MODELS = tuple(name for name in DEVICE_MODELS if name != "cpu")
_WALLTIME = re.compile(r"[0-9]{1,3}:[0-5][0-9]:[0-5][0-9]")


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Nodes of one kind, each requested with a separate job. The fields are the keys of a pool's table in the file."""

    name: str
    provider: Provider = "local"
    nodes: int = 1  # maximum number at a time
    workers: int = 1  # parallel tasks of a node; one for each GPU if there are GPUs
    gpus: int = 0  # of a node
    card: str | None = None  # model of the GPUs, a key of `DEVICE_MODELS`
    cores: int | None = None  # of a node
    memory: int | None = None  # bytes of a node
    walltime: str = "24:00:00"  # maximum time of a job
    queue: str | None = None  # SLURM's partition, Kubernetes's namespace
    account: str | None = None  # LSF's project
    directives: tuple[str, ...] = ()  # further lines of the job's script, such as "#SBATCH --qos=long"
    setup: str = ""  # shell commands before a worker starts
    python: str | None = None  # interpreter on the nodes; None: the path of this process's interpreter
    image: str | None = None  # Kubernetes's container image
    volumes: tuple[str, ...] = ()  # Kubernetes's volume claims, as "claim:/directory"
    task_minutes: float = 20.0  # maximum estimated time of the targets that a worker claims at a time

    @property
    def slots(self) -> int:
        """Return the number of parallel tasks on all nodes."""
        return self.nodes * self.workers

    @property
    def device(self) -> str:
        """Return the device of the pool's workers: "cuda" or "cpu"."""
        return "cuda" if self.gpus else "cpu"

    @property
    def memory_of_worker(self) -> int | None:
        """Return the bytes of a node's memory that a worker may use; None if the file does not define the memory."""
        return None if self.memory is None else self.memory // self.workers

    @property
    def threads(self) -> int | None:
        """Return the number of processors of a worker; None if the file does not define the cores."""
        return None if self.cores is None else max(1, self.cores // self.workers)


@dataclass(frozen=True, kw_only=True)
class Site:
    """A cluster: the pool of nodes for searches, the pools for folding, and the nodes for training.

    `path` is the file that describes it. A pool is None if the file has no table for it.
    """

    path: Path
    search: Pool | None
    folding: tuple[Pool, ...]
    training: Pool | None
    address: str | None = None  # of this machine, as the nodes reach it

    @property
    def pools(self) -> tuple[Pool, ...]:
        """Return the pools for a batch of predictions: search and folding."""
        return (*(() if self.search is None else (self.search,)), *self.folding)


def _is_integer(maximum: int, minimum: int = 1) -> Callable[[Any], bool]:
    """Return a check for whole numbers within these limits."""
    return lambda value: type(value) is int and minimum <= value <= maximum


def _is_text(value: Any) -> bool:
    """Return whether a value is text without NUL characters."""
    return isinstance(value, str) and "\0" not in value


def _is_word(value: Any) -> bool:
    """Return whether a value is a word that is safe in a job's script."""
    return isinstance(value, str) and re.fullmatch(r"[\w.@:/+-]{1,200}", value) is not None


def _are_lines(value: Any) -> bool:
    """Return whether a value is a list of single lines of text."""
    return isinstance(value, list) and all(_is_text(line) and "\n" not in line for line in value)


# The check of each key of a pool's table, and the description of valid values for errors.
_KEY_CHECKS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "provider": (lambda value: value in get_args(Provider), f"one of {', '.join(get_args(Provider))}"),
    "nodes": (_is_integer(_MAX_NODES), f"a whole number from 1 to {_MAX_NODES:,}"),
    "workers": (_is_integer(1024), "a whole number from 1 to 1,024"),
    "gpus": (_is_integer(64, 0), "a whole number from 0 to 64"),
    "card": (lambda value: value in _GPU_MODELS, f"one of {', '.join(_GPU_MODELS)}"),
    "cores": (_is_integer(100_000), "a whole number of at least 1"),
    "memory": (_is_text, "a size with its unit, such as '120GiB'"),
    "walltime": (lambda value: _is_text(value) and _WALLTIME.fullmatch(value) is not None, "a time such as '24:00:00'"),
    "queue": (_is_word, "a word"),
    "account": (_is_word, "a word"),
    "directives": (_are_lines, "a list of lines, such as ['#SBATCH --qos=long']"),
    "setup": (_is_text, "shell commands"),
    "python": (_is_text, "the path of a Python"),
    "image": (_is_word, "the name of a container image"),
    "volumes": (_are_lines, "a list such as ['claim:/directory']"),
    "task_minutes": (
        lambda value: type(value) in (int, float) and 0 < value <= 24 * 60,
        "a number of minutes, at most 1,440",
    ),
}
_KUBERNETES_KEYS = ("image", "volumes")


def read_site(path: Path) -> Site:
    """Read the description of a cluster from a TOML file. Raise `InputError` if it is invalid."""
    content = read_toml(path, "TOML file of a cluster")
    require_keys(path, content, ("address", "search", "fold", "train"))
    address = content.get("address")
    if address is not None and not _is_word(address):
        raise InputError.at(path, "address must be the address at which the nodes reach this machine")
    folding = content.get("fold", {})
    if not isinstance(folding, dict) or not all(isinstance(table, dict) for table in folding.values()):
        raise InputError.at(path, "write each pool of folding nodes as a separate table, such as [fold.gpu]")
    pools = tuple(_pool(path, f"fold.{name}", name, table) for name, table in folding.items())
    for pool in pools:
        if pool.name.casefold() in ("search", "train"):
            raise InputError.at(path, f"a pool of folding nodes cannot be named '{pool.name}'; choose another name")
    return Site(
        path=path,
        search=_pool(path, "search", "search", content["search"]) if "search" in content else None,
        folding=pools,
        training=_pool(path, "train", "train", content["train"]) if "train" in content else None,
        address=address,
    )


def _pool(path: Path, table: str, name: str, values: Any) -> Pool:
    """Return the pool of a table of the file. Raise `InputError` for a key or value that is not valid."""
    if not isinstance(values, dict):
        raise InputError.at(path, f"write the pool as a table [{table}]")
    if _POOL_NAME.fullmatch(name) is None:
        raise InputError.at(path, f"[{printable(table)}]: a pool's name is at most 31 letters, digits and _-")
    require_keys(path, values, _KEY_CHECKS, f"[{table}]: ")
    for key, value in values.items():
        is_valid, expected = _KEY_CHECKS[key]
        if not is_valid(value):
            raise InputError.at(path, f"[{table}]: {key} must be {expected}, got {printable(repr(value))}")
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    if "memory" in fields:
        try:
            fields["memory"] = memory_size(fields["memory"])
        except ValueError as error:
            raise InputError.at(path, f"[{table}]: memory {error}") from None
    pool = Pool(name=name, **fields)
    if (problem := _problem(pool, fields)) is not None:
        raise InputError.at(path, f"[{table}]: {problem}")
    return replace(pool, workers=pool.gpus or pool.workers)


def _problem(pool: Pool, fields: Mapping[str, Any]) -> str | None:
    """Return which field is missing or incompatible with another; None if all are valid."""
    kubernetes_only_keys = [key for key in _KUBERNETES_KEYS if key in fields and pool.provider != "kubernetes"]
    is_unknown = pool.provider != "local" and pool.memory is None and pool.name != "train"
    problems = {
        f"card, the model of the GPUs, is missing; set one of {', '.join(_GPU_MODELS)}": pool.gpus
        and pool.card is None,
        "gpus, the number of GPUs of a node, is missing; set it or remove card": pool.card is not None
        and not pool.gpus,
        "workers cannot be set for nodes with GPUs, which have one worker for each GPU": pool.gpus
        and "workers" in fields,
        "gpus cannot be set because searches run on processors": pool.name == "search" and pool.gpus,
        "memory of a node is missing; set it, for example memory = '120GiB'": is_unknown,
        "image, the name of the container image, is missing": pool.provider == "kubernetes" and pool.image is None,
        f"{', '.join(kubernetes_only_keys)} can only be set for Kubernetes": kubernetes_only_keys,
        "volumes must be pairs such as 'claim:/directory'": any(
            re.fullmatch(r"[^:]+:/.*", volume) is None for volume in pool.volumes
        ),
    }
    return next((problem for problem, is_present in problems.items() if is_present), None)
