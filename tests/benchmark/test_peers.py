"""Other programs are measured by turns with ours if they are installed. Small packages stand in for them here."""

import json
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from helixfold.benchmark import measurement, model
from helixfold.benchmark.block import leaves, random_streams
from helixfold.benchmark.measurement import BenchmarkDevice, Cost
from helixfold.benchmark.options import CommonOptions, ModelOptions
from helixfold.benchmark.peers import BLOCKS, compared
from helixfold.cli.main import main
from helixfold.model.batch import Batch

CPU = torch.device("cpu")
MACHINE = BenchmarkDevice(device=CPU, name="", threads=1, versions={}, load=0.0, allocator="")
BLOCK = ["benchmark", "block", "--residues", "8", "--rows", "4", "--dtypes", "bfloat16", "--repeats", "1"]
# The channels of both streams, and a network that keeps the names of its features and needs a template's angles.
OPENFOLD = {
    "config.py": """
        from types import SimpleNamespace as Space
        def model_config(name, train=False):
            class Stack(dict):
                pass
            stack = Stack(c_m=256, c_z=128, no_blocks=48)
            others = Space(extra_msa_stack=stack, template_pair_stack=stack)
            model = Space(evoformer_stack=stack, extra_msa=others, template=others)
            return Space(globals=Space(chunk_size=None if train else 4), model=model)
    """,
    "model/evoformer.py": """
        import torch
        class EvoformerBlock(torch.nn.Module):
            calls = []
            def __init__(self, c_m, c_z):
                super().__init__()
                self.msa, self.pair = torch.nn.Linear(c_m, c_m), torch.nn.Linear(c_z, c_z)
            def forward(self, msa, pair, msa_mask, pair_mask, chunk_size):
                self.calls.append((chunk_size, msa_mask.dtype, torch.is_grad_enabled()))
                return self.msa(msa) * msa_mask[..., None], self.pair(pair) * pair_mask[..., None]
    """,
    "model/model.py": """
        import torch
        class AlphaFold(torch.nn.Module):
            batches = []
            def __init__(self, config):
                super().__init__()
                assert config.model.evoformer_stack.tune_chunk_size is False
                self.linear = torch.nn.Linear(49, 1)
            def forward(self, batch):
                self.batches.append(batch)
                return self.linear(batch["msa_feat"][..., 0].to(self.linear.weight.dtype))
    """,
    "data/data_transforms.py": """
        def atom37_to_torsion_angles(prefix):
            return lambda features: features | {prefix + "torsion_angles_mask": features[prefix + "all_atom_mask"]}
    """,
}
OPEN_OMICS = {
    "backbones.py": """
        import torch
        class GatingAttention: pass
        class TriangleMultiplication: pass
        class NoExtraEvoformerIteration(torch.nn.Module):
            def __init__(self, config, global_config, is_extra, a_dim, m_dim, pair_dim):
                super().__init__()
                assert (config["name"], is_extra, a_dim, m_dim, pair_dim) == ("model_1", False, 256, 256, 128)
                self.msa = torch.nn.Linear(m_dim, m_dim)
            def forward(self, msa, pair, msa_mask, pair_mask):
                assert msa.ndim == pair.ndim == 3 and msa_mask.dtype == msa.dtype == self.msa.weight.dtype
                return {"msa": self.msa(msa), "pair": pair}
    """,
}
ALPHAFOLD = {
    "model/config.py": """
        from types import SimpleNamespace as Space
        class Settings(dict):
            to_dict = dict.copy
        def model_config(name):
            trunk = Space(evoformer=Settings(name=name))
            return Space(model=Space(embeddings_and_evoformer=trunk, global_config=Settings()))
    """,
}
Install = Callable[[str, dict[str, str]], None]


@pytest.fixture(autouse=True)
def rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "measured_device", lambda *_: MACHINE)
    monkeypatch.setattr(measurement, "_MIN_SECONDS", 0)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Make a package of modules importable."""
    names = []

    def install(name: str, modules: dict[str, str]) -> None:
        names.append(name)
        for module, source in modules.items():
            path = tmp_path / "site" / name / module
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(source))

    monkeypatch.syspath_prepend(tmp_path / "site")
    yield install
    for module in [module for module in sys.modules if module.split(".")[0] in names]:
        del sys.modules[module]


def test_a_block_is_measured_forward_and_backward(install: Install, tmp_path: Path) -> None:
    install("openfold", OPENFOLD)
    file = tmp_path / "block.json"
    assert main([*BLOCK, "--peer", "openfold", "--json", str(file)]) == 0
    rows = {(row["passes"], row["by"]): row for row in json.loads(file.read_text())["readings"]}
    for direction, chunks in (("forward", 4), ("forward and backward", None)):
        row = rows[direction, "OpenFold"]
        assert row["failure"] is None
        assert row["times_faster"] == pytest.approx(rows[direction, "plain"]["seconds"] / row["seconds"])
        assert row["notes"][0].endswith(" times as fast as OpenFold")
        calls = sys.modules["openfold.model.evoformer"].EvoformerBlock.calls
        assert (chunks, torch.bfloat16, chunks is None) in calls


def test_a_program_without_gradients_is_measured_forward(
    install: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install("alphafold_pytorch_jit", OPEN_OMICS)
    install("alphafold", ALPHAFOLD)
    file = tmp_path / "block.json"
    assert main([*BLOCK, "--peer", "open-omics", "--json", str(file)]) == 0
    rows = [row for row in json.loads(file.read_text())["readings"] if row["by"] == "Open-Omics"]
    assert [row["failure"] for row in rows] == [None, "NotImplementedError: it has no backward pass"]
    assert [len(row["notes"]) for row in rows] == [1, 0]
    assert "measured without its kernels: No module named 'tpp_pytorch_extension'" in capsys.readouterr().out


def test_kernels_replace_functions_of_the_program(install: Install) -> None:
    install("alphafold_pytorch_jit", OPEN_OMICS)
    install("alphafold", ALPHAFOLD)
    kernel = "class {0}:\n    def {1}Opti_forward(self): return 5"
    names = {"Alpha_Attention": "GatingAttention", "Alpha_TriangleMultiplication": "TriangleMultiplication"}
    source = "\n".join(kernel.format(*each) for each in names.items())
    install("tpp_pytorch_extension", {"alphafold.py": source})
    BLOCKS["open-omics"]("model_1", random_streams("model_1", 4, 2, torch.float32, CPU))
    backbones = sys.modules["alphafold_pytorch_jit.backbones"]
    assert [getattr(backbones, name)().forward() for name in names.values()] == [5, 5]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--peer openfold", "--peer openfold: openfold.model.model cannot be imported (No module named 'openfold')"),
        ("--peer openfold", "get it from https://github.com/aqlaboratory/openfold"),
        ("--peer open-omics", "No module named 'alphafold_pytorch_jit'"),
        ("--peer openfold --preset tiny", "--peer openfold needs one of the models model_1, "),
    ],
)
def test_a_missing_program_ends_the_command_before_it_measures(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*BLOCK, *words.split()]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""


@pytest.mark.parametrize("peer", ["jax", "colabfold"])
def test_programs_in_jax_are_looked_for_before_the_network_is_measured(
    peer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("data_pipeline.io.extras.find_spec", lambda name: None)
    assert main(["benchmark", "model", "--peer", peer]) == 2
    printed = capsys.readouterr()
    assert "need jax, haiku and alphafold, not installed here; install it with pip install" in printed.err
    assert printed.out == ""


def test_a_network_reads_features_of_one_recycling_iteration(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("openfold", OPENFOLD)
    monkeypatch.setattr(model, "_flops", lambda *_: 1)
    options = ModelOptions(preset="tiny", residues=12, rows=4, extra_rows=3, executors=("whole",), peer=("openfold",))
    (reading,) = model.readings(options, CommonOptions(dtypes=("bfloat16",)), MACHINE)
    assert reading.costs["OpenFold"].failure is None
    assert list(reading.costs) == ["ours (whole)", "OpenFold"]
    assert "ours (whole): " in reading.notes[0]
    batch: dict[str, Tensor] = sys.modules["openfold.model.model"].AlphaFold.batches[-1]
    templates = batch["template_aatype"].shape[0]
    assert batch["aatype"].shape == (12, 1)
    assert batch["aatype"].dtype == batch["extra_msa"].dtype == torch.int64
    assert batch["msa_feat"].shape == (4, 12, 49, 1)
    assert batch["template_torsion_angles_mask"].shape == (templates, 12, 37, 1)


def test_networks_are_measured_by_turns_and_one_that_fails_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def network(*_: object) -> Callable[[Batch], object]:
        def run(batch: Batch) -> None:
            calls.append("peer")
            raise RuntimeError("not implemented for 'BFloat16'")

        return run

    monkeypatch.setattr(model, "_flops", lambda *_: 1)
    monkeypatch.setitem(model.NETWORKS, "openfold", network)
    monkeypatch.setattr(model, "_pass_with_shapes", lambda way, *_: calls.append(way))
    options = ModelOptions(
        preset="tiny", residues=12, rows=4, extra_rows=3, executors=("plain", "whole"), peer=("openfold",)
    )
    (reading,) = model.readings(options, CommonOptions(repeats=2, dtypes=("float32",)), MACHINE)
    # For each, a call with few residues and one whose memory is measured, and then two rounds.
    assert calls == [*["plain"] * 2, *["whole"] * 2, "peer", *["plain", "whole"] * 2]
    assert reading.costs["OpenFold"].failure == "RuntimeError: not implemented for 'BFloat16'"


def test_our_fastest_way_is_compared() -> None:
    costs = {by: Cost(seconds=seconds) for by, seconds in (("plain", 1), ("ours", 4), ("ours, in slabs", 2), ("A", 5))}
    costs |= {"B": Cost(failure="it failed")}
    assert compared(costs, ["A", "B", "C"]) == ["ours, in slabs: 2.50 times as fast as A"]
    assert compared({"A": Cost(seconds=5)}, ["A"]) == []


@pytest.mark.parametrize(("dtype", "gradients"), [(torch.float32, True), (torch.bfloat16, False)])
def test_deepminds_block_has_the_shapes_of_the_streams(dtype: torch.dtype, gradients: bool) -> None:
    for module in ("haiku", "alphafold.model.modules"):
        pytest.importorskip(module, reason="needs the extra 'parity'")
    streams = leaves(random_streams("model_1", 6, 4, dtype, CPU), gradients=gradients)
    outputs: Any = BLOCKS["jax"]("model_1", streams)()
    msa, pair = outputs[1:] if gradients else outputs
    assert (msa.shape, pair.shape) == ((4, 6, 256), (6, 6, 128))
    assert str(msa.dtype) == str(pair.dtype) == str(dtype).removeprefix("torch.")
