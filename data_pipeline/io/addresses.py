"""Addresses of servers, as users name them."""

from urllib.parse import urlsplit, urlunsplit


def is_http_address(url: str) -> bool:
    """Whether a URL is http or https and has a host; anything else could be a local file."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def without_password(url: str) -> str:
    """Return the address of a server without the name and the password that may stand before its host."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
