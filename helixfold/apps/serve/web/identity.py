"""Authentication: who makes a request, by a token or a session; tokens of forms; paths that need no token."""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import time
from dataclasses import dataclass
from typing import Annotated, Any, Final
from urllib.parse import quote

from fastapi import Depends, HTTPException, Request

from helixfold.apps.serve.service import Service, User
from helixfold.apps.serve.settings import API
from helixfold.apps.serve.tokens import Token

COOKIE: Final = "helixfold_session"
LOCAL_USER: Final = "local"  # the user of all requests if no tokens are required
SESSION_SECONDS: Final = 7 * 86_400  # after which a session expires
_PUBLIC_PATHS: Final = ("/login", "/logout", "/api/openapi.json")
_PUBLIC_PREFIXES: Final = ("/static/", "/shared/", "/v1/health/")
_PATHS_FOR_PROGRAMS: Final = (
    *("/api/", "/metrics", "/ticket/", "/result/", "/template/", "/v1/health/"),
    *("/protein-structure/", "/foldSequence/"),
)
# An address with a port, as some proxies write it. The port differs between connections.
_ADDRESS_WITH_PORT = re.compile(r"(\d{1,3}(?:\.\d{1,3}){3}):\d{1,5}|\[([0-9A-Fa-f:.]{2,45})\](?::\d{1,5})?", re.ASCII)
_CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="helixfold", Basic realm="helixfold"'}


@dataclass(frozen=True)
class Sessions:
    """Signs session cookies and form tokens with the secret of the service, so that they need not be stored."""

    secret: bytes

    def begin(self, token_id: str) -> str:
        """Start a session with the token of this id, and return the value of its cookie."""
        content = f"{token_id}.{int(time.time()) + SESSION_SECONDS}.{secrets.token_urlsafe(12)}"
        return f"{content}.{self._signature('session', content)}"

    def token_id(self, cookie: str) -> str | None:
        """Return the id of the token with which a session was started; None for a forged or expired cookie."""
        content, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._signature("session", content).encode()):
            return None
        token_id, until, _ = content.split(".", 2)
        return token_id if time.time() < int(until) else None

    def form_token(self, cookie: str) -> str:
        """Return the token that the forms of a session must contain."""
        return self._signature("form", cookie)

    def is_form_token(self, cookie: str, token: str) -> bool:
        """Return whether a form with this token was created for the session."""
        return bool(cookie) and hmac.compare_digest(self.form_token(cookie).encode(), token.encode())

    def _signature(self, purpose: str, content: str) -> str:
        """Return the signature of a text for one purpose, so that it is invalid for others."""
        digest = hmac.new(self.secret, f"{purpose}:{content}".encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def service_of(request: Request) -> Service:
    """Return the service of the application."""
    service: Service = request.app.state.service
    return service


def sessions_of(request: Request) -> Sessions:
    """Return the `Sessions` of the application."""
    sessions: Sessions = request.app.state.sessions
    return sessions


def client_address(request: Request) -> str:
    """Return the IP address of the client, behind a proxy from the X-Forwarded-For header."""
    direct_address = request.client.host if request.client is not None else ""
    if service_of(request).settings.behind_proxy:
        # The proxy adds the last entry; the client can write anything into the earlier ones.
        # Some proxies add it to the client's header, others add another header after the client's.
        forwarded_address = ",".join(request.headers.getlist("x-forwarded-for")).rpartition(",")[2].strip()
        port_match = _ADDRESS_WITH_PORT.fullmatch(forwarded_address)
        return (port_match[1] or port_match[2] if port_match else forwarded_address[:64]) or direct_address
    return direct_address


def header_token(request: Request) -> str | None:
    """Return the token in the Authorization header, as bearer token or as basic password; None without one.

    The token is not checked. A basic password that cannot be decoded is an empty string.
    """
    scheme, _, value = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode("ascii").rpartition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return None


def session_token(request: Request) -> str | None:
    """Return the id of the token of a valid session; None without one."""
    cookie = request.cookies.get(COOKIE, "")
    if not cookie or service_of(request).ended_sessions.has(cookie):
        return None
    return sessions_of(request).token_id(cookie)


def user_or_none(request: Request) -> User | None:
    """Return the user who makes the request; None without a valid user token or session.

    If no tokens are required, this is the user "local". A token in a header takes precedence over a session.
    """
    service, address = service_of(request), client_address(request)
    if not service.settings.needs_token:
        return User(LOCAL_USER, address)
    text = header_token(request)
    if text is not None:
        token = service.tokens.authenticate(text)
    else:
        identifier = session_token(request)
        token = service.tokens.valid_token(identifier) if identifier is not None else None
    return User(token.user, address, token.id) if token is not None and token.kind == "user" else None


def worker_or_none(request: Request) -> Token | None:
    """Return the token of the worker that makes the request; None without a valid worker token.

    Workers that this server started share a token with the user "local", which is not in the token file.
    """
    text = header_token(request) or ""
    if hmac.compare_digest(text.encode(), request.app.state.worker_token.encode()):
        return Token(id="local", user="local", kind="worker", digest="", created=time.time())
    return service_of(request).tokens.authenticate(text, "worker")


def identify(request: Request) -> User | Token | None:
    """Return who makes the request, a worker on the routes for workers, else a user; store it for the route."""
    is_for_workers = request.scope["path"].startswith(f"{API}/worker/")
    caller = worker_or_none(request) if is_for_workers else user_or_none(request)
    request.state.caller = caller
    return caller


def refuse_unauthenticated(request: Request) -> None:
    """Answer 401 to a request without a valid token, or redirect a browser to the login page."""
    path = request.scope["path"]
    if is_for_programs(path):
        kind = "worker" if path.startswith(f"{API}/worker/") else "user"
        raise HTTPException(401, f"a {kind} token is required, as in 'Authorization: Bearer hf_...'", _CHALLENGE)
    raise HTTPException(303, "log in first", {"Location": f"/login?next={quote(path)}"})


def is_for_programs(path: str) -> bool:
    """Return whether a path belongs to an interface for programs, not to the pages."""
    return path.startswith(_PATHS_FOR_PROGRAMS)


def is_public(path: str) -> bool:
    """Return whether a path is accessible without a token."""
    return path in _PUBLIC_PATHS or path.startswith(_PUBLIC_PREFIXES)


# Coroutines, because FastAPI calls other functions in a thread, which takes longer than they do.
async def _service(request: Request) -> Service:
    return service_of(request)


async def _user(request: Request) -> User:
    caller: Any = request.state.caller
    assert isinstance(caller, User)
    return caller


async def _worker(request: Request) -> Token:
    caller: Any = request.state.caller
    assert isinstance(caller, Token)
    return caller


ServiceOf = Annotated[Service, Depends(_service)]
CurrentUser = Annotated[User, Depends(_user)]
CurrentWorker = Annotated[Token, Depends(_worker)]
