"""Tokens of the workers that a server starts itself; they are in its memory alone, and end with it."""

import hashlib
import hmac
import secrets
import time

from helixfold.serve.tokens import Token


class LocalTokens:
    """The token of this server's own workers."""

    def __init__(self) -> None:
        self._secret = secrets.token_urlsafe(32)

    def text(self) -> str:
        """Return the token for a worker process of this server."""
        return self._secret

    def verified(self, text: str) -> Token | None:
        """Return the token that this text is, or None."""
        if not hmac.compare_digest(text.encode(), self._secret.encode()):
            return None
        digest = hashlib.sha256(self._secret.encode()).hexdigest()
        return Token(id="local", user="local", kind="worker", digest=digest, created=time.time())
