"""Define the command `helixfold submit`, which submits sequences to a service."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from helixfold.options import File, reads, whole_number
from helixfold.standard_streams import optional_output

app = App(
    name="submit",
    usage="helixfold submit FILE... --server URL [options]\n"
    "example: helixfold submit protein.fasta --server https://fold.example.org",
)


@app.default
@optional_output()
def submit(
    *inputs: Annotated[Path, Parameter(name="FILE")],
    server: Annotated[str, Parameter(metavar="URL")],
    token_file: File | None = None,
    allow_http: bool = False,
    model: Annotated[str | None, Parameter(metavar="MODEL")] = None,
    num_recycles: Annotated[int | None, reads(whole_number(0, 50), "N")] = None,
    num_seeds: Annotated[int, reads(whole_number(1, 20), "N")] = 1,
    msa: Annotated[tuple[Path, ...], Parameter(metavar="PATH...")] = (),
    templates: Annotated[tuple[Path, ...], Parameter(metavar="PATH...")] = (),
    wait: bool = False,
) -> int:
    """Submit proteins and complexes to a service, and print the id of each job.

    Parameters
    ----------
    inputs
        FASTA files (every record is a job, with ':' between the chains of a complex), or sequences.
    server
        URL of the service.
    token_file
        File with your token.
    allow_http
        Send the token unencrypted to a server on another machine (http://), over a network that you trust.
    model
        Model to use; it must be offered by the service.
    num_recycles
        Recycling iterations after the first one.
    num_seeds
        Number of predictions per sequence.
    msa
        Alignments to use, for a single sequence.
    templates
        Template structures to use, for a single sequence.
    wait
        Wait until all jobs have finished.
    """
    from data_pipeline.errors import printable
    from helixfold.serve.client import refusals_as_input_errors, server_client
    from helixfold.serve.submitted_files import records_of

    with refusals_as_input_errors(), server_client(server, token_file, allow_http=allow_http) as client:
        jobs = []
        for name, sequence in records_of(inputs, has_files=bool(msa or templates)):
            job = client.submit(
                sequence,
                name=name,
                alignments=msa,
                templates=templates,
                model=model,
                recycles=num_recycles,
                predictions=num_seeds,
            )
            jobs.append(job["id"])
            print(job["id"], printable(name), flush=True)
        ended = [client.wait(job) for job in jobs] if wait else []
        for job in ended:
            print(job["id"], job["state"], *([printable(job["error"], 300)] if job["error"] else []))
    return int(any(job["state"] != "done" for job in ended))
