"""`helixfold doctor` says what was found and what a target would use."""

import json
import os
from functools import cache
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from helixfold.apps.predict.doctor import _models
from helixfold.cli.main import main
from helixfold.execution.device import pick_device


def doctor(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["doctor", *map(str, arguments)]) == 0
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def no_memory_table(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the memory table, which takes long, of all tests but those whose name says they are about it."""
    if "memory" not in request.node.name:
        monkeypatch.setattr("helixfold.apps.predict.doctor._models", lambda *_: {"problem": "not asked for"})


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    (tmp_path / "uniref90.fasta").write_text(">a\nMKTAYIAKQR\n" * 100)
    (tmp_path / "uniprot.fasta").write_text(">tr|A0A0A0|A0A0A0_HUMAN\nMKTAYIAKQR\n" * 100)
    (tmp_path / "seqres.txt").write_text(">1abc_A mol:protein length:4\nMKTA\n")
    (tmp_path / "mmcif").mkdir()
    (tmp_path / "mmcif" / "1abc.cif").touch()
    path = tmp_path / "databases.toml"
    path.write_text(
        '[[alignments]]\nname = "uniref90"\ntool = "jackhmmer"\npath = "uniref90.fasta"\nmax_rows = 10000\n'
        '[templates]\ntool = "hmmsearch"\npath = "seqres.txt"\nstructures = "mmcif"\nlatest_release = 2021-11-01\n'
        '[uniprot]\npath = "uniprot.fasta"\n'
    )
    return path


def test_machine_programs_and_parameters_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    out = doctor(capsys)
    for word in ("PyTorch", "device", "memory", "parameters", "pyhmmer", "hhblits", "mmseqs", "none; pass --databases"):
        assert word in out


def test_where_structures_are_relaxed_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("helixfold.apps.predict.doctor.installed", lambda: True)
    monkeypatch.setattr("helixfold.apps.predict.doctor.where", lambda device: f"the platform for {device.type}")
    assert "relaxation  by OpenMM on the platform for " in doctor(capsys)
    monkeypatch.setattr("helixfold.apps.predict.doctor.installed", lambda: False)
    assert "relaxation  not installed: pip install 'helixfold[relax]'" in doctor(capsys)


def test_whether_passes_are_recorded_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if torch.device("cpu") == pick_device():
        assert "CUDA graphs none: only NVIDIA GPUs have them" in doctor(capsys)
    monkeypatch.setattr("helixfold.apps.predict.doctor.graphs_unsupported_reason", lambda properties: None)
    assert "CUDA graphs for short targets whose size repeats (--cuda-graphs)" in doctor(capsys)


def test_a_missing_program_is_named_with_its_package(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("helixfold.apps.predict.doctor.find_program", lambda name: None)
    monkeypatch.setattr("helixfold.apps.predict.doctor.find_mmseqs", lambda: None)
    out = doctor(capsys)
    assert "not installed (package hhsuite)" in out
    assert "mmseqs      not installed (pip install 'helixfold[mmseqs]' or your system's package mmseqs2)" in out


@pytest.mark.parametrize(
    ("version", "shown"),
    [
        ("8cc5ce367b5638c4306c2d7cfc652dd099a4643f", "release 18 (8cc5ce367b5638c4)  /x/mmseqs\n"),
        (
            "14-7e284+ds-1+b2",
            "release 14 (14-7e284+ds-1+b2)  /x/mmseqs\n{blank}too old for ColabFold's databases: they",
        ),
        ("13-45111", "release 13 (13-45111)  /x/mmseqs\n{blank}too old: release 14 or a newer one is needed"),
        ("0000000000", "0000000000  /x/mmseqs\n"),
    ],
)
def test_the_release_of_mmseqs_and_what_it_is_too_old_for_are_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, version: str, shown: str
) -> None:
    monkeypatch.setattr("helixfold.apps.predict.doctor.find_mmseqs", lambda: Path("/x/mmseqs"))
    monkeypatch.setattr("data_pipeline.search.mmseqs_program.program_version", lambda *_: version)
    monkeypatch.setattr("helixfold.apps.predict.doctor.program_version", lambda *_: version)
    assert f"mmseqs      {shown.format(blank=' ' * 14)}" in doctor(capsys)


def test_databases_are_shown_with_their_sizes_in_merge_order(capsys: pytest.CaptureFixture[str], profile: Path) -> None:
    out = doctor(capsys, "--databases", profile)
    assert "uniref90    jackhmmer in this process, at most 10,000 rows" in out
    assert "1.4 KiB in 1 file: " in out
    assert "hmmsearch in this process, released until 2021-11-01" in out
    assert "mmcif: 1 file\n" in out
    assert "  of complexes\n  uniprot     jackhmmer in this process, at most 50,000 rows\n" in out


def test_each_target_is_shown_with_what_it_would_use(
    capsys: pytest.CaptureFixture[str], profile: Path, tmp_path: Path
) -> None:
    (tmp_path / "two.fasta").write_text(">one\nMKTAYIAKQR\n>two\nMKTA\n")
    out = doctor(capsys, tmp_path / "two.fasta", "--databases", profile, "--msa-server", "http://127.0.0.1:1")
    targets = out.split("targets\n")[1]
    assert "one         10 residues" in targets
    assert targets.count("alignment from uniref90 (jackhmmer in this process), server") == 2
    assert "templates from hmmsearch in this process" in targets
    assert "http://127.0.0.1:1: sequences are sent there" in out
    assert "of complexes" not in out


def test_a_wrong_profile_is_one_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["doctor", "--databases", str(tmp_path / "missing.toml")]) == 2
    assert "missing.toml" in capsys.readouterr().err


def test_the_report_is_short_and_begins_with_what_the_machine_can_fold(capsys: pytest.CaptureFixture[str]) -> None:
    out = doctor(capsys)
    assert "operators on" not in out
    assert len(out.splitlines()) < 50
    places = [out.index(word) for word in ("\n  device", "\n  memory", "\nmemory", "\nsearch programs", "\ndatabases")]
    assert places == sorted(places)


def test_programs_read_the_same_as_json(capsys: pytest.CaptureFixture[str], profile: Path, tmp_path: Path) -> None:
    (tmp_path / "one.fasta").write_text(">one\nMKTAYIAKQR\n")
    size = "--length", 16, "--rows", 4, "--device", "cpu"
    found = json.loads(doctor(capsys, tmp_path / "one.fasta", "--databases", profile, "--json", "--operators", *size))
    assert found["machine"]["memory"] > 2**28
    assert found["programs"]["pyhmmer"]["path"] is None
    assert found["databases"]["alignments"][0]["size"] == 1400
    assert found["databases"]["templates"]["structure_files"] == 1
    assert found["targets"][0]["alignment_from"] == ["uniref90 (jackhmmer in this process)"]
    assert found["operators"]["Adam, moving average, all parameters"] == [
        "fused_adam: chunks (triton: for cuda, not cpu)"
    ]
    assert "operators" not in json.loads(doctor(capsys, "--json", *size))


def operators(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, str]:
    """What is said of each operator, by its place in the network."""
    lines = doctor(capsys, "--operators", *arguments).split("operators on ")[1].splitlines()[1:]
    said: dict[str, str] = {}
    for line in lines:
        name = line[:50].strip() or name
        said[name] = said.get(name, "") + line[50:] + "\n"
    return said


def test_each_operator_is_shown_with_its_backend_and_why_no_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = operators(capsys, "--length", 16, "--rows", 4, "--dtype", "bfloat16", "--device", "cpu")
    assert said["Adam, moving average, all parameters"] == "fused_adam: chunks (triton: for cuda, not cpu)\n"
    assert "layer_norm: rows (triton: for cuda, not cpu), in training" in said["layer norm of the pair"]
    assert "memory of freed tensors" in said


@pytest.mark.integration
def test_operators_of_a_card_that_is_not_here_are_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the card would use does not depend on what is installed here.
    monkeypatch.setattr("helixfold.ops.triton.requirements.triton_is_there", lambda: False)
    size = "--length", 384, "--rows", 512
    # In bfloat16, as a run would compute on it.
    said = operators(capsys, *size, "--device", "h200")
    assert said["Adam, moving average, all parameters"] == "fused_adam: triton\n"
    assert said["MSA transition"] == "transition: triton\n"
    assert "memory of freed tensors" not in said
    said = operators(capsys, *size, "--device", "a100")
    assert said["MSA transition"] == "transition: triton\n"
    assert "products in float32 are left to cuBLAS" in operators(capsys, *size, "--device", "t4")["MSA transition"]
    said = operators(capsys, *size, "--dtype", "bfloat16", "--device", "t4")
    assert "need compute capability 8.0" in said["MSA transition"]


def test_in_float32_a_gpu_has_kernels_for_what_is_not_mostly_products(capsys: pytest.CaptureFixture[str]) -> None:
    said = operators(capsys, "--length", 384, "--dtype", "float32", "--device", "h200")
    by_kernel = {name for name, text in said.items() if "triton\n" in text or "triton, in" in text}
    assert by_kernel >= {
        "triangle attention, softmax(qk + bias)v alone",
        "norm and map of a pair bias",
        "layer norm of the pair",
        "pair and its change, dropout",
    }
    for name in ("MSA transition", "outer product mean", "triangle multiplication, outgoing"):
        assert "reference (triton: products in float32 are left to cuBLAS" in said[name]


def test_a_device_that_was_never_tried_is_said_to_be(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "precision   float32 by default" in doctor(capsys)
    monkeypatch.setattr(
        "helixfold.apps.predict.doctor.untested_warning", lambda properties: "nobody has tried this device"
    )
    assert "nobody has tried this device\n" in doctor(capsys)


def test_the_allocator_that_cannot_be_told_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("helixfold.execution.allocator.unsupported_reason", lambda: "no glibc")
    said = operators(capsys, "--length", 16, "--rows", 4, "--device", "cpu")
    assert said["memory of freed tensors"] == "default allocator: no glibc\n"


@pytest.mark.long
def test_each_model_is_shown_with_its_memory_and_the_longest_chain(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("helixfold.apps.predict.doctor.parameters_directory", lambda: tmp_path)
    monkeypatch.setattr("helixfold.planning.estimate.available_memory", lambda device: 2**33)
    monkeypatch.setattr("helixfold.planning.estimate.free_disk", lambda directory: 2**50)
    # Three lengths are counted for the longest chain instead of up to nine.
    monkeypatch.setattr("helixfold.planning.estimate._MAX_ESTIMATES", 3)
    # What is counted for the text is counted again for JSON, which takes long.
    monkeypatch.setattr("helixfold.apps.predict.doctor._models", cache(_models))
    out = doctor(capsys, "--length", 400, "--rows", 4, "--device", "cpu")
    title, names, *rows = out.split("memory of ")[1].splitlines()[:6]
    assert title.startswith("cpu, 8.0 GiB free and 1,048,576.0 GiB here to spill to, for 400 residues")
    assert names.split() == ["whole", "slabs", "spilled", "chosen"]
    assert [row.split()[:2] for row in rows] == [
        [model, dtype] for model in ("model_1_ptm", "small") for dtype in ("float32", "bfloat16")
    ]
    longest = [int(word.strip("()").replace(",", "")) for word in rows[0].split() if word.startswith("(")]
    assert longest == sorted(longest)
    assert 500 < longest[0] < longest[1]
    # In bytes as JSON.
    found = json.loads(doctor(capsys, "--json", "--length", 400, "--rows", 4, "--device", "cpu"))["models"]
    assert (found["free"], found["spill"], found["residues"]) == (2**33, 2**50, 400)
    assert [found["models"][0]["longest"][name] for name in ("slabs", "spilled")] == longest
    assert (found["models"][-1]["model"], found["models"][-1]["dtype"]) == ("small", "bfloat16")
    assert 2**20 < found["models"][-1]["peak"]["whole"] < found["free"]
    monkeypatch.setattr("helixfold.apps.predict.doctor._models", _models)
    (tmp_path / "params_model_2.npz").touch()
    asked: list[str] = []
    monkeypatch.setattr(
        "helixfold.apps.predict.doctor._memory",
        lambda presets, *_: asked.extend(each.name for each in presets) or {"problem": "not asked for"},
    )
    doctor(capsys, "--length", 16, "--device", "cpu")
    assert asked == ["model_2"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_the_memory_of_a_device_that_is_not_here_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert "memory: device 'cuda' is not available" in doctor(capsys, "--length", 16, "--rows", 4, "--device", "cuda")


def test_the_host_its_limits_caches_and_extras_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("platform.node", lambda: "node17")
    monkeypatch.setenv("SLURM_JOB_ID", "4242")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "3")
    limits = [("machine", 16), ("CPU affinity (taskset, SLURM)", 8), ("/sys/fs/cgroup/job/cpu.max", 2.5)]
    monkeypatch.setattr("helixfold.apps.predict.doctor.processor_limits", lambda: iter(limits))
    memory = [("machine", 2**35), ("/sys/fs/cgroup/job/memory.max", 2**33), ("ulimit -v", 2**34), ("no limit", 2**62)]
    monkeypatch.setattr("helixfold.apps.predict.doctor.memory_limits", lambda: iter(memory))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("os.access", lambda path, mode: False)
    out = doctor(capsys, "--length", 16)
    assert "  host        node17, " in out
    assert "; SLURM: cpus_per_task 3, job_id 4242\n" in out
    assert f"  processors  2.5 of {os.cpu_count()}, limited by /sys/fs/cgroup/job/cpu.max\n" in out
    assert "  memory      8.0 GiB free of " in out
    assert ", limited by /sys/fs/cgroup/job/memory.max\n" in out
    assert f"  weights_directory          {tmp_path}/helixfold/params (default; cannot be written)\n" in out
    assert f"numba {version('numba')}, " in out
    monkeypatch.setattr("data_pipeline.io.extras._version", lambda name: None if name == "parsl" else "1.2")
    assert "; not installed: parsl [cluster]\n" in doctor(capsys, "--length", 16)
    host = json.loads(doctor(capsys, "--json", "--length", 16))["host"]
    assert [limit["left"] for limit in host["memory"]] == [2**35, 2**33, 2**34]


def test_configuration_files_are_shown_with_what_each_gave(site_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    user = site_file.parents[1] / "user" / "helixfold.toml"
    site_file.write_text("weights_directory = '/data/params'\nallow_demonstration_model = false\n")
    lines = doctor(capsys).split("\nconfiguration\n")[1].split("\n\n")[0].splitlines()
    assert lines[:3] == [
        f"  {site_file}: read",
        f"  {user}: not there",
        f"  weights_directory          /data/params ({site_file})",
    ]
    assert "  monomer_models             model_1_ptm (default)" in lines
    assert f"  allow_demonstration_model  false ({site_file})" in lines
    found = json.loads(doctor(capsys, "--json"))["configuration"]
    assert found["files"] == [{"path": str(site_file), "is_read": True}, {"path": str(user), "is_read": False}]
    assert found["settings"]["weights_directory"]["value"] == "/data/params"
    assert found["settings"]["weights_directory"]["source"] == str(site_file)
    assert found["settings"]["databases"] == {"value": None, "source": "default"}
    assert found["error"] is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("weights_directory =\n", "not a TOML file: Invalid value (at line 1, column 20)"),
        ("database = 'x'", "unknown key 'database'; did you mean databases?"),
        ("monomer_models = ['model_1_pmt']", "monomer_models names the unknown model 'model_1_pmt'; did you mean"),
    ],
)
def test_an_error_in_a_configuration_file_is_shown_and_the_rest_is_for_the_defaults(
    text: str, problem: str, site_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site_file.write_text(text)
    out = doctor(capsys)
    assert f"  error: {site_file}: {problem}" in out
    assert "\nsearch programs\n" in out
    found = json.loads(doctor(capsys, "--json"))
    assert found["configuration"]["error"].startswith(f"{site_file}: {problem}")
    assert found["databases"]["alignments"] == []
