"""Settings of a service: where it listens, who may use it, and what it offers."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

from cyclopts import Parameter

from data_pipeline.io.addresses import is_loopback
from data_pipeline.io.config import POSITIVE, Checked, at_least, at_most
from data_pipeline.io.errors import InputError, printable
from helixfold.apps.serve.queue.jobs import LIMITS, QueueOptions
from helixfold.apps.serve.transfer import MAX_INPUT_BYTES
from helixfold.runtime.annotations import Group
from helixfold.runtime.options import MOST_USED, Directory, MemorySize, Positive, option_group

DATA: Final = Path("helixfold-service")  # the default data directory, in the working directory
API: Final = "/api/v1"  # the prefix of the paths of the REST interface
_PUBLIC_URL = re.compile(r"https?://([a-z0-9.-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::[0-9]{1,5})?")


@option_group(Group.create_ordered("Server"))
@dataclass(frozen=True, kw_only=True)
class ListeningOptions(Checked):
    """Options for where a server listens and who may use it.

    `data` is its directory. `workers` is the number of workers on this machine, and `host_name` are additional names in
    requests. `webhook_host` are hosts with ports. `max_upload` is in bytes, and `max_requests` a number per minute.
    """

    data: Annotated[Directory, Parameter(group=MOST_USED)] = DATA
    """Directory for the queue, inputs and results. Only its owner can read it."""
    host: Annotated[str, Parameter(metavar="ADDRESS", group=MOST_USED, show_default="this machine only")] = "127.0.0.1"
    """Address to listen on; 0.0.0.0 listens on all networks. All but loopback addresses require tokens."""
    port: Annotated[int, Parameter(metavar="N", group=MOST_USED), at_least(0), at_most(65_535)] = 8000
    """Port to listen on."""
    workers: Annotated[
        int | None, Parameter(metavar="N", group=MOST_USED, show_default="one per GPU, at least one")
    ] = None
    """Workers to start on this machine. 0: none, all workers run elsewhere."""
    behind_proxy: bool = False
    """A proxy in front of the service handles TLS and sets X-Forwarded-For. Requires tokens."""
    require_tokens: Annotated[bool, Parameter(alias="--demand-token")] = False
    """Require tokens on a loopback address too."""
    host_name: Annotated[tuple[str, ...], Parameter(metavar="NAME...", show_default="any, if tokens are required")] = ()
    """Additional host names that requests may use."""
    public_url: Annotated[str | None, Parameter(metavar="URL")] = None
    """Address of the service for its users, such as https://fold.example.org. Shared links begin with it."""
    webhook_host: Annotated[tuple[str, ...], Parameter(metavar="HOST:PORT...", show_default="none")] = ()
    """Hosts that the service may call when a job ends."""
    max_upload: Annotated[
        MemorySize, Parameter(group=LIMITS, show_default="32MiB"), at_least(1024), at_most(MAX_INPUT_BYTES)
    ] = 32 * 2**20
    """Maximum size of a submission."""
    max_requests: Annotated[Positive, Parameter(group=LIMITS), at_least(1)] = 600
    """Maximum number of requests per minute."""


@dataclass(frozen=True, kw_only=True)
class ServeSettings(ListeningOptions):
    """Settings of a service.

    If `needs_token` is false, which is allowed only on a loopback address, all requests come from the user "local".
    """

    max_result_bytes: int = 2**31  # of one file that a worker sends
    wait_seconds: Annotated[float, POSITIVE] = 900.0  # maximum time of a request that waits for its structure
    body_seconds: Annotated[float, POSITIVE] = 60.0  # for a request to arrive, plus one second for each 256 KiB
    queue: QueueOptions = field(default_factory=QueueOptions)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.public_url is not None and not _PUBLIC_URL.fullmatch(self.public_url):
            raise InputError(
                f"the public address must be http(s)://HOST or http(s)://HOST:PORT, got {self.public_url[:80]!a}"
            )
        for name in self.webhook_host:
            host, _, port = name.rpartition(":")
            if not (host and port.isdecimal()):
                raise InputError(f"a webhook host needs a port, such as example.org:443, got {name!r}")

    @property
    def needs_token(self) -> bool:
        """Return whether requests need a token.

        Behind a proxy they always do, because the proxy makes all requests look as if they came from this machine.
        """
        return self.require_tokens or self.behind_proxy or not is_loopback(self.host)

    @property
    def accepted_hosts(self) -> Sequence[str] | None:
        """Return the host names, without a port, that the Host header of a request may have.

        None accepts all: tokens are required, and no host names are set. This prevents DNS rebinding: another site's
        page whose name resolves to this machine sends its own host name.
        """
        if self.host_name or not self.needs_token:
            public_hosts = _PUBLIC_URL.findall(self.public_url or "")  # its host, without the port
            return ("127.0.0.1", "localhost", "[::1]", *self.host_name, *public_hosts)
        return None


def check_encrypted(url: str, *, allow_http: bool = False) -> None:
    """Raise `InputError` for an http:// address of another machine, to which a token would travel unencrypted.

    With `allow_http`, all addresses are accepted.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return  # the client reports the invalid address
    if parts.scheme == "http" and not allow_http and not is_loopback(parts.hostname or ""):
        raise InputError(
            f"the token would travel unencrypted to '{printable(url)}'; use https, or pass --allow-http if you trust "
            "the network"
        )
