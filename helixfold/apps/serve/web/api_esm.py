"""The route of ESM Atlas: the request is a sequence as plain text, the answer its structure as a PDB file."""

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse

from data_pipeline.io.errors import InputError
from helixfold.apps.serve.submission import MAX_SEQUENCE_TEXT, read_submissions
from helixfold.apps.serve.web.api_nim import predicted_pdb_files
from helixfold.apps.serve.web.bodies import PROBLEMS
from helixfold.apps.serve.web.identity import CurrentUser, ServiceOf
from helixfold.apps.serve.web.threads import ThreadedRoute, parse_in_thread

router = APIRouter(tags=["ESM Atlas"], responses=PROBLEMS, route_class=ThreadedRoute)
_TEXT_BODY = {
    "content": {"text/plain": {"schema": {"type": "string", "maxLength": MAX_SEQUENCE_TEXT}}},
    "required": True,
}


@router.post("/foldSequence/v1/pdb/", response_class=PlainTextResponse, openapi_extra={"requestBody": _TEXT_BODY})
async def fold_sequence(request: Request, service: ServiceOf, user: CurrentUser) -> PlainTextResponse:
    """Predict the structure of one sequence, wait until it is done, and return the best prediction as a PDB file."""
    content = await request.body()
    if len(content) > MAX_SEQUENCE_TEXT:
        raise InputError(f"the text has {len(content):,} bytes; the maximum is {MAX_SEQUENCE_TEXT:,}")
    submissions = await parse_in_thread(request, read_submissions, content.decode("utf-8", "replace"), "sequence")
    if len(submissions) > 1:
        raise InputError("this route accepts one sequence; submit several records as jobs")
    best_structure, *_ = await predicted_pdb_files(submissions[0], request, service, user)
    return PlainTextResponse(best_structure)
