"""Tokens of users and workers, which commands create and revoke. A running server reads their file when it changes.

A token is "hf_", its public id, and a secret of 256 random bits. The file contains only the SHA-256 of the secret, from
which the secret cannot be recovered. A request with a token is a request of the token's user.
"""

import hashlib
import hmac
import json
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from data_pipeline.io.errors import InputError
from data_pipeline.io.file_lock import acquire_lock
from data_pipeline.io.files import atomic_write
from data_pipeline.io.json_files import read_json
from helixfold.apps.serve.storage import TOKEN_FILE, TOKEN_LOCK, make_private

TokenKind = Literal["user", "worker"]
_USER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")
_TOKEN_FORM = re.compile(r"hf_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_REPAIR_ADVICE: Final = "restore it from a backup, or delete it and create all tokens again"


class TokenFileError(InputError):
    """Error for a damaged token file."""


@dataclass(frozen=True, kw_only=True)
class Token:
    """A token in the token file, without its secret. `id` is the public part of the token.

    Times are seconds since 1970. `expires` is None for a token without expiry, `revoked` for one that is not revoked.
    """

    id: str
    user: str
    kind: TokenKind
    digest: str  # SHA-256 of the secret, in hexadecimal digits
    created: float
    expires: float | None = None
    revoked: float | None = None

    def is_valid(self, now: float) -> bool:
        """Return whether the token is valid at the time `now`: neither revoked nor expired."""
        return self.revoked is None and (self.expires is None or now < self.expires)


class TokenFile:
    """The tokens of a service, in a file of its data `directory` that only the owner can read.

    Methods raise `TokenFileError` if the file is damaged. A missing file has no tokens.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / TOKEN_FILE
        self._state: tuple[int, int, int] | None = None
        self._tokens: dict[str, Token] = {}

    def create(self, user: str, kind: TokenKind = "user", *, seconds: float | None = None) -> str:
        """Create a token for a user, valid for `seconds` or without limit, store its digest, and return it as text.

        The text cannot be read from the file later. Raise `InputError` for an invalid user name.
        """
        if not _USER_NAME.fullmatch(user):
            raise InputError(f"a user name must have 1 to 64 letters, digits, '.', '_', '@' or '-', got {user[:80]!a}")
        now, secret = time.time(), secrets.token_urlsafe(32)
        token = Token(
            id=secrets.token_hex(6),
            user=user,
            kind=kind,
            digest=_digest(secret),
            created=now,
            expires=None if seconds is None else now + seconds,
        )
        with self._edit() as tokens:
            tokens[token.id] = token
        return f"hf_{token.id}_{secret}"

    def revoke(self, name: str) -> list[Token]:
        """Revoke the token with this id, or all tokens of the user with this name, and return the revoked tokens.

        Raise `InputError` if there are none.
        """
        with self._edit() as tokens:
            valid_tokens = [each for each in tokens.values() if name in (each.id, each.user) and each.revoked is None]
            if not valid_tokens:
                raise InputError(f"no valid token has the id or user name {name[:80]!a}")
            revoked = [replace(each, revoked=time.time()) for each in valid_tokens]
            tokens.update({each.id: each for each in revoked})
        return revoked

    def all(self) -> Sequence[Token]:
        """Return all tokens, including revoked and expired ones."""
        self._read()
        return tuple(self._tokens.values())

    def authenticate(self, text: str, kind: TokenKind = "user") -> Token | None:
        """Return the token that a client sent as `text`; None if it is invalid or of another kind."""
        token_match = _TOKEN_FORM.fullmatch(text)
        self._read()
        token = None if token_match is None else self._tokens.get(token_match[1])
        # The work is the same for every id, so that response times do not reveal which ids exist.
        is_own = hmac.compare_digest(
            _digest(token_match[2] if token_match else ""), token.digest if token else _digest("x")
        )
        return token if token is not None and is_own and token.kind == kind and token.is_valid(time.time()) else None

    def valid_token(self, identifier: str) -> Token | None:
        """Return the token with this id if it is valid, for a session that was started with it; else None."""
        self._read()
        token = self._tokens.get(identifier)
        return token if token is not None and token.is_valid(time.time()) else None

    def _read(self) -> None:
        """Read the file again if it has changed; raise `TokenFileError` if it is damaged."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            self._state, self._tokens = None, {}
            return
        state = (status.st_mtime_ns, status.st_size, status.st_ino)
        if state == self._state:
            return
        try:
            content: Any = read_json(self._path, _REPAIR_ADVICE)
            tokens = [Token(**entry) for entry in content["tokens"]]
            if not all(map(_has_right_types, tokens)):
                raise TypeError("values of other types")
        except InputError as error:
            raise TokenFileError(str(error)) from error
        except (TypeError, KeyError) as error:
            raise TokenFileError.at(self._path, f"is not a token file; {_REPAIR_ADVICE}") from error
        self._tokens, self._state = {token.id: token for token in tokens}, state

    @contextmanager
    def _edit(self) -> Iterator[dict[str, Token]]:
        """Yield the tokens, and write them if the context ends without an error. Other commands wait meanwhile."""
        make_private(self._path.parent)
        with acquire_lock(self._path.with_name(TOKEN_LOCK), "tokens are being changed", mode=0o600):
            self._read()
            tokens = dict(self._tokens)
            yield tokens
            with atomic_write(self._path) as temporary:
                temporary.write_text(json.dumps({"tokens": [asdict(token) for token in tokens.values()]}, indent=1))
            self._path.chmod(0o600)


def _has_right_types(token: Token) -> bool:
    """Return whether the values of a token that was read from the file have the declared types."""
    texts, times = (token.id, token.user, token.kind, token.digest), (token.created, token.expires, token.revoked)
    return all(isinstance(text, str) and text.isascii() for text in texts) and all(
        isinstance(moment, int | float | None) for moment in times
    )


def _digest(secret: str) -> str:
    """Return the SHA-256 of a token's secret, in hexadecimal digits."""
    return hashlib.sha256(secret.encode()).hexdigest()
