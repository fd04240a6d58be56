"""`helixfold weights verify` passes sound parameters, and finds and names what is wrong with others."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from data_pipeline.residues import RESTYPES
from helixfold.apps.verify import verify as verification
from helixfold.apps.verify.runs import Run, run_network
from helixfold.apps.verify.verify import PublishedRun, check_published, fixed_batches, published_run
from helixfold.cli.main import main
from helixfold.model.alphafold import AlphaFold
from helixfold.model.batch import Batch, with_chains
from helixfold.model.presets import preset, tiny
from helixfold.weights import alphafold
from helixfold.weights.npz import write_npz
from tests.support.networks import with_every_parameter_random

CPU = torch.device("cpu")
COMMAND = ["weights", "verify", "--model", "tiny", "--own"]
Change = Callable[[dict[str, Tensor]], None]


@pytest.fixture(scope="module")
def network() -> AlphaFold:
    return with_every_parameter_random(tiny().model).eval()


@pytest.fixture
def written(network: AlphaFold, tmp_path: Path) -> Callable[..., Path]:
    """Function that writes the parameters, after a change, in DeepMind's format."""

    def write(name: str, change: Change = lambda _: None) -> Path:
        state = {key: value.clone() for key, value in network.state_dict().items()}
        change(state)
        path = tmp_path / f"{name}.npz"
        write_npz(path, alphafold.from_state_dict(state, network.config))
        return path

    return write


def test_sound_parameters_hold(written: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, str(written("sound")), "--dtype", "float32", "bfloat16", "float16"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"holds: 24 fixed residues: float32 and float64: largest deviation \d\.\de-0[67]", printed)
    for dtype in ("bfloat16", "float16"):
        # A score may have a small error by chance; which, depends on the processor.
        words = rf"holds: 24 fixed residues: {dtype}: error at most \d+\.\d\d times the error of plain PyTorch"
        assert re.search(words, printed)
    assert printed.splitlines()[-1] == "5 checks passed, 2 were not possible"
    assert "predicted_lddt/logits" in printed


def spoil(name: str, change: Callable[[Tensor], None]) -> Change:
    return lambda state: change(state[name])


NAME = "evoformer.blocks.1.row_attention.attention.out.weight"


def first_values(value: float) -> Callable[[Tensor], None]:
    return lambda tensor: tensor.view(-1)[:2].fill_(value)


def exchange(state: dict[str, Tensor]) -> None:
    first = [name for name in state if name.startswith("evoformer.blocks.0.")]
    for name in first:
        other = name.replace("blocks.0.", "blocks.1.")
        state[name], state[other] = state[other], state[name]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_values_that_no_network_has_are_named(
    value: float, written: Callable[..., Path], network: AlphaFold, capsys: pytest.CaptureFixture[str]
) -> None:
    name = next(name for name in network.state_dict() if name.startswith("evoformer.blocks.1.") and "weight" in name)
    path = written("spoiled", spoil(name, first_values(value)))
    assert main([*COMMAND, str(path)]) == 1
    printed = capsys.readouterr().out
    assert "FAILS: values: alphafold/alphafold_iteration/evoformer/" in printed
    assert "(2 such values)" in printed
    assert "not checked: outputs: not compared, because the values are wrong" in printed
    assert "1 of 4 checks failed, 2 were not possible" in printed or "1 of 4 checks failed" in printed


@pytest.mark.parametrize("name", ["float32", pytest.param("bfloat16", marks=pytest.mark.long)])
def test_outputs_that_are_not_numbers_fail(
    name: str, written: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def overflowing(network: AlphaFold, batches: list[Batch], dtype: torch.dtype, *, plain: bool = False) -> Run:
        run = run_network(network, batches, dtype, plain=plain)
        if str(dtype) == f"torch.{name}" and not plain:
            run.outputs["predicted_lddt/logits"][3, 5] = np.nan
        return run

    monkeypatch.setattr(verification, "run_network", overflowing)
    findings = verification.verify(written("sound"), preset("tiny"), ["float32", "bfloat16"])
    (failed,) = (check for check in findings.checks if check.holds is False)
    assert failed.name == f"24 fixed residues: {name}" + (" and float64" if name == "float32" else "")
    assert "predicted_lddt/logits" in failed.details.partition(";")[2]


def test_another_models_file_fails_by_its_names(
    written: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = written("sound")
    assert main(["weights", "verify", str(path), "--model", "model_1_ptm", "--own"]) == 1
    assert "FAILS: names and shapes: " in capsys.readouterr().out


@pytest.fixture(scope="module")
def expected(network: AlphaFold) -> PublishedRun:
    """What would be published for the tiny network, with the spread of rounding to bfloat16."""
    batches = fixed_batches(preset("tiny"), CPU)
    outputs = run_network(network, batches, torch.float32).outputs
    return PublishedRun(batches=batches, outputs=outputs, spread=dict.fromkeys(outputs, 1e-2))


def test_published_outputs_hold_for_their_parameters_only(network: AlphaFold, expected: PublishedRun) -> None:
    check, table = check_published(network, expected, torch.float32, "float32")
    assert check.holds
    assert len(table.rows) > 8
    other = with_every_parameter_random(tiny().model, seed=5).eval()
    check, _ = check_published(other, expected, torch.float32, "float32")
    assert check.holds is False
    assert "beyond rounding: distogram/logits" in check.details


def test_the_packaged_outputs_are_those_that_are_published() -> None:
    found = published_run(CPU)
    assert float(found.outputs["mean_plddt"]) == pytest.approx(94.229, abs=5e-4)
    assert float(found.outputs["ptm"]) == pytest.approx(0.05674, abs=5e-6)
    assert len(found.batches) == 4
    assert found.batches[0].aatype.shape == (1, 10)
    assert all(value > 0 for value in found.spread.values())


def test_exchanged_layers_fail_by_published_outputs(
    network: AlphaFold, expected: PublishedRun, monkeypatch: pytest.MonkeyPatch, written: Callable[..., Path]
) -> None:
    monkeypatch.setattr(verification, "published_run", lambda _: expected)
    monkeypatch.setattr(verification, "PUBLISHED_MODEL", "tiny")
    for change, holds in ((lambda _: None, True), (exchange, False)):
        findings = verification.verify(written("file", change), preset("tiny"), ["float32"])
        failed = [check.name for check in findings.checks if check.holds is False]
        assert failed == ([] if holds else ["published outputs of 5AWL, float32"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--dtype", "bfloat16"], "add float32, with which"),
        (["--against", "openfold"], "must be one of jax"),
    ],
)
def test_wrong_words_are_one_sentence(
    options: list[str], said: str, written: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*COMMAND, str(written("sound")), *options]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("preset_words", [["--preset", "tiny"], []])
def test_a_missing_file_is_one_sentence(preset_words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["weights", "verify", "nothing.npz", *preset_words]) == 2
    assert capsys.readouterr().err == "helixfold: error: nothing.npz: cannot be read: No such file or directory\n"


def test_parameters_of_complexes_are_verified_with_two_chains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, path = preset("tiny_multimer").model, tmp_path / "complexes.npz"
    write_npz(path, alphafold.from_state_dict(with_every_parameter_random(model).state_dict(), model))
    assert main(["weights", "verify", str(path), "--model", "tiny_multimer", "--own"]) == 0
    printed = capsys.readouterr().out
    assert "holds: values: all intact" in printed
    assert re.search(r"holds: 24 fixed residues: float32 and float64: largest deviation \d\.\de-0[67]", printed)
    assert re.search(
        r"holds: 24 fixed residues: bfloat16: error at most \d\.\d\d times the error of plain PyTorch", printed
    )
    (batch, _) = fixed_batches(preset("tiny_multimer"), CPU)
    assert with_chains(batch).asym_id.unique().tolist() == [1, 2]
    assert batch.template_mask.shape[1] == 4
    # Glycine has no C-beta, and DeepMind's program takes its C-alpha.
    glycine = batch.template_aatype == RESTYPES.index("G")
    assert glycine.any()
    assert torch.equal(batch.template_pseudo_beta[glycine], batch.template_all_atom_positions[..., 1, :][glycine])


def test_fixed_inputs_are_the_same_every_time() -> None:
    first, again = (fixed_batches(preset("tiny"), CPU) for _ in range(2))
    torch.rand(3)
    assert all(
        torch.equal(getattr(first[0], name), getattr(again[0], name)) for name in ("msa_feat", "extra_msa", "aatype")
    )
    assert len(first) == 2
    assert np.isfinite(first[0].msa_feat.numpy()).all()
    assert replace(first[0]).aatype.shape == (1, 24)
