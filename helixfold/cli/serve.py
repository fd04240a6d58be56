"""Define the command `helixfold serve`, which runs a prediction service, its workers and its access tokens."""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from data_pipeline.io.errors import InputError
from data_pipeline.io.extras import require
from helixfold.apps.serve.queue.jobs import QueueOptions
from helixfold.apps.serve.settings import DATA, ListeningOptions, ServeSettings
from helixfold.apps.serve.worker.options import WorkerOptions
from helixfold.cli.command import Command
from helixfold.runtime.annotations import Group
from helixfold.runtime.options import Day, Directory, File
from helixfold.runtime.standard_streams import optional_output

_DEFAULT_WORK = Path("helixfold-worker")
_REQUIRED_MODULES = ("fastapi", "prometheus_client", "uvicorn", "python_multipart")
_HELP_EXAMPLES = """examples:
  helixfold serve
      for this machine only, at http://127.0.0.1:8000
  helixfold serve token create anna --data /data/service
      print a token that gives anna access
  helixfold serve --data /data/service --host 0.0.0.0 --databases /data/db
      for a network; users need tokens
  helixfold serve worker https://fold.example.org --token-file worker.token
      add a worker on another machine
  helixfold serve worker https://fold.example.org --token-file worker.token \\
      --cluster cluster.toml --work /shared/jobs
      predict on the nodes of a cluster
"""
app = Command(
    name="serve",
    usage="helixfold serve [options]\n       helixfold serve ACTION\nexample: helixfold serve",
    help_epilogue=_HELP_EXAMPLES,
    group_commands=Group.create_ordered("Actions"),
)
tokens = Command(name="token", usage="helixfold serve token ACTION", help="Create, list and revoke access tokens.")
app.command(tokens)
Predicting = Annotated[WorkerOptions, Parameter(name="*", group=Group.create_ordered("Predictions"))]


_DEFAULT_PREDICTING, _DEFAULT_LISTENING, _DEFAULT_LIMITS = WorkerOptions(), ListeningOptions(), QueueOptions()


@app.default
def serve(
    *,
    listening: ListeningOptions = _DEFAULT_LISTENING,
    predicting: Predicting = _DEFAULT_PREDICTING,
    limits: QueueOptions = _DEFAULT_LIMITS,
) -> None:
    """Run a prediction service: web pages, a queue that survives crashes, and a REST interface."""
    require("serve", *_REQUIRED_MODULES, action="helixfold serve")
    from helixfold.apps.serve.run import serve

    listening = replace(
        listening,
        data=listening.data.absolute(),
        host_name=tuple(name.lower() for name in listening.host_name),
        public_url=None if listening.public_url is None else listening.public_url.lower().rstrip("/"),
    )
    settings = ServeSettings(**vars(listening), queue=limits)
    predicting = predicting.with_site_databases()
    environments = _environments(listening.workers, predicting.device)
    serve(settings, predicting, environments)


@app.command(usage="helixfold serve worker URL [options]")
def worker(
    url: Annotated[str, Parameter(name="URL")],
    /,
    *,
    token_file: File,
    allow_http: bool = False,
    name: Annotated[str | None, Parameter(metavar="NAME", show_default="this machine's name")] = None,
    cluster: File | None = None,
    work: Directory = _DEFAULT_WORK,
    predicting: Predicting = _DEFAULT_PREDICTING,
) -> None:
    """Run a worker that predicts the jobs of a service, on any machine, until it is interrupted.

    Parameters
    ----------
    url
        URL of the service, such as https://fold.example.org.
    token_file
        File with a token from `helixfold serve token create NAME --worker`.
    allow_http
        Send the token unencrypted to a server on another machine (http://), over a network that you trust.
    name
        Name of the worker in the service's log.
    cluster
        Predict on the nodes of a cluster, described in this file (TOML) as for predict. This machine only connects to
        the service.
    work
        With --cluster: directory for running jobs, which all nodes see at the same path.
    """
    from helixfold.apps.serve.client import client_errors_as_input_errors, read_token
    from helixfold.apps.serve.worker.run import WorkerCall, run_worker

    token, predicting = read_token(token_file), predicting.with_site_databases()
    call = WorkerCall(url=url, token=token, options=predicting, name=name, allow_http=allow_http)
    if cluster is None:
        with client_errors_as_input_errors():
            run_worker(call)
        return
    require("cluster", "parsl", action="--cluster")
    from helixfold.apps.serve.worker.cluster import run_on_cluster

    with client_errors_as_input_errors():
        run_on_cluster(call, cluster, work.absolute())


@tokens.command(usage="helixfold serve token create USER [--data DIR] [options]")
@optional_output()
def create(
    user: Annotated[str, Parameter(name="USER")],
    /,
    *,
    data: Directory = DATA,
    worker: bool = False,
    until: Annotated[Day | None, Parameter(show_default="valid until revoked")] = None,
) -> None:
    """Create a token and print it. It cannot be shown again. A running service accepts it immediately.

    Parameters
    ----------
    user
        Name of the user. All tokens of a user give access to the same jobs.
    data
        Data directory of the service.
    worker
        Create a token for workers, which gives access to the jobs of all users.
    until
        Last day on which the token is valid.
    """
    from datetime import datetime

    from helixfold.apps.serve.tokens import TokenFile

    seconds = None
    if until is not None:
        seconds = datetime.combine(until, datetime.max.time()).timestamp() - datetime.now().timestamp()
    if seconds is not None and seconds <= 0:
        raise InputError(f"--until must be today or later, got {until}")
    print(TokenFile(data).create(user, "worker" if worker else "user", seconds=seconds))


@tokens.command(name="list", usage="helixfold serve token list [--data DIR]")
@optional_output()
def list_tokens(*, data: Directory = DATA) -> None:
    """List the id, user, kind and state of every token. The tokens themselves are not stored.

    Parameters
    ----------
    data
        Data directory of the service.
    """
    from helixfold.apps.serve.tokens import TokenFile

    for token in TokenFile(data).all():
        state = "revoked" if token.revoked else "valid" if token.is_valid(time.time()) else "expired"
        created = time.strftime("%Y-%m-%d", time.localtime(token.created))
        print(f"{token.id}  {token.user}  {token.kind}  {state}  created {created}")


@tokens.command(usage="helixfold serve token revoke NAME [--data DIR]")
@optional_output()
def revoke(name: Annotated[str, Parameter(name="NAME")], /, *, data: Directory = DATA) -> None:
    """Revoke a token, or all tokens of a user. Their sessions, shared links and event streams end immediately.

    Parameters
    ----------
    name
        Id of a token, or name of a user.
    data
        Data directory of the service.
    """
    from helixfold.apps.serve.tokens import TokenFile

    for token in TokenFile(data).revoke(name):
        print(f"{token.id} of {token.user} is revoked")


def _environments(workers: int | None, device: str) -> list[dict[str, str]]:
    """Return the environment variables of each worker to start on this machine: its GPU and number of threads."""
    from data_pipeline.io.processors import available_processors

    gpus = _gpus() if device in ("auto", "cuda") else 0
    count = (gpus or 1) if workers is None else workers
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, available_processors() // max(1, count)))
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    names = names if len(names) == gpus else [str(index) for index in range(gpus)]
    return [
        {"OMP_NUM_THREADS": threads, **({"CUDA_VISIBLE_DEVICES": names[index % gpus]} if gpus else {})}
        for index in range(count)
    ]


def _gpus() -> int:
    """Return the number of NVIDIA GPUs; without a driver, avoid importing PyTorch, which takes long."""
    if not any(map(os.path.exists, ("/dev/nvidiactl", "/dev/dxg"))):
        return 0
    import torch

    return torch.cuda.device_count()
