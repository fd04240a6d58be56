"""Configuration files set defaults key by key, later files win, and mistakes in them are one sentence."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from data_pipeline.io.errors import InputError
from data_pipeline.io.site_configuration import (
    KEYS,
    SiteConfiguration,
    configuration_files,
    site_configuration,
    without_configuration,
)
from data_pipeline.io.user_cache import user_cache
from helixfold.weights.cache import parameters_directory
from tests.support.sources import ROOT

LAYERS = ("system", "user", "named")
# For each key, what a first and a second file write, and what these mean.
VALUES: dict[str, tuple[tuple[str, object], tuple[str, object]]] = {
    **{
        key: (("'/data/one'", Path("/data/one")), ("'/data/two'", Path("/data/two")))
        for key in ("weights_directory", "databases", "cache_directory", "search_cache")
    },
    "msa_server": (("'https://one.org'", "https://one.org"), ("'http://two.org:8'", "http://two.org:8")),
    "uniprot_server": (("'https://one.org'", "https://one.org"), ("'http://two.org:8'", "http://two.org:8")),
    "pdb_sequence_server": (("'https://one.org'", "https://one.org"), ("'http://two.org:8'", "http://two.org:8")),
    "pdb_structure_server": (("'https://one.org'", "https://one.org"), ("'http://two.org:8'", "http://two.org:8")),
    "alphafold_server": (("'https://one.org'", "https://one.org"), ("'http://two.org:8'", "http://two.org:8")),
    "monomer_models": (("['model_2']", ("model_2",)), ("['model_1', 'model_3']", ("model_1", "model_3"))),
    "multimer_models": (("['tiny_multimer']", ("tiny_multimer",)), ("['tiny']", ("tiny",))),
    "allow_demonstration_model": (("false", False), ("true", True)),
}


@pytest.fixture
def files(site_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    named = tmp_path / "named.toml"
    named.touch()
    monkeypatch.setenv("HELIXFOLD_CONFIG", str(named))
    (tmp_path / "user").mkdir()
    return dict(zip(LAYERS, (site_file, tmp_path / "user" / "helixfold.toml", named), strict=True))


def test_every_key_is_in_the_table() -> None:
    assert set(VALUES) == set(KEYS)


@pytest.mark.parametrize(("lower", "upper"), [*itertools.combinations(LAYERS, 2)])
@pytest.mark.parametrize("key", VALUES)
def test_the_value_of_the_later_file_wins(key: str, lower: str, upper: str, files: dict[str, Path]) -> None:
    (first, _), (second, value) = VALUES[key]
    files[lower].write_text(f"{key} = {first}\n")
    files[upper].write_text(f"{key} = {second}\n")
    assert getattr(site_configuration(), key) == value
    assert site_configuration().sources == {key: files[upper]}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("key", VALUES)
def test_a_value_wins_over_the_built_in_default(key: str, layer: str, files: dict[str, Path]) -> None:
    (text, value), _ = VALUES[key]
    files[layer].write_text(f"{key} = {text}\n")
    found = site_configuration()
    assert getattr(found, key) == value
    assert getattr(SiteConfiguration(), key) != value
    for other in set(KEYS) - {key}:
        assert getattr(found, other) == getattr(SiteConfiguration(), other)


def test_files_are_merged_key_by_key(files: dict[str, Path]) -> None:
    files["system"].write_text("databases = '/data/db'\nmsa_server = 'https://one.org'\n")
    files["user"].write_text("msa_server = 'https://two.org'\n")
    found = site_configuration()
    assert (found.databases, found.msa_server) == (Path("/data/db"), "https://two.org")
    assert found.sources == {"databases": files["system"], "msa_server": files["user"]}


def test_paths_are_relative_to_their_file_or_begin_with_a_tilde(
    site_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    site_file.write_text("weights_directory = 'params'\ncache_directory = '~/cache'\n")
    assert parameters_directory() == site_file.parent / "params"
    assert user_cache() == tmp_path / "home" / "cache"


def test_parameters_are_in_the_configured_cache_unless_they_have_a_directory(site_file: Path) -> None:
    site_file.write_text("cache_directory = '/data/cache'\n")
    assert parameters_directory() == Path("/data/cache/params")


ERRORS = {
    "a wrong key": ("weight_directory = 'x'", "unknown key 'weight_directory'; did you mean weights_directory?"),
    "a key like no other": ("colour = 1", "unknown key 'colour'; the keys are weights_directory, databases, "),
    "a table": ("[site]\ndatabases = 'x'", "unknown key 'site'; the keys are "),
    "a number": ("databases = 3", "databases must be a path in quotes, got 3"),
    "no path": ("cache_directory = ''", "cache_directory must be a path in quotes, got ''"),
    "no address": ("msa_server = 'ftp://x'", "msa_server must be an address in quotes that begins with https:// or"),
    "one name": (
        "monomer_models = 'tiny'",
        'monomer_models must be a list of names of models, such as ["model_1_ptm"]',
    ),
    "no names": ("multimer_models = []", "multimer_models must be a list of names of models"),
    "a word": ("allow_demonstration_model = 'no'", "allow_demonstration_model must be true or false, got 'no'"),
    "no value": ("databases = 'x'\nmsa_server =\n", "not a TOML file: Invalid value (at line 2, col"),
    "a key twice": ("databases = 'x'\ndatabases = 'y'\n", "not a TOML file: Cannot overwrite a value (at"),
}


@pytest.mark.parametrize("mistake", ERRORS)
def test_a_mistake_is_one_sentence_with_file_and_key(mistake: str, site_file: Path) -> None:
    text, problem = ERRORS[mistake]
    site_file.write_text(text)
    with pytest.raises(InputError) as caught:
        site_configuration()
    assert str(caught.value).startswith(f"{site_file}: {problem}")


def test_a_file_that_cannot_be_read_is_named(site_file: Path) -> None:
    site_file.mkdir()
    with pytest.raises(InputError, match=r"etc/helixfold\.toml: cannot be read: it is a directory"):
        site_configuration()


def test_the_named_file_must_exist_and_be_an_absolute_path(site_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, problem in (
        ("/none/x.toml", "no such file; correct or unset"),
        ("x", "must be an absolute path"),
    ):
        monkeypatch.setenv("HELIXFOLD_CONFIG", name)
        with pytest.raises(InputError, match=f"{name}: .*{problem}"):
            site_configuration()


def test_the_null_device_as_the_named_file_leaves_all_files_unread(site_file: Path) -> None:
    site_file.write_text("[")
    with without_configuration():
        assert configuration_files() == []
        assert site_configuration() == SiteConfiguration()
    with pytest.raises(InputError):
        site_configuration()


def without_home(_: int) -> None:
    raise KeyError("no entry")


def test_without_a_home_directory_there_is_no_user_file(site_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", without_home)
    assert configuration_files() == [site_file]
    site_file.write_text("cache_directory = '~/cache'\n")
    with pytest.raises(InputError, match="cache_directory is '~/cache', but the home directory is unknown"):
        site_configuration()


def test_help_reads_no_configuration_file(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("[")
    words = [sys.executable, "-m", "helixfold.cli.main", "predict", "--help"]
    environment = {**os.environ, "HELIXFOLD_CONFIG": str(wrong)}
    assert subprocess.run(words, env=environment, capture_output=True, timeout=120, check=False).returncode == 0


def test_the_example_has_every_key_and_is_what_the_page_shows(site_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = ROOT / "examples" / "helixfold.toml"
    monkeypatch.setenv("HELIXFOLD_CONFIG", str(example))
    assert {key for key, path in site_configuration().sources.items() if path == example} == set(KEYS)
    assert f"```toml\n{example.read_text()}```\n" in (ROOT / "docs" / "how-to" / "shared-installation.md").read_text()
