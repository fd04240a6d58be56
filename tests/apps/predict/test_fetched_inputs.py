"""--fetch-inputs puts files in place of ids, and nothing is sent without it."""

from pathlib import Path

import pytest

from data_pipeline.features.complexes.feature_file import load_features
from data_pipeline.io.errors import InputError
from helixfold.apps.fetched_inputs import with_fetched_inputs
from helixfold.apps.options import PredictOptions
from helixfold.cli.main import main
from tests.support.entry_server import HBA, serving_entries

KEYS = ("uniprot_server", "pdb_sequence_server", "pdb_structure_server", "alphafold_server")


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration file, and a working directory without files."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HELIXFOLD_CONFIG", str(tmp_path / "helixfold.toml"))
    return tmp_path / "helixfold.toml"


def configure(path: Path, address: str) -> None:
    lines = [f"{key} = '{address}/'" for key in KEYS]
    path.write_text("\n".join([f"cache_directory = '{path.parent / 'cache'}'", *lines]))


def test_every_option_with_a_file_takes_an_id(configured: Path) -> None:
    Path("1ABC").write_text(">mine\nMKT\n")  # a file of this name is a file
    options = PredictOptions(
        inputs=(Path("P69905"), Path("1ABC"), Path("4HHB")),
        templates=(Path("4HHB"),),
        reference=(Path("P69905"),),
        initial_guess=Path("P69905"),
        fetch_inputs=True,
    )
    with serving_entries() as (address, _):
        configure(configured, address)
        found = with_fetched_inputs(options)
    cache = configured.parent / "cache" / "entries"
    assert found.inputs == (cache / "P69905.fasta", Path("1ABC"), cache / "4HHB.fasta")
    assert (found.templates, found.reference) == ((cache / "4HHB.cif",), (cache / "P69905.cif",))
    assert found.initial_guess == cache / "P69905.cif"
    assert with_fetched_inputs(options) == found  # from the cache


def test_nothing_is_sent_without_the_option(configured: Path) -> None:
    with serving_entries() as (address, paths):
        configure(configured, address)
        with pytest.raises(InputError, match=r"P69905: no such file; .* pass --fetch-inputs to download it"):
            with_fetched_inputs(PredictOptions(inputs=(Path("P69905"),)))
    assert paths == []


@pytest.mark.parametrize("command", ["features", "predict --dry-run"])
def test_commands_take_accessions(command: str, configured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving_entries() as (address, _):
        configure(configured, address)
        words = [*command.split(), "P69905", "--fetch-inputs", "--output", "out"]
        assert main(words + (["--models", "tiny", "--device", "cpu"] if "predict" in command else [])) == 0
    printed = capsys.readouterr()
    assert f"helixfold: P69905: {address}/uniprotkb/P69905.fasta" in printed.err
    if command == "features":
        assert load_features(Path("out/P69905/features.npz")).sequence == HBA
    else:
        assert "P69905" in printed.out
