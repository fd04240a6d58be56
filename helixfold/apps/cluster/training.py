"""Submit a training to the queue of a cluster: torchrun on the nodes of the table [train] of its file."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from parsl.launchers import SimpleLauncher
from parsl.providers.errors import SubmitException

from data_pipeline.io.errors import InputError
from helixfold.apps.cluster.engine import PoolError, last_words
from helixfold.apps.cluster.providers import SUBMITTERS, memory_gib, provider_of, python_of
from helixfold.apps.cluster.site import Pool, Site, read_site
from helixfold.results.file_table import CLUSTER

# The shell's words for the first of several nodes, by provider; others give a job of one node.
_FIRST_NODE = {"slurm": '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'}
_PORT, _MOST_RESTARTS = 29500, 100
OPTION = "--cluster"
# A run saves a checkpoint when its time is nearly over, and goes on if its job is queued again after a node was lost.
_SLURM_TRAINING = ("#SBATCH --signal=B:TERM@120", "#SBATCH --requeue", "#SBATCH --open-mode=append")


def submit_training(path: Path, words: Sequence[str], output: Path) -> str:
    """Submit `helixfold train` with these words, as one job of all nodes of the pool, and return the job's name.

    The same command again, once the job has ended, goes on with the run. Raise `InputError` for a file that cannot be
    used, and `PoolError` if the queue refuses the job.
    """
    site = read_site(path)
    pool = site.training
    if pool is None:
        raise InputError.at(path, "there is no table [train], which says on what nodes to train")
    command = training_command(site, pool, words)
    directives = _SLURM_TRAINING if pool.provider == "slurm" else ()
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
        said = last_words(str(error.stderr)) or error.message
        raise PoolError.at(path, f"{SUBMITTERS.get(pool.provider, 'the system')} refused the job: {said}") from error
    if job is None:
        raise PoolError.at(path, f"{SUBMITTERS.get(pool.provider, 'the system')} refused the job")
    return f"job {job}, whose script and output are in {scripts}"


def training_command(site: Site, pool: Pool, words: Sequence[str]) -> str:
    """Return the shell command of a job that trains on all nodes of a pool; it takes the place of the job's shell."""
    processes = f"--nproc-per-node {pool.gpus or pool.workers} --max-restarts {_MOST_RESTARTS}"
    program = f"-m helixfold {shlex.join(words)}"
    torchrun = f"{shlex.quote(python_of(pool))} -m torch.distributed.run"
    if pool.nodes == 1:
        return f"exec {torchrun} --standalone {processes} {program}"
    first = _FIRST_NODE.get(pool.provider)
    if first is None:
        raise InputError.at(
            site.path,
            f"[train]: several nodes are for SLURM; with {pool.provider}, start torchrun on each node yourself "
            "(docs/how-to/many-gpus.md), or train on one node",
        )
    meeting = f'--rdzv-backend c10d --rdzv-endpoint "{first}:{_PORT}" --rdzv-id "$SLURM_JOB_ID"'
    # SLURM passes neither the processors of a job nor its memory on to its steps.
    size = "--ntasks-per-node=1" + (f" --cpus-per-task={pool.cores}" if pool.cores else "")
    size += f" --mem={memory_gib(pool)}g" if pool.memory else ""
    return (
        "export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1\n"
        f"exec srun --no-kill --kill-on-bad-exit=0 {size} "
        f"{torchrun} --nnodes 1:{pool.nodes} {meeting} {processes} {program}"
    )


def without_cluster(words: Sequence[str]) -> list[str]:
    """Return the words of a command without the option that submits it."""
    kept: list[str] = []
    skips = False
    for word in words:
        if skips or word.startswith(f"{OPTION}="):
            skips = False
        elif word == OPTION:
            skips = True
        else:
            kept.append(word)
    return kept
