"""Read the configuration files of an administrator and a user, which set defaults for all commands.

`SITE_FILE` is the administrator's, and `USER_FILE` the name of the user's. The environment variable `VARIABLE` names
one more file. `KEYS` are all keys of a file, and `ADDRESSES` the keys whose values are addresses of servers.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import platformdirs

from data_pipeline.io.addresses import is_http_address
from data_pipeline.io.errors import InputError, did_you_mean, printable
from data_pipeline.io.toml_files import read_toml

SITE_FILE = Path("/etc/helixfold.toml")
USER_FILE: Final = "helixfold.toml"  # in the user's configuration directory
# Path of one more file. With the null device, no configuration file is read, as in pip.
VARIABLE: Final = "HELIXFOLD_CONFIG"
_PATH_KEYS: Final = ("weights_directory", "databases", "cache_directory", "search_cache")
ADDRESSES: Final = ("msa_server", "uniprot_server", "pdb_sequence_server", "pdb_structure_server", "alphafold_server")
_NAME_LIST_KEYS: Final = ("monomer_models", "multimer_models")


@dataclass(frozen=True, kw_only=True)
class SiteConfiguration:
    """Defaults from the configuration files; None means the built-in default.

    `sources` has the file of each value, by key. Paths are absolute. `cache_directory` is helixfold's cache, and
    `search_cache` the directory for search results. `msa_server` searches for alignments, and the other servers are for
    --fetch-inputs. `monomer_models` and `multimer_models` are the names of the default models. `weights_directory` has
    their parameters. `databases` is the profile or directory of databases. Without `allow_demonstration_model`, models
    without trained parameters, or with the packaged ones, are not used.
    """

    weights_directory: Path | None = None
    databases: Path | None = None
    msa_server: str | None = None
    uniprot_server: str | None = None  # these four are for --fetch-inputs
    pdb_sequence_server: str | None = None
    pdb_structure_server: str | None = None
    alphafold_server: str | None = None
    monomer_models: tuple[str, ...] | None = None
    multimer_models: tuple[str, ...] | None = None
    cache_directory: Path | None = None
    search_cache: Path | None = None
    allow_demonstration_model: bool = True
    sources: Mapping[str, Path] = field(default_factory=dict)

    def problem(self, key: str, text: str) -> InputError:
        """Return the error for the value of a key that a file sets, with this file; `text` follows the key."""
        return InputError.at(self.sources[key], f"{key} {text}")


KEYS: Final = tuple(each.name for each in fields(SiteConfiguration) if each.name != "sources")


def configuration_files() -> list[Path]:
    """Return the paths of the configuration files, whether they exist or not; later files override earlier ones.

    The list is empty if the environment variable is the null device.
    """
    named = os.environ.get(VARIABLE, "")
    if named == os.devnull:
        return []
    files = [SITE_FILE]
    try:
        user = Path(platformdirs.user_config_dir())
    except RuntimeError:
        user = Path("~")
    if user.is_absolute():  # `~` remains if the home directory is unknown
        files.append(user / USER_FILE)
    return [*files, Path(os.path.expanduser(named))] if named else files


def site_configuration() -> SiteConfiguration:
    """Return the configuration from all files, each of which is read once per process.

    Raise `InputError` for an invalid file, and if the file in the environment variable does not exist.
    """
    files = configuration_files()
    return _read(tuple(files), files[-1] if files and os.environ.get(VARIABLE) else None)


@contextmanager
def without_configuration() -> Iterator[None]:
    """Ignore all configuration files in the context, also in processes started there."""
    earlier = os.environ.get(VARIABLE, "")
    os.environ[VARIABLE] = os.devnull
    try:
        yield
    finally:
        os.environ[VARIABLE] = earlier


@lru_cache(maxsize=8)
def _read(files: tuple[Path, ...], named: Path | None) -> SiteConfiguration:
    """Read the existing files; `named`, which is one of `files`, must exist."""
    if named is not None and not named.is_absolute():  # commands may change the working directory
        raise InputError.at(named, f"{VARIABLE} must be an absolute path")
    values: dict[str, Any] = {}
    sources: dict[str, Path] = {}
    for path in files:
        if os.path.exists(path):
            for key, value in read_toml(path, "TOML file").items():
                values[key], sources[key] = _value(path, key, value), path
        elif path == named:
            raise InputError.at(path, f"no such file; correct or unset {VARIABLE}")
    return SiteConfiguration(**values, sources=sources)


def _value(path: Path, key: str, value: Any) -> Any:
    """Return the validated value of a key."""
    if key in _PATH_KEYS:
        if isinstance(value, str) and value and "\0" not in value:
            return _absolute(path, key, value)
        expected = "a path in quotes"
    elif key in _NAME_LIST_KEYS:
        if isinstance(value, list) and value and all(isinstance(each, str) for each in value):
            return tuple(value)
        expected = 'a list of names of models, such as ["model_1_ptm"]'
    elif key in ADDRESSES:
        if isinstance(value, str) and is_http_address(value):
            return value
        expected = "an address in quotes that begins with https:// or http://"
    elif key == "allow_demonstration_model":
        if isinstance(value, bool):
            return value
        expected = "true or false"
    else:
        hint = did_you_mean(key, KEYS) or f"; the keys are {', '.join(KEYS)}"
        raise InputError.at(path, f"unknown key '{printable(key, 60)}'{hint}")
    raise InputError.at(path, f"{key} must be {expected}, got {printable(repr(value))}")


def _absolute(path: Path, key: str, value: str) -> Path:
    """Return the absolute path of a value, relative to the directory of the configuration file `path`."""
    try:
        return path.parent.absolute() / Path(value).expanduser()
    except RuntimeError:
        raise InputError.at(path, f"{key} is '{printable(value)}', but the home directory is unknown") from None
