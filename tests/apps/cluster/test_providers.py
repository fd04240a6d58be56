"""Jobs ask a queue for what a pool says, in the words of that queue, and training starts torchrun on its nodes."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from data_pipeline.io.errors import InputError
from helixfold.apps.cluster.site import Pool, Site

providers = pytest.importorskip("helixfold.apps.cluster.providers")
training = pytest.importorskip("helixfold.apps.cluster.training")

GPU = Pool(
    name="gpu",
    provider="slurm",
    nodes=6,
    gpus=4,
    workers=4,
    card="a100",
    cores=64,
    memory=400 * 2**30,
    walltime="12:00:00",
    queue="long",
    account="lab",
    directives=("#SBATCH --qos=high", "#SBATCH -x a"),
    setup="module load cuda",
)
CPU = Pool(name="cpu", nodes=3)


@pytest.fixture(autouse=True)
def queues(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every queue's program is installed; providers are what they were made with."""
    monkeypatch.setattr(providers.shutil, "which", lambda name: f"/bin/{name}")
    for name in ("SlurmProvider", "PBSProProvider", "LSFProvider", "LocalProvider", "KubernetesProvider"):
        monkeypatch.setattr(providers, name, lambda name=name, **given: {"is": name, **given})
    monkeypatch.setenv("PYTHONPATH", "/my code")
    monkeypatch.delenv("HELIXFOLD_CONFIG", raising=False)
    monkeypatch.delenv("HELIXFOLD_VERBOSITY", raising=False)
    monkeypatch.chdir(tmp_path)


def site(*pools: Pool, train: Pool | None = None) -> Site:
    return Site(path=Path("site.toml"), search=None, folding=pools, training=train)


def asked(pool: Pool, **options: Any) -> Any:
    return providers.provider_of(pool, site(pool), **options)


def test_slurm_is_asked_for_the_nodes_of_a_pool() -> None:
    found = asked(GPU)
    assert found["is"] == "SlurmProvider"
    assert (found["init_blocks"], found["min_blocks"], found["max_blocks"], found["nodes_per_block"]) == (0, 0, 6, 1)
    assert (found["partition"], found["account"], found["walltime"]) == ("long", "lab", "12:00:00")
    assert (found["cores_per_node"], found["mem_per_node"], found["gpus_per_node"]) == (64, 400, 4)
    directives = ["#SBATCH --signal=B:TERM@60", "#SBATCH --no-requeue", "#SBATCH --qos=high", "#SBATCH -x a"]
    assert found["scheduler_options"].splitlines() == directives
    assert found["exclusive"] is False
    lines = [
        *("export PYTHONPATH='/my code'", "export OMP_NUM_THREADS=16", f"cd {os.getcwd()}", "module load cuda"),
    ]
    assert found["worker_init"].splitlines() == [*lines, "trap 'trap \"\" TERM; kill -TERM 0; sleep 6' TERM"]
    together = asked(GPU, nodes_per_job=6, launcher="own", directives=["#SBATCH --requeue"])
    assert together["worker_init"].splitlines() == lines
    assert together["scheduler_options"].splitlines() == ["#SBATCH --requeue", *directives[2:]]
    assert (together["max_blocks"], together["nodes_per_block"], together["launcher"]) == (1, 6, "own")
    assert asked(replace(GPU, gpus=0, memory=None))["gpus_per_node"] is None
    assert asked(replace(GPU, memory=2**29))["mem_per_node"] == 1  # whole gibibytes, at least one


def test_configuration_and_verbosity_reach_the_nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HELIXFOLD_CONFIG", "lab.toml")
    monkeypatch.setenv("HELIXFOLD_VERBOSITY", "quiet")
    for pool in (CPU, GPU, replace(GPU, provider="pbs"), replace(GPU, provider="kubernetes", image="lab/fold")):
        monkeypatch.setattr(providers, "are_installed", lambda _: True)
        lines = asked(pool)["worker_init"].splitlines()
        assert lines[:2] == [f"export HELIXFOLD_CONFIG={tmp_path / 'lab.toml'}", "export HELIXFOLD_VERBOSITY=quiet"]


def test_pbs_and_lsf_are_asked_in_their_words() -> None:
    pbs = asked(replace(GPU, provider="pbs"))
    assert (pbs["is"], pbs["queue"], pbs["cpus_per_node"]) == ("PBSProProvider", "long", 64)
    assert pbs["select_options"] == "mem=400gb:ngpus=4"
    assert asked(replace(GPU, provider="pbs", gpus=0))["select_options"] == "mem=400gb"
    lsf = asked(replace(GPU, provider="lsf"), nodes_per_job=2)
    assert (lsf["is"], lsf["project"], lsf["cores_per_block"], lsf["cores_per_node"]) == ("LSFProvider", "lab", 128, 64)
    assert lsf["request_by_nodes"] is False
    assert lsf["bsub_redirection"] is True
    lines = ["#BSUB -gpu num=4", "#BSUB -M 400GB", "#SBATCH --qos=high", "#SBATCH -x a"]
    assert lsf["scheduler_options"].splitlines() == lines


def test_this_machine_and_kubernetes_need_no_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers.shutil, "which", lambda _: None)
    local = asked(CPU)
    assert (local["is"], local["max_blocks"]) == ("LocalProvider", 3)
    pod = replace(GPU, provider="kubernetes", image="lab/fold", volumes=("data:/data", "home:/home/lab"), queue=None)
    with pytest.raises(InputError, match="pool 'gpu' needs the package kubernetes"):
        monkeypatch.setattr(providers, "are_installed", lambda _: False)
        asked(pod)
    monkeypatch.setattr(providers, "are_installed", lambda _: True)
    found = asked(pod)
    assert (found["image"], found["namespace"], found["service_account_name"]) == ("lab/fold", "default", "lab")
    assert (found["max_cpu"], found["init_cpu"], found["max_mem"], found["init_mem"]) == (64, 64, "400Gi", "400Gi")
    assert found["extra_requests"] == found["extra_limits"] == {"nvidia.com/gpu": "4"}
    assert found["persistent_volumes"] == [("data", "/data"), ("home", "/home/lab")]
    # Neither this machine's directory nor its code is there.
    assert found["worker_init"].splitlines() == ["export OMP_NUM_THREADS=16", "module load cuda"]
    assert asked(replace(pod, memory=None, gpus=0))["max_mem"] == "1Gi"
    assert (providers.python_of(pod), providers.python_of(CPU)) == ("python3", sys.executable)
    assert providers.python_of(replace(pod, python="/bin/py")) == "/bin/py"
    with pytest.raises(InputError, match="pool 'gpu': sbatch is not on the PATH; run this on a machine"):
        asked(GPU)


def test_a_training_starts_torchrun_on_all_nodes() -> None:
    words = ["train", "my set", "--output", "run"]
    one = training.training_command(site(), replace(GPU, nodes=1, python="py"), words)
    assert one == (
        "exec py -m torch.distributed.run --standalone --nproc-per-node 4 --max-restarts 100 "
        "-m helixfold train 'my set' --output run"
    )
    several = training.training_command(site(), replace(GPU, gpus=0, workers=2, python="py"), words)
    first, command = several.splitlines()
    assert first == "export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
    assert command == (
        "exec srun --no-kill --kill-on-bad-exit=0 --ntasks-per-node=1 --cpus-per-task=64 --mem=400g "
        "py -m torch.distributed.run --nnodes 1:6 --rdzv-backend c10d "
        '--rdzv-endpoint "$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):29500" '
        '--rdzv-id "$SLURM_JOB_ID" --nproc-per-node 2 --max-restarts 100 '
        "-m helixfold train 'my set' --output run"
    )
    with pytest.raises(InputError, match=r"\[train\]: several nodes need SLURM; with pbs, start torchrun"):
        training.training_command(site(), replace(GPU, provider="pbs"), words)
    command = ["train", "set", "--cluster", "site.toml", "--steps=3", "--cluster=x", "-o", "run"]
    assert training.without_cluster(command) == ["train", "set", "--steps=3", "-o", "run"]


def test_a_training_is_one_job_whose_script_is_beside_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submitted: list[tuple[Any, ...]] = []

    class Queue:
        script_dir = ""
        job: str | None = "17"

        def submit(self, *arguments: Any) -> str | None:
            submitted.append(arguments)
            return self.job

    queue, calls = Queue(), []
    monkeypatch.setattr(training, "provider_of", lambda *given, **options: (calls.append((given, options)), queue)[1])
    monkeypatch.setattr(training, "read_site", lambda _: site(train=replace(GPU, python="py")))
    said = training.submit_training(Path("site.toml"), ["train"], Path("run"))
    scripts = tmp_path / "run" / ".cluster"
    assert said == f"job 17, whose script and output are in {scripts}"
    assert (queue.script_dir, scripts.is_dir(), calls[0][1]["nodes_per_job"]) == (str(scripts), True, 6)
    assert (submitted[0][0].splitlines()[0][:6], *submitted[0][1:]) == ("export", 1, "helixfold-train")
    queue.job = None
    with pytest.raises(InputError, match="sbatch refused the job"):
        training.submit_training(Path("site.toml"), ["train"], Path("run"))
    monkeypatch.setattr(training, "read_site", lambda _: site(CPU))
    with pytest.raises(InputError, match=r"has no table \[train\]"):
        training.submit_training(Path("site.toml"), ["train"], Path("run"))
