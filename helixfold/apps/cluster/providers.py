"""Create Parsl's provider for the nodes of a pool."""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from parsl.launchers import SingleNodeLauncher
from parsl.providers import (
    KubernetesProvider,
    LocalProvider,
    LSFProvider,
    PBSProProvider,
    SlurmProvider,
)
from parsl.providers.base import ExecutionProvider

from data_pipeline.io.errors import InputError
from data_pipeline.io.extras import are_installed
from data_pipeline.io.site_configuration import VARIABLE
from helixfold.apps.cluster.site import Pool, Site
from helixfold.runtime.standard_streams import VERBOSITY

# The program that submits jobs to each queue.
SUBMITTERS = {"slurm": "sbatch", "pbs": "qsub", "lsf": "bsub"}
_GIB = 2**30
# SLURM sends SIGTERM before a job's time is over, so that its workers release their claims. The job is not queued again
# because Parsl submits a new one.
_SLURM_WORKER_DIRECTIVES = ("#SBATCH --signal=B:TERM@60", "#SBATCH --no-requeue")
_FORWARD_TERM_COMMAND = "trap 'trap \"\" TERM; kill -TERM 0; sleep 6' TERM"  # workers have 6 s to end


def provider_of(
    pool: Pool, site: Site, *, nodes_per_job: int = 1, launcher: Any = None, directives: Sequence[str] = ()
) -> ExecutionProvider:
    """Return the provider that requests at most `pool.nodes` nodes for a pool, `nodes_per_job` with each job.

    `launcher` starts the job's command on the nodes; None is for workers of tasks. `directives` are lines of the job's
    script; the pool's own lines follow them. SLURM jobs of workers have their own directives instead.

    Raise `InputError` if the queue's program, or Kubernetes's package, is not installed on this machine.
    """
    submitter = SUBMITTERS.get(pool.provider)
    if submitter is not None and shutil.which(submitter) is None:
        raise InputError.at(
            site.path, f"pool '{pool.name}': {submitter} is not on the PATH; run this on a machine that submits jobs"
        )
    jobs = pool.nodes // nodes_per_job
    common_arguments: dict[str, Any] = {
        "init_blocks": 0,
        "min_blocks": 0,
        "max_blocks": jobs,
        "nodes_per_block": nodes_per_job,
    }
    common_arguments |= {"worker_init": _setup(pool), "launcher": launcher or SingleNodeLauncher(debug=False)}
    if pool.provider == "slurm" and launcher is None:
        common_arguments["worker_init"] += f"\n{_FORWARD_TERM_COMMAND}"
        directives = _SLURM_WORKER_DIRECTIVES
    lines = "\n".join((*directives, *pool.directives))
    memory = memory_gib(pool)
    match pool.provider:
        case "slurm":
            return SlurmProvider(
                **common_arguments,
                partition=pool.queue,
                account=pool.account,
                cores_per_node=pool.cores,
                mem_per_node=memory,
                gpus_per_node=pool.gpus or None,
                walltime=pool.walltime,
                scheduler_options=lines,
                exclusive=False,
                cmd_timeout=60,
            )
        case "pbs":
            resources = [] if memory is None else [f"mem={memory}gb"]
            resources += [f"ngpus={pool.gpus}"] if pool.gpus else []
            return PBSProProvider(
                **common_arguments,
                queue=pool.queue,
                account=pool.account,
                cpus_per_node=pool.cores or 1,
                select_options=":".join(resources),
                walltime=pool.walltime,
                scheduler_options=lines,
            )
        case "lsf":
            gpus = f"#BSUB -gpu num={pool.gpus}\n" if pool.gpus else ""
            size = "" if memory is None else f"#BSUB -M {memory}GB\n"
            cores = pool.cores or 1
            return LSFProvider(
                **common_arguments,
                queue=pool.queue,
                project=pool.account,
                cores_per_block=cores * nodes_per_job,
                cores_per_node=cores,
                request_by_nodes=False,
                walltime=pool.walltime,
                scheduler_options=f"{gpus}{size}{lines}",
                bsub_redirection=True,
            )
        case "kubernetes":
            return _kubernetes(pool, jobs, memory)
    return LocalProvider(**common_arguments)


def _kubernetes(pool: Pool, jobs: int, memory: int | None) -> ExecutionProvider:
    """Return Parsl's provider for a pool of pods; `memory` is in GiB."""
    if not are_installed("kubernetes"):
        raise InputError(f"pool '{pool.name}' needs the package kubernetes; install it with pip install kubernetes")
    memory_text = "1Gi" if memory is None else f"{memory}Gi"
    gpus = {"nvidia.com/gpu": str(pool.gpus)} if pool.gpus else None
    return KubernetesProvider(
        image=str(pool.image),
        namespace=pool.queue or "default",
        init_blocks=0,
        min_blocks=0,
        max_blocks=jobs,
        max_cpu=pool.cores or 1,
        init_cpu=pool.cores or 1,
        max_mem=memory_text,
        init_mem=memory_text,
        extra_requests=gpus,
        extra_limits=gpus,
        worker_init=_setup(pool),
        service_account_name=pool.account,
        persistent_volumes=[_volume(each) for each in pool.volumes],
    )


def memory_gib(pool: Pool) -> int | None:
    """Return the memory of a node in GiB, rounded down, at least 1; None if the file does not define it."""
    return None if pool.memory is None else max(1, pool.memory // _GIB)


def python_of(pool: Pool) -> str:
    """Return the Python interpreter of a pool's workers: as in the file, else this process's (Kubernetes: python3)."""
    return pool.python or ("python3" if pool.provider == "kubernetes" else sys.executable)


def _setup(pool: Pool) -> str:
    """Return the shell commands that run before a worker: environment variables, working directory, own commands."""
    configuration = os.environ.get(VARIABLE)
    variables: Mapping[str, str | None] = {
        VARIABLE: configuration and os.path.abspath(configuration),
        VERBOSITY: os.environ.get(VERBOSITY),
        "PYTHONPATH": None if pool.provider == "kubernetes" else os.environ.get("PYTHONPATH"),
        "OMP_NUM_THREADS": None if pool.threads is None else str(pool.threads),
    }
    exports = [f"export {name}={shlex.quote(value)}" for name, value in variables.items() if value]
    if pool.provider != "kubernetes":
        exports.append(f"cd {shlex.quote(os.getcwd())}")
    return "\n".join([*exports, pool.setup])


def _volume(text: str) -> tuple[str, str]:
    """Return the claim and the directory of a volume such as claim:/directory."""
    claim, _, directory = text.partition(":")
    return claim, directory
