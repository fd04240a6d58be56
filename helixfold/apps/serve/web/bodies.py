"""The bodies of requests and answers of the REST interface, from which FastAPI generates the OpenAPI description."""

import base64
import binascii
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from data_pipeline.io.errors import InputError
from helixfold.apps.serve.forecast_curve import ForecastBody
from helixfold.apps.serve.job_options import OFFERS
from helixfold.apps.serve.queue.jobs import JobKind
from helixfold.apps.serve.submission import (
    MAX_FILES,
    MAX_SEQUENCE_TEXT,
    FileKind,
    Submission,
    UploadedFile,
    read_submissions,
)
from helixfold.runtime.options import Offer


class _Strict(BaseModel):
    """A body in which unknown fields are errors."""

    model_config = ConfigDict(extra="forbid")


def _field(offer: Offer) -> tuple[Any, Any]:
    """Return the type, with its bounds, and the default of an option in a request."""
    value_type: Any = {"bool": bool, "int": int, "str": Literal[tuple(offer.choices)] if offer.choices else str}[
        offer.kind
    ]
    minimum, maximum = offer.bounds or (None, None)
    bounds: dict[str, Any] = {"max_length": maximum} if offer.kind == "str" else {"ge": minimum, "le": maximum}
    field = Field(description=offer.text, pattern=offer.pattern or None, **bounds)
    return Annotated[value_type if offer.default is not None else value_type | None, field], offer.default


_FIELDS: dict[str, Any] = {name: _field(offer) for name, offer in OFFERS.items()}
OptionsBody: Any = create_model(
    "OptionsBody",
    __base__=_Strict,
    __doc__="Options of a prediction; the service chooses those that are omitted.",
    **_FIELDS,
)


class FileBody(_Strict):
    """An alignment (a3m, Stockholm, aligned FASTA) or a template structure (mmCIF, PDB)."""

    name: Annotated[str, Field(max_length=200, description="its extension gives the format")]
    content: Annotated[str, Field(description="the text, or base64 of a compressed file")]
    encoding: Literal["text", "base64"] = "text"

    def to_bytes(self) -> bytes:
        """Return the content as bytes. Raise `InputError` if it is not valid base64."""
        if self.encoding == "text":
            return self.content.encode()
        try:
            return base64.b64decode(self.content, validate=True)
        except (binascii.Error, ValueError) as error:
            raise InputError("the content of a file is not valid base64") from error


class SubmissionBody(_Strict):
    """A protein or a complex to predict."""

    sequence: Annotated[
        str,
        Field(max_length=MAX_SEQUENCE_TEXT, description="one-letter codes, ':' between chains; or one FASTA record"),
    ]
    name: Annotated[str, Field(max_length=200)] = ""
    options: OptionsBody = Field(default_factory=OptionsBody)
    alignments: Annotated[list[FileBody], Field(max_length=MAX_FILES)] = Field(default_factory=list)
    templates: Annotated[list[FileBody], Field(max_length=MAX_FILES)] = Field(default_factory=list)
    webhook: Annotated[str | None, Field(max_length=2_000, description="called at the end of the job")] = None

    def submission(self) -> Submission:
        """Return the submission. Raise `InputError` unless the text is exactly one valid sequence."""
        files = [_uploaded("alignment", file) for file in self.alignments]
        files += [_uploaded("template", file) for file in self.templates]
        submissions = read_submissions(self.sequence, self.name, self.options.model_dump(), files)
        if len(submissions) > 1:
            raise InputError("a job has one sequence, with ':' between its chains; submit each record separately")
        return submissions[0]


def _uploaded(kind: FileKind, file: FileBody) -> UploadedFile:
    """Return a file of a body as an uploaded file of a kind."""
    return UploadedFile(kind=kind, name=file.name, content=file.to_bytes())


class JobBody(BaseModel):
    """A job. Times are seconds since 1970; `place` is its position in the queue from 1, null if it is not queued.

    `attempts` counts how often a worker started the job. `forecast` is always null.
    """

    id: str
    kind: JobKind
    name: str
    state: Literal["queued", "running", "done", "failed", "cancelled", "expired"]
    place: int | None
    residues: int
    created: float
    started: float | None
    ended: float | None
    attempts: int
    error: str | None
    progress: dict[str, Any]
    options: dict[str, Any]
    sequence: str
    summary: dict[str, Any]
    forecast: ForecastBody | None = None


class JobsBody(BaseModel):
    """Jobs of a user, the newest first. Pass `next` as `before` to get the following jobs; null at the end."""

    jobs: list[JobBody]
    next: int | None


class ResultFile(BaseModel):
    """Path and size of a result file."""

    path: str
    bytes: int


class ProblemBody(BaseModel):
    """Why a request was refused, in one sentence."""

    error: str


class NameBody(_Strict):
    """A new name of a job."""

    name: Annotated[str, Field(min_length=1, max_length=200)]


class ShareBody(BaseModel):
    """A link that shows a job to anyone who has it, until `expires` in seconds since 1970.

    `url` is null unless the service was started with --public-url.
    """

    path: str
    url: str | None
    expires: float


class ServiceBody(BaseModel):
    """Models and limits of the service, and the numbers of workers, queued jobs and running jobs.

    `provenance` is "demonstration" or "untrained" if a worker has no better model.
    """

    version: str
    models: list[str]
    provenance: str
    databases: bool
    template_databases: bool
    workers: int
    queued: int
    running: int
    max_residues: int


# The error answers of a route, for the OpenAPI description.
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": ProblemBody} for status in (401, 404, 408, 409, 413, 421, 422, 429)
}
