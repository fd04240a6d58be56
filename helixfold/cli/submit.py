"""Define the commands `helixfold submit` and `fetch`, which submit sequences to a service and fetch its results."""

from dataclasses import make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from helixfold.apps.serve.job_options import OFFERS, PREDICT_OPTIONS
from helixfold.cli.command import Command
from helixfold.runtime.options import File, MemorySize, Offer, Output, option_group, reads, whole_number
from helixfold.runtime.standard_streams import optional_output, print_summary

# Options have the names of predict, except where those names mean files here or the values differ.
_COMMAND_LINE_NAMES = {
    **{offer.name: name for name, offer in PREDICT_OPTIONS.items()},
    "model": "model",
    "relax": "relax",
    "search": "search",
    "templates": "search_templates",
}
app = Command(
    name="submit",
    usage="helixfold submit FILE... --server URL [options]\n"
    "example: helixfold submit protein.fasta --server https://fold.example.org",
)


def _field(offer: Offer) -> tuple[str, Any, Any]:
    """Return the name, type and default of an option of a job on the command line."""
    kind: Any = {"bool": bool, "int": int, "str": Literal[tuple(offer.choices)] if offer.choices else str}[offer.kind]
    name = _COMMAND_LINE_NAMES[offer.name]
    metavar = name.split("_")[-1].upper() if offer.kind == "str" and not offer.choices else None
    text = Parameter(help=f"{offer.text[0].upper()}{offer.text[1:]}.", metavar=metavar)
    limits = [] if offer.kind != "int" or offer.bounds is None else [reads(whole_number(*offer.bounds), "N")]
    return name, Annotated[(kind if offer.default is not None else kind | None, text, *limits)], offer.default


_JOB_OPTION_FIELDS = [_field(offer) for offer in OFFERS.values()]
JobOptions: Any = make_dataclass(
    "JobOptions", _JOB_OPTION_FIELDS, frozen=True, kw_only=True, namespace={"__module__": __name__}
)
JobOptions = option_group(Group.create_ordered("Prediction"))(JobOptions)


@app.default
@optional_output()
def submit(
    *inputs: Annotated[Path, Parameter(name="FILE")],
    server: Annotated[str, Parameter(metavar="URL")],
    token_file: File | None = None,
    allow_http: bool = False,
    msa: Annotated[tuple[Path, ...], Parameter(metavar="PATH...")] = (),
    templates: Annotated[tuple[Path, ...], Parameter(metavar="PATH...")] = (),
    wait: bool = False,
    options: JobOptions = JobOptions(),  # noqa: B008  frozen
) -> int:
    """Submit proteins and complexes to a service, and print the id of each job.

    Parameters
    ----------
    inputs
        FASTA files (every record is a job, with ':' between the chains of a complex), or sequences of at least ten
        residues.
    server
        URL of the service.
    token_file
        File with your token.
    allow_http
        Send the token unencrypted to a server on another machine (http://), over a network that you trust.
    msa
        Alignments to use, for a single sequence.
    templates
        Template structures to use, for a single sequence.
    wait
        Wait until all jobs have finished.
    """
    from data_pipeline.io.errors import printable
    from helixfold.apps.serve.client import client_errors_as_input_errors, server_client
    from helixfold.apps.serve.submitted_files import read_records

    values = {name: getattr(options, _COMMAND_LINE_NAMES[name]) for name in OFFERS}
    values = {name: value for name, value in values.items() if value != OFFERS[name].default}
    values["search_templates"] = values.pop("templates", False)
    with client_errors_as_input_errors(), server_client(server, token_file, allow_http=allow_http) as client:
        jobs = []
        for name, sequence in read_records(inputs, has_files=bool(msa or templates)):
            job = client.submit(
                sequence,
                name=name,
                alignments=msa,
                templates=templates,
                **values,
            )
            jobs.append(job["id"])
            print(job["id"], printable(name), flush=True)
        ended = [client.wait(job) for job in jobs] if wait else []
        for job in ended:
            print(job["id"], job["state"], *([printable(job["error"], 300)] if job["error"] else []))
    return int(any(job["state"] != "done" for job in ended))


fetching = Command(
    name="fetch",
    usage="helixfold fetch JOB... --server URL [--output DIR]\n"
    "example: helixfold fetch 3f2a9c --server https://fold.example.org",
)


@fetching.default
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
    from helixfold.apps.serve.client import client_errors_as_input_errors, server_client
    from helixfold.apps.serve.storage import file_name_of

    if not jobs:
        raise InputError("name the jobs to fetch, by the ids that helixfold submit printed")
    failed = 0
    with client_errors_as_input_errors(), server_client(server, token_file, allow_http=allow_http) as client:
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
