"""The pages to log in with a token and to log out."""

import re

from fastapi import APIRouter, HTTPException, Request
from starlette.responses import RedirectResponse, Response

from helixfold.apps.serve.web.forms import CheckedForm, text_of
from helixfold.apps.serve.web.identity import (
    COOKIE,
    SESSION_SECONDS,
    ServiceOf,
    client_address,
    session_token,
    sessions_of,
    user_or_none,
)
from helixfold.apps.serve.web.pages import STATIC, page, set_session, static_file
from helixfold.apps.serve.web.threads import ThreadedRoute

router = APIRouter(include_in_schema=False, route_class=ThreadedRoute)
# A path on this server. With a second slash it would be the address of another server.
_PATH_ON_THIS_SERVER = re.compile(r"/(?![/\\])[A-Za-z0-9_./-]{0,200}")


@router.get("/login")
def login_page(request: Request, next: str = "/") -> Response:
    """Show the form for a token."""
    return page(request, "login.html", next=own_path(next), problem=None)


@router.post("/login")
def login(request: Request, service: ServiceOf, form: CheckedForm) -> Response:
    """Start a session with the token in the form, and redirect to the page "next"; else show the form with an error.

    Both are recorded in the audit log.
    """
    address = client_address(request)
    token = service.tokens.authenticate(text_of(form, "token").strip())
    target = own_path(text_of(form, "next"))
    if token is None:
        service.audit.add("", address, "login refused")
        return page(request, "login.html", 401, next=target, problem="invalid or expired token")
    service.audit.add(token.user, address, "login", detail=token.id)
    response = RedirectResponse(target, 303)
    set_session(request, response, sessions_of(request).begin(token.id))
    return response


@router.post("/logout")
def logout(request: Request, service: ServiceOf, form: CheckedForm) -> Response:
    """End the session, so that copies of its cookie are also invalid, and redirect to the login page."""
    if (user := user_or_none(request)) is not None and session_token(request):
        service.ended_sessions.add(request.cookies[COOKIE], SESSION_SECONDS)
        service.audit.add(user.name, user.address, "logout", detail=user.token)
    response = RedirectResponse("/login", 303)
    response.delete_cookie(COOKIE)
    return response


@router.get("/static/{name}")
def static(name: str) -> Response:
    """Send the style sheet or the script of the pages. Answer 404 for another name."""
    if name not in STATIC:
        raise HTTPException(404, "file not found")
    headers = {"Cache-Control": "max-age=3600"}
    return Response(static_file(name), media_type=STATIC[name], headers=headers)


def own_path(text: str) -> str:
    """Return a path on this server unchanged; "/" for any other address."""
    return text if _PATH_ON_THIS_SERVER.fullmatch(text) else "/"
