"""`helixfold features --structures`: wrong use in words, exit codes, and a killed run that goes on."""

import hashlib
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from data_pipeline.training_sets import clustering
from data_pipeline.training_sets.cluster_split import NearestChain
from data_pipeline.training_sets.store import FeatureStore
from helixfold.cli.main import main
from helixfold.training import feature_store
from tests.data_pipeline.training_sets.training_files import write_a3m, write_training_files
from tests.support.interruptions import Event, Kill, end

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _without_mmseqs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clustering, "find_mmseqs", lambda: None)


def command(root: Path, *more: str, output: str = "store") -> list[str]:
    return [
        *("features", "--structures", str(root / "structures"), "--alignments", str(root / "alignments")),
        *("--output", str(root / output), "--workers", "1", *more),
    ]


def digests(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def test_a_training_set_is_built_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_training_files(tmp_path)
    assert main(command(tmp_path)) == 0
    said = capsys.readouterr()
    assert said.out == f"{tmp_path}/store: 6 chains, 6 of them new; 0 left out\n"
    assert "3 of 6 chains have no alignment" in said.err
    assert "only chains of identical sequence share a cluster" in said.err
    assert main(command(tmp_path)) == 0
    assert "6 chains, 0 of them new" in capsys.readouterr().out


def test_chains_are_held_out_with_their_nearest_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_training_files(tmp_path)
    assert main(command(tmp_path, "--hold-out", "0.4")) == 0
    held_out = (tmp_path / "store/held_out.txt").read_text().split()
    lines = (tmp_path / "store/leakage.tsv").read_text().splitlines()
    assert sorted(line.split("\t")[0] for line in lines[1:]) == held_out
    assert 0 < len(held_out) < 6
    expected = f"{len(held_out)} of 6 chains are held out; no training chain resembles a held-out one\n"
    assert expected in capsys.readouterr().out


def test_assemblies_are_held_out_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    structures, output = Path(__file__).parents[2] / "examples/complexes", tmp_path / "store"
    words = ["--structures", str(structures), "--assemblies", "--hold-out", "0.3", "--workers", "1"]
    assert main(["features", *words, "--output", str(output)]) == 0
    chains, names = ((output / name).read_text().split() for name in ("held_out.txt", "held_out_assemblies.txt"))
    store = FeatureStore.open(output)
    assert 0 < len(names) < len(store.assemblies)
    for each in store.assemblies:
        assert {chain in chains for chain in each.chains} == {each.name in names}
    verb = "is" if len(names) == 1 else "are"
    assert f"{len(names)} of {len(store.assemblies)} assemblies {verb} held out" in capsys.readouterr().out


def test_a_failed_chain_gives_exit_code_1_and_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_training_files(tmp_path)
    write_a3m(tmp_path / "alignments/0abc_A/a3m/uniref90_hits.a3m", "MKV", "MK-V")
    assert main(command(tmp_path)) == 1
    said = capsys.readouterr()
    assert "1 failed, see" in said.err
    assert "the first failure, 0abc_A: " in said.err
    assert "5 chains" in said.out


def test_filters_and_required_alignments_leave_out_without_failing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_training_files(tmp_path)
    assert main(command(tmp_path, "--require-alignments")) == 0
    assert "3 chains, 3 of them new; 3 left out" in capsys.readouterr().out
    for more in (("--max-release-date", "2018-04-29"), ("--max-resolution", "2.1"), ("--min-length", "41")):
        assert main(command(tmp_path, *more, output=more[0])) == 0
        assert "0 chains, 0 of them new; 6 left out" in capsys.readouterr().out
    assert FeatureStore.open(tmp_path / "--min-length").entries == ()


def test_shards_are_built_one_by_one_and_joined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_training_files(tmp_path)
    for shard in range(2):
        assert main(command(tmp_path, "--shard", f"{shard}/2")) == 0
    capsys.readouterr()
    assert main(["features", "--join-shards", "--output", str(tmp_path / "store")]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/store: 6 chains in 6 clusters\n"
    assert len(FeatureStore.open(tmp_path / "store").entries) == 6


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--structures", "{}/none"], "none: cannot be listed"),
        (["--structures", "{}/structures", "--alignments", "{}/none"], "none: cannot be listed"),
        (["--structures", "{}/structures", "--require-alignments"], "--require-alignments needs --alignments"),
        (["--structures", "{}/structures", "--duplicates", "x"], "--duplicates needs --alignments"),
        (["--structures", "{}/structures", "--templates-from", "x"], "--templates-from needs --alignments"),
        (["--structures", "{}/structures", "--obsolete", "x"], "--obsolete needs --templates-from"),
        (
            ["--structures", "{}/structures", "--templates-of-any-date"],
            "--templates-of-any-date needs --templates-from",
        ),
        (["--structures", "{}/structures", "--chains", "{}/none"], "none: cannot be read"),
        (["--structures", "{}/structures", "--clusters", "{}/none"], "none: cannot be read"),
        (["--structures", "{}/structures", "--shard", "2/2"], "a shard must be i/n with i from 0 to n - 1"),
        (["--structures", "{}/structures", "--workers", "0"], "--workers: must be a whole number from 1 to 1,024"),
        (["--structures", "{}/structures", "--max-resolution", "-1"], "below_resolution must be a positive number"),
        (["--structures", "{}/structures", "--output", "{}/structures/0abc.pdb"], "cannot be used as a feature store"),
    ],
)
def test_wrong_use_is_one_sentence_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str
) -> None:
    write_training_files(tmp_path, 1)
    given = [argument.format(tmp_path) for argument in arguments]
    if "--output" not in given:
        given += ["--output", str(tmp_path / "store")]
    assert main(["features", *given]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert problem in said[0]


@pytest.mark.parametrize("argument", [("--shard", "1"), ("--shard", "a/b"), ("--max-release-date", "30.4.2018")])
def test_unreadable_options_exit_with_2(tmp_path: Path, argument: tuple[str, str]) -> None:
    assert main(command(tmp_path, *argument)) == 2


def without_mmseqs(arguments: Sequence[str]) -> int:
    clustering.find_mmseqs = lambda: None  # type: ignore[assignment]
    return main(arguments)


@pytest.mark.integration
def test_a_run_killed_at_any_step_ends_with_the_same_store(tmp_path: Path) -> None:
    write_training_files(tmp_path, 12)
    assert main(command(tmp_path, output="whole")) == 0
    wanted = digests(tmp_path / "whole")
    finished: dict[str, int] = {}
    for index in (1, 8, 20, 30, 40):  # changes of files
        ended = end(without_mmseqs, command(tmp_path), tmp_path / "store", Kill(signal.SIGKILL, Event(index=index)))
        assert ended.code in (0, -signal.SIGKILL), ended.printed
        now = pieces(tmp_path / "store")
        assert ended.code == 0 or finished.items() <= now.items()  # nothing was written again
        finished = now
    (tmp_path / "store/.features.lmdb.00.partial").write_bytes(b"half")
    assert main(command(tmp_path)) == 0
    assert digests(tmp_path / "store") == wanted


def pieces(store: Path) -> dict[str, int]:
    """The inode of each finished piece."""
    found = {}
    for path in store.glob("work/*/*"):
        # A run that ends removes them.
        if not path.name.startswith(".") and path.exists():
            found[path.name] = path.stat().st_ino
    return found


def test_only_the_chains_of_a_list_are_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_training_files(tmp_path)
    names = tmp_path / "chains.txt"
    names.write_text("0abc_B\n\n2abc_A \n")
    assert main(command(tmp_path, "--chains", str(names))) == 0
    assert "2 chains, 2 of them new; 4 left out" in capsys.readouterr().out
    assert [entry.name for entry in FeatureStore.open(tmp_path / "store").entries] == ["0abc_B", "2abc_A"]
    names.write_text("0abc_B\n")
    assert main(command(tmp_path, "--chains", str(names))) == 0
    assert "store: 1 chain, 0 of them new; 5 left out" in capsys.readouterr().out
    names.write_text("0abc_B\n9xyz_A\n9xyz_B\n")
    assert main(command(tmp_path, "--chains", str(names))) == 2
    assert f"{names}: no structure has the chains 9xyz_A, 9xyz_B; correct" in capsys.readouterr().err
    names.write_text("\n")
    assert main(command(tmp_path, "--chains", str(names), output="none")) == 2
    assert "the file has no chain names" in capsys.readouterr().err


def test_the_most_similar_chain_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_training_files(tmp_path)
    nearest = [NearestChain(name="0abc_A", nearest="2abc_A", identity=0.5, coverage=0.25)]
    monkeypatch.setattr(feature_store, "nearest_chains", lambda *_: nearest)
    monkeypatch.setattr(feature_store, "split_by_cluster", lambda *_: ["0abc_A"])
    assert main(command(tmp_path, "--hold-out", "0.2")) == 0
    expected = "the most similar, 0abc_A, has 50% identity over 25% of its residues to 2abc_A\n"
    assert capsys.readouterr().out.endswith(f"1 of 6 chains is held out; {expected}")
