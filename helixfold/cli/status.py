"""Define the command `helixfold status`, which shows the progress of a batch, or the jobs of a service."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from helixfold.cli.command import Command
from helixfold.runtime.options import File
from helixfold.runtime.standard_streams import optional_output

app = Command(
    name="status",
    usage="helixfold status DIRECTORY\n       helixfold status --server URL [JOB...]\n"
    "example: helixfold status predictions/",
)


@app.default
@optional_output()
def status(
    *words: Annotated[str, Parameter(name="DIRECTORY")],
    server: Annotated[str | None, Parameter(metavar="URL")] = None,
    token_file: File | None = None,
    allow_http: bool = False,
) -> int:
    """Show the progress of a batch of predictions: finished and failed targets and, with --cluster, its nodes. With
    --server, show jobs of a service. The exit code is 1 if targets have failed.

    Parameters
    ----------
    words
        Output directory of `helixfold predict`. With --server: job ids, or nothing for the newest jobs.
    server
        URL of the service.
    token_file
        File with your token.
    allow_http
        Send the token unencrypted to a server on another machine (http://), over a network that you trust.
    """
    if server is not None:
        _print_jobs(server, token_file, words, allow_http=allow_http)
        return 0
    from data_pipeline.io.errors import InputError, printable
    from helixfold.apps.cluster.progress import status_lines
    from helixfold.results.failures import SOME_FAILED, failures_in

    if len(words) != 1:
        raise InputError("DIRECTORY is required, one of them, or --server URL (see helixfold status --help)")
    for line in status_lines(Path(words[0])):
        print(printable(line, 1_000))
    return SOME_FAILED if failures_in(Path(words[0])) else 0


def _print_jobs(server: str, token_file: Path | None, ids: tuple[str, ...], *, allow_http: bool) -> None:
    """Print a line for each job of a service, or for the newest jobs without ids."""
    from data_pipeline.io.errors import printable
    from helixfold.apps.serve.client import client_errors_as_input_errors, server_client

    with client_errors_as_input_errors(), server_client(server, token_file, allow_http=allow_http) as client:
        for job in [client.job(each) for each in ids] if ids else client.jobs(limit=20):
            place = f", place {job['place']}" if job["place"] else ""
            stages = job["progress"].get("stages") or []
            stage = f", {stages[-1]['name']} done" if stages and job["state"] == "running" else ""
            error = f": {job['error']}" if job["error"] else ""
            provenance = job["summary"].get("provenance")
            mark = f" ({provenance})" if provenance in ("demonstration", "untrained") else ""
            print(printable(f"{job['id']}  {job['state']}{place}{stage}  {job['name']}{mark}{error}", 400))
