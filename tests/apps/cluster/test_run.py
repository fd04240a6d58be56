"""A batch on a cluster has the files of an unbroken run, whatever is killed; what cannot work is one sentence."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from helixfold.apps.cluster import batch
from helixfold.cli.main import main
from tests.apps.cluster.driver import (
    TWO_POOLS,
    contents,
    done,
    ended,
    fake_slurm,
    kill,
    own_address,
    peptides,
    quick_estimate,
    started,
    until,
    workers,
)
from tests.support.interruptions import living_processes

pytest.importorskip("parsl")
TINY = ["--models", "tiny", "--num-recycles", "0"]


@pytest.fixture
def in_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def predict(fasta: Path, output: Path, *words: str) -> list[str]:
    return ["predict", str(fasta), "--output", str(output), *words]


def test_a_killed_worker_and_a_killed_driver_lose_nothing(tmp_path: Path) -> None:
    fasta, site, printed = peptides(tmp_path / "batch.fasta", 3), tmp_path / "site.toml", tmp_path / "printed.txt"
    site.write_text("[search]\ntask_minutes = 0.2\n" + TWO_POOLS.format(minutes=0.1))
    database = tmp_path / "database.fasta"
    database.write_text(fasta.read_text().replace(">t", ">relative"))
    words = ["--database", str(database), *TINY]
    whole = started(predict(fasta, tmp_path / "whole", *words), tmp_path / "whole.txt")
    output = tmp_path / "out"
    command = predict(fasta, output, *words, "--cluster", str(site))
    driver = started(command, printed)
    until(lambda: list(output.glob("*/settings.json")) and workers(driver.pid))
    kill(workers(driver.pid)[-1])
    until(lambda: done(output))
    driver.kill()
    assert ended(started(command, printed)) == 0, printed.read_text()
    assert ended(whole) == 0
    # Nodes do not wait for a run that was killed.
    assert ended(driver) == -9
    assert contents(output) == contents(tmp_path / "whole")
    assert len(done(output)) == 3
    assert not (output / "failures.json").exists()
    # Without a cluster, the same command has nothing to do.
    assert main([*predict(fasta, output, *words), "--dry-run"]) == 0
    assert {path.name for path in output.iterdir() if path.is_dir()} == {".cluster", *done(output)}
    assert json.loads((output / ".cluster/status.json").read_text())["state"] == "ended"
    assert "3 targets" in (output / "status.html").read_text()


def test_jobs_are_given_to_slurm(tmp_path: Path) -> None:
    fasta, site, printed = peptides(tmp_path / "batch.fasta", 3), tmp_path / "site.toml", tmp_path / "printed.txt"
    site.write_text(
        f'address = "{own_address()}"\n'
        '[fold.queue]\nprovider = "slurm"\nmemory = "4GiB"\ncores = 1\nqueue = "short"\nwalltime = "00:10:00"\n'
        'directives = ["#SBATCH --qos=test"]\n'
    )
    slurm = fake_slurm(tmp_path / "slurm")
    output = tmp_path / "out"
    assert ended(started(predict(fasta, output, "--cluster", str(site), *TINY), printed, slurm)) == 0, (
        printed.read_text()
    )
    assert len(done(output)) == 3
    script = (tmp_path / "slurm/jobs/1").read_text()
    asked = ["--partition=short", "--mem=4g", "--cpus-per-task=1", "--time=10", "--qos=test"]
    for line in (*asked, "--nodes=1", "--ntasks-per-node=1", "--signal=B:TERM@60", "--no-requeue"):
        assert f"#SBATCH {line}\n" in script
    assert "export PARSL_CORES=1\n" in script


def test_a_queue_that_refuses_is_one_sentence(tmp_path: Path) -> None:
    fasta, site, printed = peptides(tmp_path / "batch.fasta", 2), tmp_path / "site.toml", tmp_path / "printed.txt"
    pools = '[fold.queue]\nprovider = "slurm"\nmemory = "4GiB"\nqueue = "gone"\n[train]\nprovider = "slurm"\n'
    site.write_text(f'address = "{own_address()}"\n{pools}')
    slurm = fake_slurm(tmp_path / "slurm", refuses="invalid partition specified: gone")
    words = predict(fasta, tmp_path / "out", "--cluster", str(site), *TINY)
    assert ended(started(words, printed, slurm)) == 2
    refused = "sbatch refused the job: sbatch: error: invalid partition specified: gone"
    assert printed.read_text().splitlines()[-1] == f"helixfold: error: {site}: pool 'queue': {refused}"
    words = ["train", str(tmp_path), "--output", str(tmp_path / "run"), "--cluster", str(site)]
    assert ended(started(words, printed, slurm)) == 2
    assert printed.read_text().splitlines()[-1] == f"helixfold: error: {site}: {refused}"


def test_a_training_is_submitted(tmp_path: Path) -> None:
    site, printed = tmp_path / "site.toml", tmp_path / "printed.txt"
    site.write_text('[train]\nprovider = "slurm"\nnodes = 1\nworkers = 2\n')
    slurm = fake_slurm(tmp_path / "slurm", runs=False)
    run = tmp_path / "run"
    assert ended(started(["train", "nothing", "--output", str(run), "--cluster", str(site)], printed, slurm)) == 0
    assert printed.read_text().startswith(f"submitted: job 1, whose script and output are in {run / '.cluster'}")
    script = (tmp_path / "slurm/jobs/1").read_text()
    assert "torch.distributed.run --standalone --nproc-per-node 2" in script
    assert f"-m helixfold train nothing --output {run}\n" in script
    for line in ("--signal=B:TERM@120", "--requeue", "--open-mode=append"):
        assert f"#SBATCH {line}\n" in script


@pytest.mark.parametrize(
    ("pools", "word", "problem"),
    [
        ("[fold.a]\nmemory = '2GiB'", "--device cpu", "--device and --cluster cannot be combined"),
        ("[fold.a]\nmemory = '2GiB'", "--overwrite", "--overwrite and --cluster cannot be combined"),
        ("[search]", "", "site.toml: has no pool of folding nodes"),
        ("[fold.a]\nmemory = '2GiB'", "--database batch.fasta", "has no table [search]"),
        ("[fold.a]\nmemory = '1GiB'", "", "record 't0000': no pool has a GPU, and none of their nodes has the memory"),
    ],
)
def test_what_cannot_work_is_one_sentence_before_anything_begins(
    pools: str, word: str, problem: str, in_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert problem in refusal(pools, word, capsys)


def test_a_queue_that_is_not_installed_is_one_sentence(
    in_directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(batch, "estimate_pool", quick_estimate)
    assert "pool 'a': qsub is not on the PATH" in refusal("[fold.a]\nprovider = 'pbs'\nmemory = '2GiB'", "", capsys)


def refusal(pools: str, word: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The error of a batch on these pools."""
    peptides(Path("batch.fasta"), 1)
    Path("site.toml").write_text(pools)
    assert main(["predict", "batch.fasta", "--output", "out", "--cluster", "site.toml", *TINY, *word.split()]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("helixfold: error: ")
    return said


def test_a_dry_run_shows_where_targets_go(in_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("long.fasta").write_text(f">short\nMKTAYIAKQR\n>long\n{'MKTAYIAKQR' * 300}\n")
    Path("site.toml").write_text(
        '[fold.cpu]\nmemory = "1.3GiB"\n[fold.gpu]\nprovider = "slurm"\ngpus = 1\ncard = "t4"\nmemory = "30GiB"\n'
    )
    code = main(["predict", "long.fasta", "--output", "out", "--cluster", "site.toml", "--models", "tiny", "--dry-run"])
    said = capsys.readouterr()
    assert code == 0, said.err
    assert not Path("out").exists()
    rows = {line.split()[0]: line.split() for line in said.out.splitlines() if line.startswith(("cpu", "gpu"))}
    # Pool, tasks at a time, "<=", residues, targets, and the time with its unit.
    assert [rows[name][4] for name in ("cpu", "gpu")] == ["1", "1"]
    assert "2 targets to fold, 0 finished before" in said.out


def test_the_status_of_a_directory_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(tmp_path / "gone")]) == 2
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "ranking_debug.json").write_text("{}")
    (tmp_path / "failures.json").write_text('{"b": "MemoryError: too long"}')
    capsys.readouterr()
    assert main(["status", str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "1 of 2 started targets done, 0 with features, 1 failed",
        "b: failed: MemoryError: too long",
    ]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.long)]
)
def test_a_signal_to_all_processes_ends_them(number: int, code: int, tmp_path: Path) -> None:
    fasta, site, printed = peptides(tmp_path / "batch.fasta", 4), tmp_path / "site.toml", tmp_path / "printed.txt"
    site.write_text('[fold.only]\nmemory = "3GiB"\ntask_minutes = 0.1\n')
    driver = started(predict(fasta, tmp_path / "out", *TINY, "--cluster", str(site)), printed)
    until(lambda: list(tmp_path.glob("out/*/settings.json")))
    os.killpg(driver.pid, number)
    assert ended(driver) == code, printed.read_text()
    assert json.loads((tmp_path / "out/.cluster/status.json").read_text())["state"] == "interrupted"


def killed_batch(tmp_path: Path, count: int, kinds: list[str]) -> None:
    """Kill workers, the driver or everything, or end all by SIGTERM, in a random order while targets are predicted."""
    random = np.random.default_rng(0)
    fasta, site, printed = peptides(tmp_path / "batch.fasta", count), tmp_path / "site.toml", tmp_path / "printed.txt"
    site.write_text(TWO_POOLS.format(minutes=0.5))
    words = ["--models", "small", "--num-recycles", "0"]
    assert ended(started(predict(fasta, tmp_path / "whole", *words), tmp_path / "whole.txt"), 7200) == 0
    output = tmp_path / "out"
    command = predict(fasta, output, *words, "--cluster", str(site))
    made: dict[Path, tuple[int, int]] = {}
    driver = started(command, printed)
    for kill_number, kind in enumerate(random.permutation(kinds), start=1):
        # Kills are spread over the batch.
        wanted = count * kill_number // (len(kinds) + 2)
        until(lambda: len(done(output)) >= wanted and workers(driver.pid), 900)  # noqa: B023
        if kind == "term":
            os.killpg(driver.pid, signal.SIGTERM)
            assert ended(driver, 60) == 143
        victims = {"driver": [driver.pid], "term": [driver.pid], "everything": living_processes(driver.pid)}
        for victim in victims.get(kind) or [random.choice(workers(driver.pid))]:
            kill(int(victim))
        if kind != "worker":
            driver.join()
            driver = started(command, printed)
        # What was finished is never made again.
        now = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in output.glob("*/ranking_debug.json")}
        assert {path: now.get(path) for path in made} == made
        made = now
    assert ended(driver, 7200) == 0, printed.read_text()[-3000:]
    assert len(done(output)) == count
    assert contents(output) == contents(tmp_path / "whole")


@pytest.mark.long
def test_twenty_kills_of_workers_five_of_the_driver_ten_ends_and_one_kill_of_everything(tmp_path: Path) -> None:
    killed_batch(tmp_path, 500, ["worker"] * 20 + ["driver"] * 5 + ["term"] * 10 + ["everything"])
