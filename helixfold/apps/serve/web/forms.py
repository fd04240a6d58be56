"""Read the forms of the pages. A form is accepted only in the session for which it was created."""

from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Request
from starlette.datastructures import FormData, UploadFile

from data_pipeline.io.errors import InputError
from helixfold.apps.serve.job_options import OFFERS, option_problem
from helixfold.apps.serve.submission import (
    MAX_FILES,
    MAX_SEQUENCE_TEXT,
    FileKind,
    Submission,
    UploadedFile,
    read_sequence_file,
    read_submissions,
)
from helixfold.apps.serve.web.identity import COOKIE, sessions_of
from helixfold.apps.serve.web.threads import parse_in_thread
from helixfold.runtime.options import Offer

_MAX_FIELDS = 50


async def checked_form(request: Request) -> AsyncIterator[FormData]:
    """Yield the fields of a form, and close its files afterwards. Answer 403 if it belongs to another session."""
    form = await request.form(max_files=MAX_FILES + 1, max_fields=_MAX_FIELDS, max_part_size=MAX_SEQUENCE_TEXT)
    try:
        if not sessions_of(request).is_form_token(request.cookies.get(COOKIE, ""), text_of(form, "csrf")):
            raise HTTPException(403, "this form has expired or belongs to another session; reload the page")
        yield form
    finally:
        await form.close()


CheckedForm = Annotated[FormData, Depends(checked_form)]


def text_of(form: FormData, name: str) -> str:
    """Return the text of a field; an empty string if it is missing or a file."""
    value = form.get(name)
    return value if isinstance(value, str) else ""


def has_uploads(form: FormData) -> bool:
    """Return whether a form contains files."""
    return any(isinstance(value, UploadFile) and value.filename for value in form.values())


async def uploads_of(form: FormData) -> list[UploadedFile]:
    """Return the alignments and template structures in a form, without its sequence file."""
    return [
        UploadedFile(kind=kind, name=each.filename or "", content=await each.read())
        for field, kind in _FILE_FIELDS
        for each in form.getlist(field)
        if isinstance(each, UploadFile) and each.filename
    ]


async def sequence_file_of(request: Request, form: FormData) -> tuple[str, list[UploadedFile]]:
    """Read the sequence file of a form, if it has one. Return its FASTA text, and an a3m file also as an alignment.

    A text above the maximum length is truncated. Raise `InputError` for an invalid table or a3m file.
    """
    upload = form.get("sequence_file")
    if not isinstance(upload, UploadFile) or not upload.filename:
        return "", []
    return await parse_in_thread(request, read_sequence_file, upload.filename, await upload.read())


async def submissions_of(
    request: Request, form: FormData, file_text: str, files: Sequence[UploadedFile]
) -> list[Submission]:
    """Return the submissions of a form.

    `file_text` is the FASTA text of its sequence file, "" without one; `files` are its alignments and templates. Raise
    `InputError` if a sequence cannot be predicted, or if the form has both a sequence and a sequence file.
    """
    text = text_of(form, "sequence")
    if text.strip() and file_text:
        raise InputError(
            "both a sequence and a sequence file were submitted; submit the sequence below, or clear it and choose the "
            "file again"
        )
    text = text if text.strip() else file_text
    return await parse_in_thread(request, read_submissions, text, text_of(form, "name"), options_of(form), files)


_FILE_FIELDS: tuple[tuple[str, FileKind], ...] = (("alignments", "alignment"), ("templates", "template"))


def form_name(offer: Offer) -> str:
    """Return the name of an option's field in the form."""
    return "search_templates" if offer.name == "templates" else offer.name  # "templates" are the user's own files


def options_of(form: FormData) -> dict[str, Any]:
    """Return the options of a form, by their names in a request. Empty fields and unchecked boxes are left out.

    Raise `InputError` with the label of a field for an invalid value.
    """
    texts = {name: text_of(form, form_name(offer)).strip() for name, offer in OFFERS.items()}
    values = {name: _value(OFFERS[name], text) for name, text in texts.items() if text}
    for name, value in values.items():
        if (problem := option_problem(OFFERS[name], value)) is not None:
            raise InputError(f"{OFFERS[name].label}: {problem}")
    return values


def _value(offer: Offer, text: str) -> str | int | bool:
    """Convert the text of a field to the value of its option."""
    if offer.kind == "bool":
        return True  # browsers do not send unchecked boxes
    if offer.kind != "int":
        return text
    if not (text.isascii() and text.isdecimal() and len(text) < 12):
        raise InputError(f"{offer.label}: must be a whole number, got {text[:20]!a}")
    return int(text)
