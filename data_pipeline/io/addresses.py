"""Check and print the addresses of servers that users pass."""

import ipaddress
from urllib.parse import urlsplit, urlunsplit


def is_http_address(url: str) -> bool:
    """Whether a URL is http or https and has a host; anything else could be a local file."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def without_password(url: str) -> str:
    """Return the address of a server without its user name and password, if it has them."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def is_loopback(host: str) -> bool:
    """Return whether an address can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
