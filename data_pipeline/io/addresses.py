"""Check and print the addresses of servers that users pass."""

import ipaddress
from urllib.parse import urlsplit, urlunsplit


def is_http_address(url: str) -> bool:
    """Return whether a URL is http or https and has a host, and a port other than 0 if it has one."""
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
    """Return whether a host ("localhost" or an IP address) can only be reached from this machine.

    Other names are not resolved, and give False.
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
