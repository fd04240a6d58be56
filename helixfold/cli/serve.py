"""Define the command `helixfold serve`, which runs a service for a lab, its workers, and its users' tokens."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from data_pipeline.errors import InputError
from data_pipeline.extras import require
from helixfold.annotations import Group
from helixfold.options import Day, Directory, File, MemorySize, Number, Positive, Workers
from helixfold.standard_streams import optional_output

if TYPE_CHECKING:
    from helixfold.serve.worker.options import WorkerOptions

_DATA, _WORK = Path("helixfold-service"), Path("helixfold-worker")
_EXTRA = ("fastapi", "uvicorn", "python_multipart")
_EXAMPLES = """examples:
  helixfold serve
      on this machine alone: http://127.0.0.1:8000
  helixfold serve token create anna --data /data/service
  helixfold serve --data /data/service --host 0.0.0.0 --databases /data/db
      for a network, to those with tokens
  helixfold serve worker https://fold.example.org --token-file worker.token
      on another machine
  helixfold serve worker https://fold.example.org --token-file worker.token \\
      --cluster cluster.toml --work /shared/jobs
      on the nodes of a cluster
"""
app = App(name="serve", usage="helixfold serve [ACTION] [options]\nexample: helixfold serve", help_epilogue=_EXAMPLES)
tokens = App(name="token", usage="helixfold serve token ACTION", help="Create, list and revoke tokens of users.")
app.command(tokens)


@Parameter(name="*", group=Group.create_ordered("Predictions"))
@dataclass(frozen=True, kw_only=True)
class PredictingOptions:
    """Options for how a worker predicts."""

    models: Annotated[tuple[str, ...], Parameter(metavar="MODEL...", show_default="those with weights")] = ()
    """Models to offer, the usual one first."""
    weights: Path | None = None
    """Parameter file, or directory of them, as for predict."""
    databases: Path | None = None
    """Databases to search, as for predict; ColabFold's serve its clients, too."""
    device: Annotated[str, Parameter(metavar="NAME")] = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    memory: Annotated[MemorySize | None, Parameter(show_default="what is free")] = None
    """Memory that a worker may take, such as 8GiB."""
    threads: Annotated[Workers | None, Parameter(show_default="all processors, divided")] = None
    """Threads of each search."""


@Parameter(name="*", group=Group.create_ordered("Server"))
@dataclass(frozen=True, kw_only=True)
class ListeningOptions:
    """Options for where a server listens and who may use it."""

    data: Directory = _DATA
    """Directory of the queue, inputs and results."""
    host: Annotated[str, Parameter(metavar="ADDRESS", show_default="of this machine alone")] = "127.0.0.1"
    """Address to listen on; any but a loopback address demands tokens."""
    port: Annotated[int, Parameter(metavar="N")] = 8000
    """Port to listen on."""
    behind_proxy: bool = False
    """A proxy in front ends TLS and names clients in X-Forwarded-For; demands tokens."""
    demand_token: bool = False
    """Demand tokens on a loopback address, too."""
    host_name: Annotated[tuple[str, ...], Parameter(metavar="NAME...", show_default="any with tokens")] = ()
    """Names by which browsers know the service."""
    public_url: Annotated[str | None, Parameter(metavar="URL")] = None
    """URL by which users reach the service, such as https://fold.example.org; shared links start with it."""
    webhook_host: Annotated[tuple[str, ...], Parameter(metavar="HOST:PORT...", show_default="none")] = ()
    """Hosts that may be told of the end of jobs."""
    workers: Annotated[int | None, Parameter(metavar="N", show_default="one a GPU, or one")] = None
    """Workers to start here; 0: none, they run elsewhere."""


@Parameter(name="*", group=Group.create_ordered("Limits of a user"))
@dataclass(frozen=True, kw_only=True)
class UserLimits:
    """Options for what a user may have in the service."""

    max_residues: Positive = 4_000
    """Most residues of a job."""
    max_jobs: Positive = 200
    """Most jobs that wait or run."""
    max_disk: Annotated[MemorySize, Parameter(show_default="20GiB")] = 20 * 2**30
    """Most bytes of inputs and results."""
    max_upload: Annotated[MemorySize, Parameter(show_default="32MiB")] = 32 * 2**20
    """Most bytes of a submission."""
    max_requests: Positive = 600
    """Most requests in a minute."""
    keep_days: Positive = 30
    """Days for which results stay."""
    max_attempts: Positive = 3
    """How often a job is tried whose worker dies."""
    max_hours: Number = 24.0
    """Maximum hours per job; a job that takes longer fails."""


_PREDICTING, _LISTENING, _LIMITS = PredictingOptions(), ListeningOptions(), UserLimits()


@app.default
def serve(
    *,
    listening: ListeningOptions = _LISTENING,
    predicting: PredictingOptions = _PREDICTING,
    limits: UserLimits = _LIMITS,
) -> None:
    """Run a service: a page to submit proteins and complexes, a queue that survives any crash, and a REST interface."""
    require("serve", *_EXTRA, action="helixfold serve")
    from helixfold.serve.queue.limits import QueueOptions
    from helixfold.serve.run import LocalWorkerOptions, serve
    from helixfold.serve.settings import ServeSettings

    queue = QueueOptions(
        max_residues=limits.max_residues,
        max_active_jobs=limits.max_jobs,
        max_active_residues=limits.max_jobs * 1_000,
        max_user_bytes=limits.max_disk,
        max_attempts=limits.max_attempts,
        max_hours=limits.max_hours,
        keep_seconds=limits.keep_days * 86_400.0,
    )
    settings = ServeSettings(
        directory=listening.data.absolute(),
        host=listening.host,
        port=listening.port,
        behind_proxy=listening.behind_proxy,
        demands_token=listening.demand_token,
        host_names=tuple(name.lower() for name in listening.host_name),
        public_url=None if listening.public_url is None else listening.public_url.lower().rstrip("/"),
        webhook_hosts=listening.webhook_host,
        max_upload_bytes=limits.max_upload,
        requests_per_minute=limits.max_requests,
        queue=queue,
    )
    environments = _environments(listening.workers, predicting.device)
    serve(settings, LocalWorkerOptions(options=_worker_options(predicting), environments=environments))


@app.command(usage="helixfold serve worker URL [options]")
def worker(
    url: Annotated[str, Parameter(name="URL")],
    /,
    *,
    token_file: File,
    allow_http: bool = False,
    name: Annotated[str | None, Parameter(show_default="this machine's")] = None,
    cluster: File | None = None,
    work: Directory = _WORK,
    predicting: PredictingOptions = _PREDICTING,
) -> None:
    """Predict jobs of a server, from this or any other machine, until it is told to stop.

    Parameters
    ----------
    url
        Address of the server, such as https://fold.example.org.
    token_file
        File with a token that `helixfold serve token create NAME --worker` printed.
    allow_http
        Send the token unencrypted to a server on another machine (http://), over a network that you trust.
    name
        Name of the worker in the server's log.
    cluster
        File (TOML) that describes a cluster, as for predict: its nodes predict, and this machine only speaks to the
        server.
    work
        Directory of the jobs of a cluster, which all nodes see at the same path.
    """
    from helixfold.serve.command_client import read_token, refusals_as_input_errors
    from helixfold.serve.worker.run import WorkerCall, run_worker

    token = read_token(token_file)
    call = WorkerCall(url=url, token=token, options=_worker_options(predicting), name=name, allow_http=allow_http)
    if cluster is None:
        with refusals_as_input_errors():
            run_worker(call)
        return
    require("cluster", "parsl", action="--cluster")
    from helixfold.serve.worker.cluster import run_on_cluster

    with refusals_as_input_errors():
        run_on_cluster(call, cluster, work.absolute())


@tokens.command(usage="helixfold serve token create USER [--data DIR] [options]")
@optional_output()
def create(
    user: Annotated[str, Parameter(name="USER")],
    /,
    *,
    data: Directory = _DATA,
    worker: bool = False,
    until: Annotated[Day | None, Parameter(show_default="for ever")] = None,
) -> None:
    """Print a new token of a user, which is shown only now; a server that runs knows it at once.

    Parameters
    ----------
    user
        Name of the user, whose jobs all of the user's tokens see.
    data
        Directory of the service.
    worker
        It is a token of workers, which sees the jobs of all.
    until
        Day after which it is good no more.
    """
    from datetime import date

    from helixfold.serve.tokens import TokenFile

    seconds = None if until is None else ((until - date.today()).days + 1) * 86_400.0
    if seconds is not None and seconds <= 0:
        raise InputError("--until must be a day that is not over")
    print(TokenFile(data).create(user, "worker" if worker else "user", seconds=seconds))


@tokens.command(name="list", usage="helixfold serve token list [--data DIR]")
@optional_output()
def list_tokens(*, data: Directory = _DATA) -> None:
    """Show all tokens by their ids; what they are made of is not known any more.

    Parameters
    ----------
    data
        Directory of the service.
    """
    from helixfold.serve.tokens import TokenFile

    for token in TokenFile(data).all():
        state = "revoked" if token.revoked else "good" if token.is_good(time.time()) else "ended"
        created = time.strftime("%Y-%m-%d", time.localtime(token.created))
        print(f"{token.id}  {token.user}  {token.kind}  {state}  created {created}")


@tokens.command(usage="helixfold serve token revoke NAME [--data DIR]")
@optional_output()
def revoke(name: Annotated[str, Parameter(name="NAME")], /, *, data: Directory = _DATA) -> None:
    """Revoke a token by its id, or all tokens of a user; sessions that began with them end.

    Parameters
    ----------
    name
        Id of a token, or name of a user.
    data
        Directory of the service.
    """
    from helixfold.serve.tokens import TokenFile

    for token in TokenFile(data).revoke(name):
        print(f"{token.id} of {token.user} is revoked")


def _worker_options(options: PredictingOptions) -> "WorkerOptions":
    from helixfold.serve.worker.options import WorkerOptions

    return WorkerOptions(**vars(options))


def _environments(workers: int | None, device: str) -> list[dict[str, str]]:
    """Return the environment variables of each worker to start here: its GPU, and its share of the processors."""
    from data_pipeline.processors import available_processors

    gpus = _gpus() if device in ("auto", "cuda") else 0
    count = (gpus or 1) if workers is None else workers
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, available_processors() // max(1, count)))
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    names = names if len(names) == gpus else [str(number) for number in range(gpus)]
    return [
        {"OMP_NUM_THREADS": threads, **({"CUDA_VISIBLE_DEVICES": names[number % gpus]} if gpus else {})}
        for number in range(count)
    ]


def _gpus() -> int:
    """Return the number of NVIDIA GPUs; where there is no driver, PyTorch is not asked, which takes long to load."""
    if not any(map(os.path.exists, ("/dev/nvidiactl", "/dev/dxg"))):
        return 0
    import torch

    return torch.cuda.device_count()
