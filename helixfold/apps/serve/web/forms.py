"""Read the forms of the pages, which are taken only from the session that they were made for."""

from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Request
from starlette.datastructures import FormData, UploadFile

from data_pipeline.io.errors import InputError
from helixfold.apps.serve.job_options import OFFERS
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
    """Yield the fields of a form, and close its files; answer 403 if it was not made for the session of the request."""
    form = await request.form(max_files=MAX_FILES + 1, max_fields=_MAX_FIELDS, max_part_size=MAX_SEQUENCE_TEXT)
    try:
        if not sessions_of(request).is_form_token(request.cookies.get(COOKIE, ""), text_of(form, "csrf")):
            raise HTTPException(403, "this form has expired or belongs to another session; reload the page")
        yield form
    finally:
        await form.close()


CheckedForm = Annotated[FormData, Depends(checked_form)]


def text_of(form: FormData, name: str) -> str:
    """Return the text of a field, empty if it is missing or a file."""
    value = form.get(name)
    return value if isinstance(value, str) else ""


def has_uploads(form: FormData) -> bool:
    """Return whether files came with a form."""
    return any(isinstance(value, UploadFile) and value.filename for value in form.values())


async def uploads_of(form: FormData) -> list[UploadedFile]:
    """Return the alignments and structures that came with a form."""
    return [
        UploadedFile(kind=kind, name=each.filename or "", content=await each.read())
        for field, kind in _FILE_FIELDS
        for each in form.getlist(field)
        if isinstance(each, UploadFile) and each.filename
    ]


async def sequence_file_of(request: Request, form: FormData) -> tuple[str, list[UploadedFile]]:
    """Return the FASTA text of the sequence file of a filled form and the alignment in it; empty without one.

    Too long a text is cut. Raise `InputError` for a table or an a3m that cannot be used.
    """
    dropped = form.get("sequence_file")
    if not isinstance(dropped, UploadFile) or not dropped.filename:
        return "", []
    return await parse_in_thread(request, read_sequence_file, dropped.filename, await dropped.read())


async def submissions_of(
    request: Request, form: FormData, dropped: str, files: Sequence[UploadedFile]
) -> list[Submission]:
    """Return what a filled form with these files submits. Raise `InputError` for what cannot be predicted."""
    text = text_of(form, "sequence")
    if text.strip() and dropped:
        raise InputError(
            "both a sequence and a sequence file were submitted; submit the sequence below, or clear it and choose the "
            "file again"
        )
    text = text if text.strip() else dropped
    return await parse_in_thread(request, read_submissions, text, text_of(form, "name"), options_of(form), files)


_FILE_FIELDS: tuple[tuple[str, FileKind], ...] = (("alignments", "alignment"), ("templates", "template"))


def form_name(offer: Offer) -> str:
    """Return the name of an option's field in the form."""
    return "search_templates" if offer.name == "templates" else offer.name  # "templates" are the user's own files


def options_of(form: FormData) -> dict[str, Any]:
    """Return the options of a filled form. Raise `InputError` for a number that is none."""
    texts = {name: text_of(form, form_name(offer)).strip() for name, offer in OFFERS.items()}
    return {name: _value(OFFERS[name], text) for name, text in texts.items() if text}


def _value(offer: Offer, text: str) -> str | int | bool:
    if offer.kind == "bool":
        return True  # a box that is not ticked is not sent
    if offer.kind != "int":
        return text
    if not (text.isascii() and text.isdecimal() and len(text) < 12):
        raise InputError(f"{offer.name} must be a whole number, got {text[:20]!a}")
    return int(text)
