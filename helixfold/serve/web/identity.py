"""Who makes a request: a token, or the session that was begun with one; and the tokens of forms."""

import base64
import binascii
import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import Depends, HTTPException, Request

from helixfold.serve.service import Service, User
from helixfold.serve.tokens import Token, TokenKind
from helixfold.serve.web.rate_limit import RateLimiter

COOKIE: Final = "helixfold_session"
LOCAL_USER: Final = "local"
SESSION_SECONDS: Final = 7 * 86_400
_CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="helixfold", Basic realm="helixfold"'}


@dataclass(frozen=True)
class Sessions:
    """Signs sessions and the tokens of forms with the secret of the service; nothing of them is stored."""

    secret: bytes

    def begin(self, token_id: str) -> str:
        """Return the value of a session's cookie."""
        content = f"{token_id}.{int(time.time()) + SESSION_SECONDS}.{secrets.token_urlsafe(12)}"
        return f"{content}.{self._signature('session', content)}"

    def token_id(self, cookie: str) -> str | None:
        """Return the id of the token that a session was begun with; None for a forged or an old one."""
        content, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._signature("session", content).encode()):
            return None
        token_id, until, _ = content.split(".", 2)
        return token_id if time.time() < int(until) else None

    def form_token(self, cookie: str) -> str:
        """Return the token that the forms of a session carry."""
        return self._signature("form", cookie)

    def is_form_token(self, cookie: str, given: str) -> bool:
        """Return whether a form was made for this session."""
        return bool(cookie) and hmac.compare_digest(self.form_token(cookie).encode(), given.encode())

    def _signature(self, purpose: str, content: str) -> str:
        digest = hmac.new(self.secret, f"{purpose}:{content}".encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def service_of(request: Request) -> Service:
    """Return the service of the application."""
    service: Service = request.app.state.service
    return service


def sessions_of(request: Request) -> Sessions:
    """Return what signs the sessions of the application."""
    sessions: Sessions = request.app.state.sessions
    return sessions


def client_address(request: Request) -> str:
    """Return the address of the client: as the proxy in front of the service says, if there is one."""
    direct = request.client.host if request.client is not None else ""
    if service_of(request).settings.behind_proxy:
        # The last entry is the proxy's own; those before it are whatever the client wrote.
        forwarded = request.headers.get("x-forwarded-for", "").rpartition(",")[2].strip()
        return forwarded[:64] or direct
    return direct


def shown_token(request: Request) -> str | None:
    """Return the token in the Authorization header, alone or as the password of any name; None without one."""
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
    """Return the id of the token of the session, if there is a good one."""
    cookie = request.cookies.get(COOKIE, "")
    if not cookie or service_of(request).ended_sessions.has(cookie):
        return None
    return sessions_of(request).token_id(cookie)


def user_or_none(request: Request) -> User | None:
    """Return the user who makes the request; None if it does not show a good token of a user."""
    service, address = service_of(request), client_address(request)
    if not service.settings.needs_token:
        return User(LOCAL_USER, address)
    text = shown_token(request)
    if text is not None:
        token = service.tokens.verified(text)
    else:
        identifier = session_token(request)
        token = service.tokens.good(identifier) if identifier is not None else None
    return User(token.user, address, token.id) if token is not None and token.kind == "user" else None


def current_user(request: Request) -> User:
    """Return the user who makes the request, within the rate that one is allowed; else answer 401 or 429."""
    user = user_or_none(request)
    limiter: RateLimiter = request.app.state.limiter
    limiter.take(f"user {user.name}" if user is not None else f"address {client_address(request)}")
    if user is None:
        raise HTTPException(401, "show a token, as in 'Authorization: Bearer hf_...'", headers=_CHALLENGE)
    return user


def current_worker(request: Request) -> Token:
    """Return the token of the worker that makes the request; else answer 401."""
    return _shown(request, "worker")


def _shown(request: Request, kind: TokenKind) -> Token:
    text = shown_token(request)
    local: Token | None = request.app.state.local_workers.verified(text or "")
    token = local or service_of(request).tokens.verified(text or "", kind)
    if token is None:
        request.app.state.limiter.take(f"address {client_address(request)}")
        raise HTTPException(401, f"show the token of a {kind}", headers=_CHALLENGE)
    return token


# What is no coroutine would be called in another thread, which takes longer than the whole of it.
async def _service(request: Request) -> Service:
    return service_of(request)


async def _user(request: Request) -> User:
    return current_user(request)


async def _worker(request: Request) -> Token:
    return current_worker(request)


ServiceOf = Annotated[Service, Depends(_service)]
CurrentUser = Annotated[User, Depends(_user)]
CurrentWorker = Annotated[Token, Depends(_worker)]
