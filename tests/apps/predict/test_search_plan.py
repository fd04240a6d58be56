"""Databases and servers of a configuration file are searched where a command leaves open what is, and never else."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.features.complexes.target_files import typed_target
from data_pipeline.io.errors import InputError
from data_pipeline.io.site_configuration import without_configuration
from data_pipeline.pipeline import Target
from data_pipeline.search.alignment_server import PUBLIC_SERVER
from helixfold.apps.options import SearchOptions
from helixfold.apps.score import scan_run
from helixfold.apps.search_plan import plan_of, search_identities, server_of, with_site_sources
from helixfold.apps.serve.job_options import job_options
from helixfold.apps.serve.submission import read_submissions
from helixfold.apps.serve.worker import tasks
from helixfold.apps.serve.worker.options import WorkerOptions
from helixfold.cli.main import main
from tests.support.sources import ROOT

DATABASES, SERVER = ROOT / "examples" / "databases.toml", "https://msa.example.org"
BOTH = f"databases = '{DATABASES}'\nmsa_server = 'https://user:secret@msa.example.org'\n"
ONLY_DATABASES, ONLY_SERVER = (f"{line}\n" for line in BOTH.splitlines())
OWN, URL = Path("own.toml"), "https://user:secret@msa.example.org"
ALONE = Target(name="alone", sequence="MKTAYIAKQR")
ALIGNED = replace(ALONE, name="aligned", alignments=(Path("x.a3m"),))

# What a site configures, the options of a command, and the databases and the server that it gets.
RULES: dict[str, tuple[str, Mapping[str, Any], tuple[object, object]]] = {
    "nothing is configured": ("", {}, (None, False)),
    "databases": (ONLY_DATABASES, {}, (DATABASES, False)),
    "a server": (ONLY_SERVER, {}, (None, URL)),
    "databases come before a server": (BOTH, {}, (DATABASES, False)),
    "--msa": (BOTH, {"msa": (OWN,)}, (None, False)),
    "--databases": (BOTH, {"databases": OWN}, (OWN, False)),
    "--database": (BOTH, {"database": (OWN,)}, (None, False)),
    "--templates is no source of alignments": (BOTH, {"templates": (OWN,)}, (DATABASES, False)),
    "--msa-server without URL": (BOTH, {"msa_server": True}, (None, URL)),
    "--msa-server URL": (BOTH, {"msa_server": "http://own"}, (None, "http://own")),
    "--msa-server beside --databases": (BOTH, {"msa_server": True, "databases": OWN}, (OWN, URL)),
    "--msa-server without a configured one": (ONLY_DATABASES, {"msa_server": True}, (None, True)),
    **{
        f"--msa-mode {mode}": (BOTH, {"msa_mode": mode}, (None, URL))
        for mode in ("server", "mmseqs2_uniref_env", "mmseqs2_uniref", "mmseqs2_uniref_env_envpair")
    },
    "--msa-mode databases": (BOTH, {"msa_mode": "databases"}, (DATABASES, False)),
    "--msa-mode databases beside --msa": (BOTH, {"msa_mode": "databases", "msa": (OWN,)}, (DATABASES, False)),
    "--msa-mode databases --databases": (BOTH, {"msa_mode": "databases", "databases": OWN}, (OWN, False)),
    "--msa-mode databases without configured ones": (ONLY_SERVER, {"msa_mode": "databases"}, (None, False)),
    "--msa-mode files": (BOTH, {"msa_mode": "files"}, (None, False)),
    "--msa-mode single_sequence": (BOTH, {"msa_mode": "single_sequence"}, (None, False)),
}


@pytest.mark.parametrize("rule", RULES)
def test_what_a_command_leaves_open_comes_from_the_configuration_file(rule: str, site_file: Path) -> None:
    text, given, expected = RULES[rule]
    site_file.write_text(text)
    options = SearchOptions(**given)
    found = with_site_sources(options, [ALONE])
    assert (found.databases, found.msa_server) == expected
    assert replace(found, databases=options.databases, msa_server=options.msa_server) == options
    assert with_site_sources(found, [ALONE]) == found


def test_targets_with_alignments_are_searched_for_only_if_it_is_asked(
    site_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site_file.write_text(BOTH)
    assert with_site_sources(SearchOptions(), [ALIGNED, ALIGNED]) == SearchOptions()
    assert capsys.readouterr().err == ""
    assert with_site_sources(SearchOptions(), [ALONE, ALIGNED]) == SearchOptions()
    assert capsys.readouterr().err == (
        f"helixfold: databases of {site_file}: not searched, because 'aligned' has its own alignment; "
        "pass --databases to search for all targets\n"
    )
    assert with_site_sources(SearchOptions(msa_mode="databases"), [ALIGNED]).databases == DATABASES
    assert with_site_sources(SearchOptions(msa_server=True), [ALIGNED]).msa_server == URL


def test_stderr_names_the_file_and_no_password(site_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site_file.write_text(BOTH)
    with_site_sources(SearchOptions(), [ALONE])
    with_site_sources(SearchOptions(msa_server=True), [ALONE])
    with_site_sources(SearchOptions(), [ALONE], announce=False)
    assert capsys.readouterr().err.splitlines() == [
        f"helixfold: databases of {site_file}: {DATABASES}",
        f"helixfold: MSA server of {site_file}: {SERVER}",
    ]


def test_searches_are_identified_as_if_the_option_had_been_given(site_file: Path) -> None:
    site_file.write_text(ONLY_DATABASES)
    by_option = search_identities(plan_of(SearchOptions(databases=DATABASES)))
    assert search_identities(plan_of(with_site_sources(SearchOptions(), [ALONE]))) == by_option != ()
    assert search_identities(plan_of(SearchOptions())) == ()


def test_without_a_configured_server_it_is_the_public_one(site_file: Path) -> None:
    assert server_of(with_site_sources(SearchOptions(msa_server=True), [ALONE])) == PUBLIC_SERVER


def test_databases_mode_without_any_databases_is_an_error(site_file: Path) -> None:
    with pytest.raises(InputError, match="pass --databases or --database, or set databases in a configuration file"):
        plan_of(with_site_sources(SearchOptions(msa_mode="databases"), [ALONE]))


def test_the_search_cache_is_configured_unless_an_option_names_one(
    site_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caches = []
    monkeypatch.setattr(
        "helixfold.apps.search_plan.plan_searches", lambda *_, cache, **__: caches.append(cache) or "plan"
    )
    plan_of(SearchOptions(msa_mode="single_sequence"))
    site_file.write_text(f"search_cache = '{tmp_path}/searches'\ncache_directory = '{tmp_path}/cache'\n")
    from data_pipeline.io.site_configuration import _read  # noqa: PLC0415

    _read.cache_clear()
    plan_of(SearchOptions(msa_mode="single_sequence"))
    plan_of(SearchOptions(msa_mode="single_sequence", search_cache=tmp_path / "own"))
    assert caches[0].name == "databases"
    assert caches[1:] == [tmp_path / "searches", tmp_path / "own"]


def test_features_are_searched_for_in_the_configured_databases(
    site_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site_file.write_text(ONLY_DATABASES)
    assert main(["features", "MKTAYIAKQR", "--output", str(tmp_path / "one")]) == 0
    assert f"helixfold: databases of {site_file}: {DATABASES}\n" in capsys.readouterr().err
    assert [*tmp_path.glob("one/*/msas/sequences_hits.sto")]
    (tmp_path / "two.a3m").write_text(">two\nMKTAYIAKQR\n")
    assert main(["features", str(tmp_path / "two.a3m"), "--output", str(tmp_path / "two")]) == 0
    assert "databases of" not in capsys.readouterr().err
    assert not [*tmp_path.glob("two/*/msas/sequences_hits.sto")]


def test_doctor_shows_which_databases_a_target_would_use(
    site_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("helixfold.apps.predict.doctor._models", lambda *_: {"problem": "not asked for"})
    site_file.write_text(ONLY_DATABASES)
    assert main(["doctor", "MKTAYIAKQR", "--json"]) == 0
    (target,) = json.loads(capsys.readouterr().out)["targets"]
    assert target["alignment_from"] == ["sequences (jackhmmer in this process)"]


def test_a_scan_searches_in_the_configured_databases(site_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site_file.write_text(ONLY_DATABASES)
    plans = []

    def stop(options: SearchOptions) -> None:
        plans.append(options.databases)
        raise InputError("enough")

    monkeypatch.setattr(scan_run, "plan_of", stop)
    assert main(["scan", "MKTAYIAKQR", "--positions", "2"]) == 2
    assert plans == [DATABASES]


@pytest.mark.parametrize("search", ["none", "best"])
@pytest.mark.parametrize("has_alignment", [True, False])
def test_a_job_of_the_service_is_searched_for_in_the_databases_of_its_worker_alone(
    search: str, has_alignment: bool, site_file: Path, tmp_path: Path
) -> None:
    site_file.write_text(BOTH)
    (submission,) = read_submissions("MKTAYIAKQR", "x", job_options({"search": search}))
    request = {**submission.request(), "alignments": ["x.a3m"] if has_alignment else []}
    target = ALIGNED if has_alignment else typed_target("MKTAYIAKQR")
    for databases in (None, DATABASES):
        worker = WorkerOptions(databases=databases)
        found = tasks.predict_options(request, tmp_path, worker, tmp_path / "out", tmp_path / "failures")
        expected = databases if search == "best" and not has_alignment else None
        assert (with_site_sources(found, [target]).databases, server_of(found)) == (expected, None)


def test_workers_search_in_the_configured_databases_unless_they_are_named(
    site_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site_file.write_text(BOTH)
    assert WorkerOptions().with_site_databases().databases == DATABASES
    assert capsys.readouterr().err == f"helixfold: databases of {site_file}: {DATABASES}\n"
    assert WorkerOptions(databases=OWN).with_site_databases().databases == OWN


def test_a_search_cache_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    options = SearchOptions(msa_server="http://127.0.0.1:9", templates=(), search_cache=tmp_path / "file" / "cache")
    plan = plan_of(options)
    note = f"helixfold: {tmp_path}/file/cache is not writable, so this run stores no searches there (--search-cache)\n"
    assert note in capsys.readouterr().err
    assert plan.templates is not None
    assert tmp_path not in plan.templates.source.directory.parents


@pytest.mark.usefixtures("undrawn")
def test_predictions_record_a_search_of_the_site_as_if_the_option_had_been_given(
    site_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site_file.write_text(ONLY_DATABASES)
    (tmp_path / "one.fasta").write_text(">one\nMKTAYIAKQR\n")
    usual = ["--models", "tiny", "--device", "cpu", "--num-recycles", "0"]
    command = ["predict", str(tmp_path / "one.fasta"), *usual, "--output", str(tmp_path / "out")]
    assert main(command) == 0
    assert f"helixfold: databases of {site_file}: {DATABASES}\n" in capsys.readouterr().err
    recorded = json.loads((tmp_path / "out/one/settings.json").read_text())["inputs"]["searches"]
    assert recorded == list(search_identities(plan_of(SearchOptions(databases=DATABASES))))
    with without_configuration():
        assert main([*command, "--databases", str(DATABASES)]) == 0
        assert "finished before, skipped" in capsys.readouterr().out
        assert main(command) == 2  # made with a search


@pytest.mark.usefixtures("undrawn")
def test_predictions_from_alignments_or_features_are_not_searched_for(
    site_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site_file.write_text(ONLY_DATABASES)
    (tmp_path / "one.a3m").write_text(">one\nMKTAYIAKQR\n")
    (tmp_path / "two.fasta").write_text(">two\nMKTAYIAKQRA\n")
    with without_configuration():
        assert main(["features", str(tmp_path / "one.a3m"), "--output", str(tmp_path / "features")]) == 0
    usual = ["--models", "tiny", "--device", "cpu", "--num-recycles", "0"]
    for number, inputs in enumerate((["one.a3m"], ["--features", "features"], ["two.fasta", "--features", "features"])):
        capsys.readouterr()
        paths = [word if word.startswith("-") else str(tmp_path / word) for word in inputs]
        output = tmp_path / f"out{number}"
        assert main(["predict", *paths, *usual, "--output", str(output)]) == 0
        assert "databases of" not in capsys.readouterr().err
        assert not [*output.glob("*/msas/sequences_hits.sto")]
