"""Define the command `helixfold fetch`, which fetches the results of jobs from a service."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from helixfold.cli.command import Command
from helixfold.runtime.options import File, MemorySize, Output
from helixfold.runtime.standard_streams import optional_output, print_summary

app = Command(
    name="fetch",
    usage="helixfold fetch JOB... --server URL [--output DIR]\n"
    "example: helixfold fetch 3f2a9c --server https://fold.example.org",
)


@app.default
@optional_output()
def fetch(
    *jobs: Annotated[str, Parameter(name="JOB")],
    server: Annotated[str, Parameter(metavar="URL")],
    token_file: File | None = None,
    allow_http: bool = False,
    output: Output = Path("predictions"),
    max_disk: Annotated[MemorySize, Parameter(show_default="20GiB")] = 20 * 2**30,
) -> int:
    """Wait for jobs of a service and download their results.

    Parameters
    ----------
    jobs
        Job ids printed by `helixfold submit`.
    server
        URL of the service.
    token_file
        File with your token.
    allow_http
        Send the token unencrypted to a server on another machine (http://), over a network that you trust.
    output
        Output directory; each job gets its own subdirectory.
    max_disk
        Maximum size of each result.
    """
    from data_pipeline.io.errors import InputError, printable
    from helixfold.apps.serve.client import refusals_as_input_errors, server_client
    from helixfold.apps.serve.storage import file_name_of

    if not jobs:
        raise InputError("name the jobs to fetch, by the ids that helixfold submit printed")
    failed = 0
    with refusals_as_input_errors(), server_client(server, token_file, allow_http=allow_http) as client:
        for job in jobs:
            ended = client.wait(job)
            if ended["state"] != "done":
                failed += 1
                print(f"{job}: {ended['state']}: {printable(str(ended['error'] or ''), 300)}")
                continue
            target = output / f"{file_name_of(ended['name'])}_{job[:8]}"
            client.fetch(job, target, max_bytes=max_disk)
            print_summary(target)
    return int(failed > 0)
