"""A client of a service for commands, with the token of a file, whose refusals are errors of input."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from data_pipeline.errors import InputError, SearchError
from data_pipeline.files import read_file
from helixfold.serve.client import Client
from helixfold.serve.http_client import ServerError, ServerUnreachableError


@contextmanager
def server_client(url: str, token_file: Path | None, *, allow_http: bool = False) -> Iterator[Client]:
    """Yield a client of the server at an address. Raise `InputError` for a file that has no token."""
    token = None if token_file is None else read_token(token_file)
    with Client(url, token, allow_http=allow_http) as client:
        yield client


def read_token(path: Path) -> str:
    """Return the token in a file. Raise `InputError` for a file that has none."""
    token = read_file(path, 1_000).decode("ascii", "replace").strip()
    if not (token.isascii() and token.isprintable() and token):
        raise InputError.at(path, "contains no token; create one with helixfold serve token create")
    return token


@contextmanager
def refusals_as_input_errors() -> Iterator[None]:
    """Turn what a server refuses into `InputError`, and what it does not answer into `SearchError`."""
    try:
        yield
    except ServerError as error:
        raise InputError(f"the server refused the request: {error}") from error
    except ServerUnreachableError as error:
        raise SearchError(str(error)) from error
