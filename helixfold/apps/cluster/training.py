"""Submit a training run to the queue of a cluster, as torchrun on the nodes of the table [train] of its file."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from parsl.launchers import SimpleLauncher
from parsl.providers.errors import SubmitException

from data_pipeline.io.errors import InputError
from helixfold.apps.cluster.engine import PoolError, last_error_line
from helixfold.apps.cluster.providers import SUBMITTERS, memory_gib, provider_of, python_of
from helixfold.apps.cluster.site import Pool, Site, read_site
from helixfold.results.file_table import CLUSTER

# Shell expression for the first of several nodes, by provider. Other providers support only one node.
_FIRST_NODE_EXPRESSION = {"slurm": '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'}
_MEETING_PORT, _MAX_RESTARTS = 29500, 100
OPTION = "--cluster"  # names the file of the cluster in the arguments of `helixfold train`
# SLURM sends SIGTERM before the time is over, so that the run saves a checkpoint. If a node is lost, SLURM queues the
# job again, and the run continues.
_SLURM_TRAINING_DIRECTIVES = ("#SBATCH --signal=B:TERM@120", "#SBATCH --requeue", "#SBATCH --open-mode=append")


def submit_training(path: Path, words: Sequence[str], output: Path) -> str:
    """Submit `helixfold train` with these arguments as one job on all nodes of the pool, and return its description.

    `path` is the file of the cluster, and `words` are the arguments after `helixfold`, without --cluster. The job's
    script and output are written below `output`.
    Once the job has ended, the same command continues the run. Raise `InputError` if the file cannot be used, and
    `PoolError` if the queue refuses the job.
    """
    site = read_site(path)
    pool = site.training
    if pool is None:
        raise InputError.at(path, "has no table [train], which describes the nodes for training")
    command = training_command(site, pool, words)
    directives = _SLURM_TRAINING_DIRECTIVES if pool.provider == "slurm" else ()
    launcher = SimpleLauncher(debug=False)
    provider = provider_of(pool, site, nodes_per_job=pool.nodes, launcher=launcher, directives=directives)
    scripts = CLUSTER.path(output.absolute())
    try:
        scripts.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError.at(output, f"cannot be used as output directory: {error.strerror or error}") from error
    provider.script_dir = str(scripts)
    try:
        job = provider.submit(command, 1, "helixfold-train")
    except SubmitException as error:
        reason = last_error_line(str(error.stderr)) or error.message
        raise PoolError.at(path, f"{SUBMITTERS.get(pool.provider, 'the system')} refused the job: {reason}") from error
    if job is None:
        raise PoolError.at(path, f"{SUBMITTERS.get(pool.provider, 'the system')} refused the job")
    return f"job {job}, whose script and output are in {scripts}"


def training_command(site: Site, pool: Pool, words: Sequence[str]) -> str:
    """Return the shell command of a job that trains on all nodes of a pool. It replaces the shell of the job.

    `words` are the arguments after `helixfold`. Raise `InputError` for several nodes with a queue other than SLURM.
    """
    processes = f"--nproc-per-node {pool.gpus or pool.workers} --max-restarts {_MAX_RESTARTS}"
    program = f"-m helixfold {shlex.join(words)}"
    torchrun = f"{shlex.quote(python_of(pool))} -m torch.distributed.run"
    if pool.nodes == 1:
        return f"exec {torchrun} --standalone {processes} {program}"
    first_node = _FIRST_NODE_EXPRESSION.get(pool.provider)
    if first_node is None:
        raise InputError.at(
            site.path,
            f"[train]: several nodes need SLURM; with {pool.provider}, start torchrun on each node yourself "
            "(docs/how-to/many-gpus.md), or train on one node",
        )
    meeting = f'--rdzv-backend c10d --rdzv-endpoint "{first_node}:{_MEETING_PORT}" --rdzv-id "$SLURM_JOB_ID"'
    # Steps of a SLURM job do not inherit its numbers of processors and memory.
    size = "--ntasks-per-node=1" + (f" --cpus-per-task={pool.cores}" if pool.cores else "")
    size += f" --mem={memory_gib(pool)}g" if pool.memory else ""
    return (
        "export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1\n"
        f"exec srun --no-kill --kill-on-bad-exit=0 {size} "
        f"{torchrun} --nnodes 1:{pool.nodes} {meeting} {processes} {program}"
    )


def without_cluster(words: Sequence[str]) -> list[str]:
    """Return the arguments of a command without --cluster and its value."""
    other_words: list[str] = []
    skips_value = False
    for word in words:
        if skips_value or word.startswith(f"{OPTION}="):
            skips_value = False
        elif word == OPTION:
            skips_value = True
        else:
            other_words.append(word)
    return other_words
