"""Render the pages of the service from templates with automatic escaping."""

import time
from functools import cache
from importlib import resources
from typing import Any, Final

import jinja2
from fastapi import Request
from starlette.responses import HTMLResponse, Response

from helixfold import __version__
from helixfold.apps.serve.web.identity import (
    COOKIE,
    LOCAL_USER,
    SESSION_SECONDS,
    is_for_programs,
    service_of,
    session_token,
    sessions_of,
    user_or_none,
)
from helixfold.report.page import asset, counted, duration

_PAGES = resources.files("helixfold.apps.serve") / "pages"
# The media types of the files that /static/ sends.
STATIC: Final = {"service.css": "text/css; charset=utf-8", "service.js": "text/javascript; charset=utf-8"}


def wants_page(request: Request) -> bool:
    """Return whether the request comes from a browser that expects a page."""
    return not is_for_programs(request.scope["path"]) and "text/html" in request.headers.get("accept", "")


def page(request: Request, template: str, /, code: int = 200, **content: Any) -> Response:
    """Render a page. Start a session if there is none, because the forms of the page belong to a session.

    `template` is the name of its file, `code` the status of the answer, and `content` the variables of the template.
    """
    sessions, user = sessions_of(request), user_or_none(request)
    cookie = request.cookies.get(COOKIE, "")
    is_new = session_token(request) is None
    if is_new:
        cookie = sessions.begin("local" if user is not None and user.name == LOCAL_USER else "")
    text = (
        _environment()
        .get_template(template)
        .render(
            version=__version__,
            provenance=service_of(request).provenance(),
            user=user,
            needs_token=service_of(request).settings.needs_token,
            csrf=sessions.form_token(cookie),
            **content,
        )
    )
    response = HTMLResponse(text, code)
    if is_new:
        set_session(request, response, cookie)
    return response


def set_session(request: Request, response: Response, cookie: str) -> None:
    """Set the session cookie so that scripts cannot read it and forms of other sites do not send it."""
    is_secure = service_of(request).settings.behind_proxy or request.url.scheme == "https"
    response.set_cookie(COOKIE, cookie, max_age=SESSION_SECONDS, httponly=True, secure=is_secure, samesite="lax")


def error_page(request: Request, status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    """Return a page with an error message."""
    response = page(request, "error.html", status, text=text, status=status)
    response.headers.update(headers or {})
    return response


def static_file(name: str) -> str:
    """Return the text of a style sheet or script. The style sheet begins with the one of the report pages."""
    own_text = _template(name)
    return asset("page.css") + own_text if name.endswith(".css") else own_text


@cache
def _template(name: str) -> str:
    """Return the text of a page template, style sheet or script of the package."""
    return (_PAGES / name).read_text(encoding="utf-8")


@cache
def _environment() -> jinja2.Environment:
    """Return the environment of the templates, with the functions that format values in them."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_template),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "thousands": "{:,}".format,
        "counted": counted,
        "duration": duration,
        "day": lambda seconds: time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)),
        "gib": lambda size: f"{size / 2**30:.1f} GiB",
        "size": lambda size: f"{size / 2**30:.1f} GiB" if size >= 2**29 else f"{size / 2**20:.1f} MiB",
    }
    return environment
